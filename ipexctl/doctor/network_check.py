"""Check the network between hosts by connections to a high port, from each host to each other, or to some of them if
there are many (`pairs_to_try`).

The check ends within 8 s, later for many, busy or slow hosts; whatever has no result by then is reported as not tested.
"""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from ipexctl.doctor import port_pairs
from ipexctl.doctor.finding import Finding, merge_findings
from ipexctl.facts.facts import Facts, slowness
from ipexctl.hosts.host import Host
from ipexctl.limits import CHECKED_CONNECTION, NETWORK_CHECK, SLOW_SHELL, SLOWEST_SHELL
from ipexctl.node.common.clock import stretched
from ipexctl.node.common.fix import Fix
from ipexctl.node.network.ports import connect
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import SessionPool
from ipexctl.remote.fanout import run_in_background
from ipexctl.remote.local import source_towards
from ipexctl.remote.node_call import script_command
from ipexctl.remote.outcome import HostError, TimedOut
from ipexctl.remote.script_dialog import ScriptDialog, on_hosts, open_sessions, results_until
from ipexctl.remote.session import Session


def for_many(seconds: float, hosts: int) -> float:
    """Return a limit in seconds, scaled up for more than 64 hosts."""
    return seconds * max(1.0, hosts / 64)


_NO_LONGER_ANSWERS: Final = "it stopped answering"
_TOO_SLOW: Final = f"its login shell takes more than {SLOWEST_SHELL:g} s to start a command"
_ALIVE: Final = 0.35
"""Share of the budget after which a silent host counts as lost."""


class NetworkReport(NamedTuple):
    """What the network check found."""

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
    budget: float | None = None,
    delays: Mapping[str, float] = {},
) -> NetworkReport:
    """Try the ports and return the findings. `internal`: host → its address for other hosts. `budget`: seconds for all
    of it; None to choose them.

    `delays`: host → seconds that its login shell takes to start a command. Two such starts must fit into the time
    before a silent host counts as lost, and hosts with very slow shells are not tested.
    """
    started = time.monotonic()
    times = max(stretched(1.0), slowness(facts.values()))
    slow = frozenset(host.name for host in hosts if delays.get(host.name, 0) > SLOWEST_SHELL * times)
    if budget is None:
        slowest = max((delay for delay in delays.values() if SLOW_SHELL <= delay <= SLOWEST_SHELL * times), default=0)
        budget = times * for_many(NETWORK_CHECK, len(hosts)) + 2 * slowest / _ALIVE
    cancel = Cancel()
    try:
        with pool.cancel.waking(cancel.throw):
            check = _NetworkCheck(pool, hosts, internal, facts, started, budget, cancel, slow, times)
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
    started: float
    budget: float
    cancel: Cancel
    slow: frozenset[str] = frozenset()
    times: float = 1.0
    """By which the hosts' load makes all of it longer."""
    sessions: dict[str, Session] = field(default_factory=dict)
    lost: dict[str, HostError] = field(default_factory=dict)
    untested: dict[str, str] = field(default_factory=dict)
    results: dict[port_pairs.Pair, port_pairs.ConnectionResult] = field(default_factory=dict)
    open_outside: frozenset[str] = frozenset()

    def at(self, share: float) -> float:
        return self.started + self.budget * share

    def report(self) -> NetworkReport:
        """Do the check and return what it found."""
        if len(self.hosts) < 2:
            return NetworkReport(seconds=time.monotonic() - self.started)
        self._reach_hosts()
        self._try_ports()
        findings = [*_lost_hosts(self.lost)]
        findings += port_pairs.port_findings(self.results, self.untested, self.internal, self.facts)
        return NetworkReport(tuple(findings), time.monotonic() - self.started, self.open_outside)

    def _reach_hosts(self) -> None:
        """Open a session to each host. A host that does not answer in time is lost."""
        self.untested.update(dict.fromkeys(self.slow, _TOO_SLOW))
        hosts = [host for host in self.hosts if host.name not in self.slow]
        self.sessions, errors = open_sessions(self.pool, hosts, self.at(_ALIVE))
        for name, error in errors.items():
            self._mark_lost(name, error)

    def _mark_lost(self, name: str, error: HostError) -> None:
        self.sessions.pop(name, None)
        self.lost[name] = error
        self.untested[name] = _NO_LONGER_ANSWERS

    def _try_ports(self) -> None:
        """Let all hosts listen, connect to each other, and report. Meanwhile the control machine connects to them from
        outside."""
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
        """Return host → its listener, for hosts that answered in time. A host that does not even begin is lost; any
        other is noted as not tested."""
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
                pending.discard(name)
                if listener.port is None:
                    self.untested[name] = listener.reason or "it can't listen on its address"
        for name in started - listeners.keys():
            self.untested.setdefault(name, "it started too late")
        return listeners

    def _connect(
        self, dialog: ScriptDialog, listeners: Mapping[str, port_pairs.PortListener], tokens: Mapping[str, str]
    ) -> None:
        """Let the hosts connect, and keep the results. What has no result in time counts as a timeout."""
        targets: dict[str, list[str]] = defaultdict(list)
        for source, target in port_pairs.pairs_to_try([host.name for host in self.hosts]):
            if source in listeners and target in listeners and listeners[target].port is not None:
                targets[source].append(target)
        seconds = max(
            0.2, min(self.times * for_many(CHECKED_CONNECTION, len(self.hosts)), self.at(0.88) - time.monotonic())
        )
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
        """Return the hosts whose ports this machine reaches from outside of their network."""
        until = self.at(0.88)

        def is_open(host: Host) -> bool:
            address, port = self.internal[host.name], listeners[host.name].port
            source = source_towards(address)
            if port is None or source is None or port_pairs.is_inside(source, address, self.facts.values()):
                return False
            kind, _ = connect(address, port, tokens[host.name], max(0.1, until - time.monotonic()))
            return kind == "ok"

        results = on_hosts(is_open, [host for host in self.hosts if host.name in listeners], until)
        return frozenset(name for name, result in results.items() if result is True)

    def _mark_untested(self, name: str, error: HostError | None) -> None:
        if error is not None and error.status == "unreachable":
            self._mark_lost(name, error)
        else:
            self.untested.setdefault(name, error.reason if error else "its port probe exited early")


def _lost_hosts(lost: Mapping[str, HostError]) -> tuple[Finding, ...]:
    """Return the findings about hosts that stopped answering."""
    return merge_findings(
        Finding(
            "network.unreachable",
            "fail",
            f"It answered at first and then stopped: {error.reason}. A run with this host would fail in the same way.",
            error.fix
            if error.fix and "--timeout" not in error.fix
            else Fix("check the machine and its cable, then run `ipexctl doctor` again"),
            (name,),
        )
        for name, error in lost.items()
    )
