"""The second phase of the examination: whether the hosts reach one another, as a run will want them to.

It asks and collects, within a budget of time. What ports mean is `ports`', what ssh says is trust's to explain.
"""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ipexctl.doctor import ports
from ipexctl.doctor.finding import Finding
from ipexctl.doctor.logins import log_in, login_findings, seen_there, unseen, why_not, without_answer
from ipexctl.doctor.scripts import Concurrent, ScriptDialog, script, text_of
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.outcome import HostError
from ipexctl.trust.login_errors import explain
from ipexctl.trust.plan import ssh_names_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ipexctl.facts.facts import Facts
    from ipexctl.hosts.host import Host
    from ipexctl.remote.command import Command
    from ipexctl.remote.session import Session
    from ipexctl.remote.session_pool import SessionPool
    from ipexctl.trust.host_state import HostState
    from ipexctl.trust.login_errors import LoginAttempt, LoginDiagnosis

CONNECT: Final = 3.0
"""Seconds for one connection between two hosts."""


@dataclass(frozen=True, slots=True)
class NetworkReport:
    """What was found between the hosts."""

    findings: tuple[Finding, ...] = ()
    logins: Mapping[str, str] = field(default_factory=dict, hash=False)
    """For each node but node0 "ok", or why node0 can't log into it."""
    pairs_tested: int = 0
    pairs_failed: int = 0
    """Of those tested."""
    pairs_not_tested: int = 0
    seconds: float = 0.0


def check_network(
    pool: SessionPool,
    hosts: Sequence[Host],
    internal: Mapping[str, str],
    *,
    facts: Mapping[str, Facts],
    home: str,
    budget: float = 8.0,
) -> NetworkReport:
    """Log in from node0 everywhere, and try a high port between every two hosts, both at once.

    Whatever hangs, it is over after `budget` seconds; what hasn't answered by then is said to be so.
    """
    started = time.monotonic()
    cancel = Cancel()
    try:
        with pool.cancel.waking(cancel.throw):
            return _NetworkCheck(pool, hosts, internal, facts, home, started, budget, cancel).report()
    finally:
        # Whatever is still under way on a host is ended there, by threads that nobody waits for.
        cancel.throw()


@dataclass(slots=True)
class _HostReached:
    """A host that answered first of all."""

    session: Session
    seen: HostState | None


