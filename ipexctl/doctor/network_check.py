"""Checks the network: logins from node0 to every node, as mpirun makes them, and a high port between every two hosts.
The check ends within 8 s, more for many hosts; whatever has no result by then is reported as not tested. A failed login
is a fail only if the hosts' backend needs an mpirun.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from ipexctl.doctor import port_pairs
from ipexctl.doctor.finding import Finding, Level, merge_findings
from ipexctl.facts.facts import Facts
from ipexctl.hosts.host import Host
from ipexctl.hosts.nodeset import fold
from ipexctl.limits import CHECKED_CONNECTION, NETWORK_CHECK, SLOW_SHELL, SLOWEST_SHELL
from ipexctl.node.network.ports import connect
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import SessionPool
from ipexctl.remote.fanout import run_in_background
from ipexctl.remote.local import source_towards
from ipexctl.remote.node_call import script_command
from ipexctl.remote.outcome import HostError, TimedOut
from ipexctl.remote.script_dialog import ScriptDialog, on_hosts, open_sessions, results_until
from ipexctl.remote.session import OutputCollector, Session
from ipexctl.trust.host_steps import HostState, HostSteps, LoginAttempt, login_command, read_logins
from ipexctl.trust.login_errors import explain
from ipexctl.trust.trust_ssh_config import names_in, ssh_names_for

_TRUST: Final = "ipexctl trust"
_NO_ANSWER: Final = re.compile(r"connect to host .*(timed out|No route to host|Network is unreachable)", re.IGNORECASE)


def for_many(seconds: float, hosts: int) -> float:
    """Scale a limit to the number of hosts: node0 alone starts an ssh for each."""
    return seconds * max(1.0, hosts / 64)


def got_no_answer(login: LoginAttempt) -> bool:
    return login.code == 255 and bool(_NO_ANSWER.search(login.output))


def is_slow(login: LoginAttempt) -> bool:
    return login.code == 124


def diagnose_login(name: str, login: LoginAttempt, node0: HostState | None, node: HostState | None) -> HostError | None:
    if is_slow(login):
        return HostError(
            "a login from node0 took longer than the few seconds of this check",
            "measure a login on node0 (time ssh ADDRESS true); check the login shell's start-up files and sshd on"
            " that host",
        )
    config = node0.config if node0 else ""
    if config and name not in names_in(config):
        return HostError("node0's ssh config doesn't have this host: it was added after the last ipexctl trust", _TRUST)
    refused = re.search(r"Permission denied|Too many authentication failures", login.output)
    if not config:
        if (
            re.search(r"Host key verification failed", login.output)
            and "IDENTIFICATION HAS CHANGED" not in login.output
        ):
            return HostError("node0 can't log in yet: it doesn't know this host's key", _TRUST)
        if refused:
            return HostError("node0 can't log in yet: this host accepts none of node0's keys", _TRUST)
    elif refused and node and node0 and node0.key and node0.key.split()[-1].encode() not in (node.keys or b""):
        return HostError("node0's key is no longer in ~/.ssh/authorized_keys of this host", _TRUST)
    return None


def login_level(*, is_needed: bool, is_expected: bool) -> Level:
    if is_needed:
        return "fail"
    return "warn" if is_expected else "info"


def login_findings(failed: Mapping[str, HostError], level: Level) -> tuple[Finding, ...]:
    if not failed:
        return ()
    grouped: dict[str, list[str]] = defaultdict(list)
    for name, failure in failed.items():
        grouped[failure.reason].append(name)
    reasons = "; ".join(
        f"{fold(names)}: {reason}" if len(grouped) > 1 else reason for reason, names in list(grouped.items())[:6]
    )
    more = f"; and {len(grouped) - 6} other reasons" if len(grouped) > 6 else ""
    login = f"node0's login to it fails: {reasons}{more}"
    if level == "fail":
        message = f"mpirun, which oneCCL needs, can't start ranks on this host: {login}"
    else:
        message = f"Ranks over gloo start without this login; ccl, mpi and --mpi need it: {login}"
    fixes = "; ".join(dict.fromkeys(failure.fix for failure in failed.values() if failure.fix))
    return (Finding("network.login", level, message, fixes or _TRUST, tuple(failed)),)


def slow_login_finding(slow: Mapping[str, HostError]) -> tuple[Finding, ...]:
    if not slow:
        return ()
    message = (
        "A login from node0 had no result in the few seconds of this check, so it is unknown whether it works. mpirun"
        " waits longer, but a run starts and restarts that much later."
    )
    fixes = "; ".join(dict.fromkeys(failure.fix for failure in slow.values()))
    return (Finding("network.login_untested", "warn", message, fixes, tuple(slow)),)


def unknown_state(host: Host) -> HostState:
    return HostState(
        user=host.user or "this account",
        uid=-1,
        home="~",
        ipexctl_home="",
        identity=(),
        store="",
        nics=(),
        reached=None,
        port=host.port or 22,
        host_keys=(),
        keys=b"",
        keys_problem="",
        has_ssh_dir=True,
    )


def log_in(
    session: Session, ssh_names: Mapping[str, str], config: str | None, *, seconds: float, cancel: Cancel
) -> dict[str, LoginAttempt]:
    """Log in from node0 to all nodes at once; the code is 124 for a login without a result in time."""
    names = list(ssh_names)
    connect = max(1, min(int(for_many(5.0, len(names))), int(seconds) - 2))
    command = login_command(ssh_names, config, connect=connect, seconds=connect + 1, at_once=len(ssh_names))
    output = OutputCollector()
    with contextlib.suppress(TimedOut):
        session.run(command, output.sink, timeout=seconds, cancel=cancel)
    return read_logins(output.stdout, names, LoginAttempt(124, ""))


_NO_LONGER_ANSWERS: Final = "it stopped answering"
_TOO_SLOW: Final = f"its login shell takes more than {SLOWEST_SHELL:g} s to start a command"
_ALIVE: Final = 0.35
"""Share of the budget after which a silent host counts as lost."""


class NetworkReport(NamedTuple):
    findings: tuple[Finding, ...] = ()
    seconds: float = 0.0
    open_outside: frozenset[str] = frozenset()
    """Hosts whose ports the control machine reached from outside their network."""


def check_network(
    pool: SessionPool,
    hosts: Sequence[Host],
    internal: Mapping[str, str],
    *,
    facts: Mapping[str, Facts],
    home: str,
    needs_logins: bool = True,
    budget: float | None = None,
    delays: Mapping[str, float] = {},
) -> NetworkReport:
    """`needs_logins`: an mpirun starts the ranks, so a failed login is a fail. `delays`: seconds that the login shell
    of each host takes to start a command. Two such starts must fit into the time before a silent host counts as lost.
    """
    started = time.monotonic()
    slow = frozenset(host.name for host in hosts if delays.get(host.name, 0) > SLOWEST_SHELL)
    if budget is None:
        slowest = max((delay for delay in delays.values() if SLOW_SHELL <= delay <= SLOWEST_SHELL), default=0)
        budget = for_many(NETWORK_CHECK, len(hosts)) + 2 * slowest / _ALIVE
    cancel = Cancel()
    try:
        with pool.cancel.waking(cancel.throw):
            check = _NetworkCheck(pool, hosts, internal, facts, home, needs_logins, started, budget, cancel, slow)
            return check.report()
    finally:
        # Stops programs that still run on hosts, in threads that nobody waits for.
        cancel.throw()


@dataclass(slots=True)
class _NetworkCheck:
    pool: SessionPool
    hosts: Sequence[Host]
    internal: Mapping[str, str]
    facts: Mapping[str, Facts]
    home: str
    needs_logins: bool
    started: float
    budget: float
    cancel: Cancel
    slow: frozenset[str] = frozenset()
    sessions: dict[str, Session] = field(default_factory=dict)
    node0_state: HostState | None = None
    identities: dict[str, str] = field(default_factory=dict)
    lost: dict[str, HostError] = field(default_factory=dict)
    untested: dict[str, str] = field(default_factory=dict)
    results: dict[port_pairs.Pair, port_pairs.ConnectionResult] = field(default_factory=dict)
    open_outside: frozenset[str] = frozenset()

    def at(self, share: float) -> float:
        return self.started + self.budget * share

    def report(self) -> NetworkReport:
        if len(self.hosts) < 2:
            return NetworkReport(seconds=time.monotonic() - self.started)
        self._reach_hosts()
        background = run_in_background(self._log_in, "doctor-logins")
        self._try_ports()
        logins = results_until({"logins": background}, self.at(0.97))["logins"]
        failed_logins: dict[str, HostError] = {}
        slow_logins: dict[str, HostError] = {}
        silent = frozenset[str]()
        if not isinstance(logins, HostError):
            failed_logins, silent = self._diagnose_logins(logins)
            slow_logins = {name: failed_logins.pop(name) for name in logins if is_slow(logins[name])}
        findings = [*_lost_hosts(self.lost)]
        # A lost host has its own finding, so its login needs none.
        is_set_up = self.node0_state is not None and bool(self.node0_state.config)
        level = login_level(is_needed=self.needs_logins, is_expected=is_set_up or bool(silent))
        findings += login_findings(
            {name: failure for name, failure in failed_logins.items() if name not in self.lost}, level
        )
        findings += slow_login_finding(
            {name: failure for name, failure in slow_logins.items() if name not in self.lost}
        )
        findings += port_pairs.port_findings(self.results, self.untested, silent, self.internal, self.facts)
        if isinstance(logins, HostError) and self.hosts[0].name not in self.lost:
            findings.append(_logins_untested(logins, self.hosts[0]))
        return NetworkReport(tuple(findings), time.monotonic() - self.started, self.open_outside)

    def _reach_hosts(self) -> None:
        self.untested.update(dict.fromkeys(self.slow, _TOO_SLOW))
        hosts = [host for host in self.hosts if host.name not in self.slow]
        self.sessions, errors = open_sessions(self.pool, hosts, self.at(_ALIVE))
        states = self._probe_states(self.hosts[:1], self.at(_ALIVE), late_is_lost=True)
        self.node0_state = states.get(self.hosts[0].name)
        for name, error in errors.items():
            self._mark_lost(name, error)

    def _probe_states(self, hosts: Sequence[Host], until: float, *, late_is_lost: bool) -> dict[str, HostState]:

        def probe(host: Host) -> HostState:
            left = max(0.1, until - time.monotonic())
            steps = HostSteps(host, self.sessions[host.name], left, self.pool.cancel)
            return steps.probe(self.home, is_node0=host == self.hosts[0])

        states: dict[str, HostState] = {}
        reached = [host for host in hosts if host.name in self.sessions]
        for name, state in on_hosts(probe, reached, until).items():
            if not isinstance(state, HostError):
                states[name] = state
            elif state.status == "unreachable" or (late_is_lost and isinstance(state, TimedOut)):
                self._mark_lost(name, state)
        return states

    def _mark_lost(self, name: str, error: HostError) -> None:
        self.sessions.pop(name, None)
        self.lost[name] = error
        self.untested[name] = _NO_LONGER_ANSWERS

    def _log_in(self) -> dict[str, LoginAttempt]:
        node0, *others = self.hosts
        if node0.name not in self.sessions:
            raise self.lost.get(node0.name) or HostError(_TOO_SLOW)
        ssh_names = ssh_names_for(others, self.internal)
        if not ssh_names or self.pool.connector.options.transport.no_logins:
            return {}
        state = self.node0_state
        config = f"{state.ipexctl_home}/ssh/config" if state and state.config else None
        seconds = self.at(0.9) - time.monotonic()
        return log_in(self.sessions[node0.name], ssh_names, config, seconds=seconds, cancel=self.cancel)

    def _diagnose_logins(self, logins: Mapping[str, LoginAttempt]) -> tuple[dict[str, HostError], frozenset[str]]:
        """Failed and slow logins with reasons, and the hosts that gave no answer."""
        if all(login.is_from(self.identities.get(name, "")) for name, login in logins.items()):
            return {}, frozenset()
        node0, *others = self.hosts
        # After slow logins only a tenth of a second may be left, too little to call a host lost.
        states = self._probe_states(others, self.at(0.97), late_is_lost=False)
        if self.node0_state is not None:
            states[node0.name] = self.node0_state
        by_name = {host.name: host for host in self.hosts}
        addresses = {name: state.addresses for name, state in states.items()}
        failed: dict[str, HostError] = {}
        for name, login in logins.items():
            state = states.get(name)
            if login.code == 0 and (state is None or login.reached(state)):
                continue
            address = self.internal[name]
            failed[name] = diagnose_login(name, login, self.node0_state, state) or explain(
                login, state or unknown_state(by_name[name]), address, addresses if state else {}
            )
        silent = {name for name in failed if got_no_answer(logins[name])}
        if logins and len(silent) == len(logins):
            silent.add(node0.name)
        return failed, frozenset(silent)

    def _try_ports(self) -> None:
        dialog = ScriptDialog(self.cancel)
        tokens = {name: secrets.token_hex(8) for name in self.sessions}
        for name, session in self.sessions.items():
            if name not in self.internal:
                self.untested[name] = "it has no address that the other hosts could use"
                continue
            facts = self.facts.get(name)
            python = next(iter(facts.software.agent_pythons if facts else ()), "")
            program = script_command("network.ports", python=python, label="try ports between the hosts")
            dialog.start(
                name,
                session,
                program._replace(script=f"echo begun\n{program.script}"),
                timeout=max(0.1, self.at(1) - time.monotonic()),
                stdin=port_pairs.listen_order(self.internal[name], tokens[name], round(self.budget) + 2),
            )
        try:
            listeners = self._listeners(dialog)
            outside = run_in_background(partial(self._connect_from_outside, listeners, tokens), "doctor-outside")
            self._connect(dialog, listeners, tokens)
            reached = results_until({"outside": outside}, self.at(0.9))["outside"]
            self.open_outside = frozenset() if isinstance(reached, HostError) else reached
        finally:
            dialog.end(min(self.at(0.97), time.monotonic() + 1))

    def _listeners(self, dialog: ScriptDialog) -> dict[str, port_pairs.PortListener]:
        listeners: dict[str, port_pairs.PortListener] = {}
        started = dialog.running
        pending, silent = set(started), set(started)
        while pending:
            received = dialog.receive(self.at(_ALIVE if silent else 0.6))
            if received is None and silent and not self.cancel.thrown:
                for name in silent:  # not even its shell started
                    self._mark_lost(name, TimedOut("no answer in time"))
                pending -= silent
                silent.clear()
                continue
            if received is None:
                break
            name, event = received
            silent.discard(name)
            if event is None or isinstance(event, HostError):
                self._mark_untested(name, event)
                listeners.pop(name, None)
                pending.discard(name)
            elif listener := port_pairs.parse_listener(event):
                listeners[name] = listener
                self.identities[name] = listener.identity
                pending.discard(name)
                if listener.port is None:
                    self.untested[name] = listener.reason or "it can't listen on its address"
        for name in started - listeners.keys():
            self.untested.setdefault(name, "it started too late")
        return listeners

    def _connect(
        self, dialog: ScriptDialog, listeners: Mapping[str, port_pairs.PortListener], tokens: Mapping[str, str]
    ) -> None:
        targets: dict[str, list[str]] = defaultdict(list)
        for source, target in port_pairs.pairs_to_try([host.name for host in self.hosts]):
            if source in listeners and target in listeners and listeners[target].port is not None:
                targets[source].append(target)
        seconds = max(0.2, min(for_many(CHECKED_CONNECTION, len(self.hosts)), self.at(0.88) - time.monotonic()))
        for source, names in targets.items():
            order = [(self.internal[name], tokens[name], listeners[name]) for name in names]
            dialog.send(source, port_pairs.connect_order(order, seconds))
        until = time.monotonic() + seconds + self.budget * 0.04
        waiting = {(source, target) for source, names in targets.items() for target in names}
        ended: set[str] = set()
        while waiting and (received := dialog.receive(until)) is not None:
            name, event = received
            if event is None or isinstance(event, HostError):
                ended.add(name)
                self._mark_untested(name, event)
                waiting = {pair for pair in waiting if name not in pair}
            elif (result := port_pairs.parse_result(event)) and result[0] < len(targets[name]):
                pair = (name, targets[name][result[0]])
                self.results[pair] = result[1]
                waiting.discard(pair)
        if not self.cancel.thrown:
            self.results.update(dict.fromkeys(waiting, port_pairs.ConnectionResult("timeout")))
        self.results = {pair: result for pair, result in self.results.items() if not ended & set(pair)}

    def _connect_from_outside(
        self, listeners: Mapping[str, port_pairs.PortListener], tokens: Mapping[str, str]
    ) -> frozenset[str]:
        until = self.at(0.88)

        def is_open(host: Host) -> bool:
            address, port = self.internal[host.name], listeners[host.name].port
            source = source_towards(address)
            if port is None or source is None or port_pairs.is_inside(source, address, self.facts.values()):
                return False
            kind, _ = connect(address, port, tokens[host.name], max(0.1, until - time.monotonic()))
            return kind == "ok"

        found = on_hosts(is_open, [host for host in self.hosts if host.name in listeners], until)
        return frozenset(name for name, result in found.items() if result is True)

    def _mark_untested(self, name: str, error: HostError | None) -> None:
        if error is not None and error.status == "unreachable":
            self._mark_lost(name, error)
        else:
            self.untested.setdefault(name, error.reason if error else "its port probe exited early")


def _lost_hosts(lost: Mapping[str, HostError]) -> tuple[Finding, ...]:
    return merge_findings(
        Finding(
            "network.unreachable",
            "fail",
            f"It answered at first and then stopped: {error.reason}. A run with this host would fail in the same way.",
            error.fix
            if error.fix and "--timeout" not in error.fix
            else "check the machine and its cable, then run ipexctl doctor again",
            (name,),
        )
        for name, error in lost.items()
    )


def _logins_untested(error: HostError, node0: Host) -> Finding:
    message = f"Logins from node0 to the other hosts, which mpirun needs, were not checked: {error.reason}."
    return Finding("network.login_untested", "info", message, "", (node0.name,))