class _NetworkCheck:
    """What is known in one look at the network."""

    def __init__(
        self,
        pool: SessionPool,
        hosts: Sequence[Host],
        internal: Mapping[str, str],
        facts: Mapping[str, Facts],
        home: str,
        started: float,
        budget: float,
        cancel: Cancel,
    ) -> None:
        self.pool, self.internal, self.facts, self.home, self.cancel = pool, internal, facts, home, cancel
        self.hosts = tuple(hosts)
        self.started, self.budget = started, budget
        self.arrived: dict[str, _HostReached] = {}
        self.gone: dict[str, HostError] = {}
        self.untested: dict[str, str] = {}
        self.results: dict[ports.Pair, ports.Result] = {}

    def at(self, share: float) -> float:
        """The moment when that share of the budget is used up."""
        return self.started + self.budget * share

    def report(self) -> NetworkReport:
        if len(self.hosts) < 2:
            return NetworkReport(seconds=time.monotonic() - self.started)
        self._arrive()
        asked = Concurrent({"logins": self._log_in})
        self._try_ports()
        logins = asked.results(self.at(0.97))["logins"]
        whys, silent = ({}, frozenset[str]()) if isinstance(logins, HostError) else self._judge(logins)
        findings = [*_gone(self.gone)]
        # What is gone altogether is said once.
        findings += login_findings({name: why for name, why in whys.items() if name not in self.gone})
        findings += ports.findings(self.results, self.untested, silent, self.internal, self.facts)
        if isinstance(logins, HostError) and self.hosts[0].name not in self.gone:
            findings.append(_no_logins(logins, self.hosts[0]))
        planned = len(ports.pairs_to_try([host.name for host in self.hosts]))
        tested = [result for result in self.results.values() if result.tells]
        return NetworkReport(
            findings=tuple(findings),
            logins={} if isinstance(logins, HostError) else {n: whys[n].reason if n in whys else "ok" for n in logins},
            pairs_tested=len(tested),
            pairs_failed=sum(result.kind != "ok" for result in tested),
            pairs_not_tested=planned - len(tested),
            seconds=time.monotonic() - self.started,
        )

    def _arrive(self) -> None:
        """A session to each, and what trust wants to know of it. It is where hosts that have died show."""
        until = self.at(0.35)

        def arrive(host: Host) -> _HostReached:
            session = self.pool.session(host)
            seen: HostState | None
            try:
                seen = seen_there(self.pool, host, self.home, timeout=max(0.1, until - time.monotonic()))
            except HostError as error:
                if error.status == "unreachable":
                    raise
                seen = None
            return _HostReached(session, seen)

        for name, result in Concurrent(_each(self.hosts, arrive)).results(until).items():
            if isinstance(result, HostError):
                self.gone[name] = result
                self.untested[name] = "it no longer answers"
            else:
                self.arrived[name] = result

    def _log_in(self) -> dict[str, LoginAttempt]:
        node0, *others = self.hosts
        if node0.name not in self.arrived:
            raise self.gone[node0.name]
        words = ssh_names_for(others, self.internal)
        if not words:
            return {}
        seconds = self.at(0.9) - time.monotonic()
        return log_in(self.arrived[node0.name].session, words, self._config(), seconds=seconds, cancel=self.cancel)

    def _config(self) -> str | None:
        """trust's ssh config on node0, where it has been there."""
        seen = self.arrived[self.hosts[0].name].seen
        return f"{seen.ipexctl_home}/ssh/config" if seen and seen.config else None

    def _judge(self, logins: Mapping[str, LoginAttempt]) -> tuple[dict[str, LoginDiagnosis], frozenset[str]]:
        """LoginDiagnosis each login failed that did, and the hosts of which the network itself gave no answer."""
        node0 = self.hosts[0]
        at_node0 = self.arrived[node0.name].seen
        seen = {name: there.seen for name, there in self.arrived.items() if there.seen is not None}
        by_name = {host.name: host for host in self.hosts}
        addresses = {name: there.addresses for name, there in seen.items()}
        whys: dict[str, LoginDiagnosis] = {}
        for name, login in logins.items():
            there = seen.get(name)
            if login.code == 0 and (there is None or login.reached(there)):
                continue
            why = why_not(name, login, at_node0, there, self.internal[name])
            known = addresses if there else {}
            whys[name] = why or explain(login, there or unseen(by_name[name]), self.internal[name], known)
        silent = {name for name in whys if without_answer(logins[name])}
        if logins and len(silent) == len(logins):
            silent.add(node0.name)
        return whys, frozenset(silent)

    def _try_ports(self) -> None:
        talk = ScriptDialog(self.cancel)
        tokens = {name: secrets.token_hex(8) for name in self.arrived}
        for name, there in self.arrived.items():
            if name not in self.internal:
                self.untested[name] = "it has no address that the others could use"
                continue
            command = _ports_command(self.internal[name], tokens[name], self.facts.get(name), self.budget)
            talk.start(name, there.session, command, timeout=max(0.1, self.at(1) - time.monotonic()))
        try:
            stations = self._stations(talk)
            self._connect(talk, stations, tokens)
        finally:
            talk.end(min(self.at(0.97), time.monotonic() + 1))

    def _stations(self, talk: ScriptDialog) -> dict[str, ports.PortListener]:
        """Those that are ready, once all have said so or it has become too late."""
        stations: dict[str, ports.PortListener] = {}
        late = talk.present
        while len(stations) < len(talk.present | stations.keys()):
            heard = talk.hear(self.at(0.6))
            if heard is None:
                break
            name, said = heard
            if not isinstance(said, str):
                self._lost(name, said)
                stations.pop(name, None)
            elif station := ports.read_ready(said):
                stations[name] = station
                if station.port is None:
                    self.untested[name] = station.why or "it can't listen there"
        for name in late - stations.keys():
            self.untested.setdefault(name, "it was too slow to begin with it")
        return stations

    def _connect(
        self, talk: ScriptDialog, stations: Mapping[str, ports.PortListener], tokens: Mapping[str, str]
    ) -> None:
        planned = ports.pairs_to_try([host.name for host in self.hosts])
        targets: dict[str, list[str]] = defaultdict(list)
        for source, target in planned:
            both = stations.get(source), stations.get(target)
            if both[0] and both[0].connects and both[1] and both[1].port is not None and target in self.internal:
                targets[source].append(target)
        seconds = max(0.2, min(CONNECT, self.at(0.88) - time.monotonic()))
        for source, names in targets.items():
            told = [(self.internal[name], tokens[name], stations[name]) for name in names]
            talk.tell(source, ports.orders(told, seconds))
        until = time.monotonic() + seconds + self.budget * 0.04
        waiting = {(source, target) for source, names in targets.items() for target in names}
        lost: set[str] = set()
        while waiting and (heard := talk.hear(until)) is not None:
            name, said = heard
            if not isinstance(said, str):
                lost.add(name)
                self._lost(name, said)
                waiting = {pair for pair in waiting if name not in pair}
            elif (result := ports.read_result(said)) and result[0] < len(targets[name]):
                pair = (name, targets[name][result[0]])
                self.results[pair] = result[1]
                waiting.discard(pair)
        if not self.cancel.thrown:
            # Plain sh doesn't tell of what hangs.
            self.results.update(dict.fromkeys(waiting, ports.Result("timeout")))
        self.results = {pair: result for pair, result in self.results.items() if not lost & set(pair)}

    def _lost(self, name: str, error: HostError | None) -> None:
        if error is not None and error.status == "unreachable":
            self.gone[name] = error
            self.untested[name] = "it no longer answers"
        else:
            self.untested[name] = error.reason if error else "what was to listen there ended too soon"


def _gone(gone: Mapping[str, HostError]) -> list[Finding]:
    grouped: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, error in gone.items():
        grouped[error.reason, error.fix].append(name)
    return [
        Finding(
            "network.unreachable",
            "fail",
            f"It answered a moment ago and doesn't any more: {reason}. A run with it would stop like this too.",
            fix if fix and "--timeout" not in fix else "look at the machine and its cable, then run it again",
            tuple(names),
        )
        for (reason, fix), names in grouped.items()
    ]


def _no_logins(error: HostError, node0: Host) -> Finding:
    message = f"Not tested whether node0 gets into the other hosts, as mpirun does: {error.reason}."
    return Finding("network.login_untested", "info", message, "", (node0.name,))


def _each(hosts: Sequence[Host], work: Callable[[Host], _HostReached]) -> dict[str, Callable[[], _HostReached]]:
    def bound(host: Host) -> Callable[[], _HostReached]:
        return lambda: work(host)

    return {host.name: bound(host) for host in hosts}


def _ports_command(address: str, token: str, facts: Facts | None, budget: float) -> Command:
    pythons = facts.software.pythons if facts else ()
    known = [python.path for python in pythons if python.minor and python.minor >= (3, 7)][:2]
    words = [text_of("ports.py"), text_of("ports.pl"), address, token, str(round(budget) + 2), *known]
    return script("ports.sh", *words, label="listen, and connect to the other hosts")
