"""Measure memory, matrix products and the network for seconds, to find slow hosts: `doctor --smoke`.

All hosts measure at the same time; then the links from node0 are measured one after another, because they share its
interface. A host is slow below 80 % of the others' median, a link below half, and only if at least four hosts, or four
links, can be compared.
"""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Final, Literal, NamedTuple, get_args

from ipexctl.doctor.finding import Finding, merge_findings
from ipexctl.doctor.port_pairs import Target, connect_order, parse_listener
from ipexctl.doctor.product_speeds import ProductSpeeds
from ipexctl.facts.facts import Facts
from ipexctl.hosts.host import Host
from ipexctl.hosts.nodeset import fold
from ipexctl.node.common.medians import medians_of_others
from ipexctl.node.common.records import as_number
from ipexctl.node.network.speed import LinkServerRequest, SmokeRequest, SpeedRequest
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import SessionPool
from ipexctl.remote.node_call import AgentPlace, agent_and_request, agent_command
from ipexctl.remote.outcome import HostError
from ipexctl.remote.reply import Reply
from ipexctl.remote.script_dialog import ScriptDialog, open_sessions
from ipexctl.remote.session import Session
from ipexctl.text import LOOK_AT_LINK

Measurement = Literal["memory", "fp32", "bf16", "rounded"]
_MEASUREMENTS: Final[tuple[Measurement, ...]] = get_args(Measurement)
_UNITS: Final = {"memory": "GB/s", "fp32": "GFLOP/s", "bf16": "GFLOP/s", "rounded": "GFLOP/s"}
_NAMES: Final = {
    "memory": "memory copies",
    "fp32": "fp32 matrix products",
    "bf16": "bf16 matrix products",
    "rounded": "fp32 matrix products with bf16 inputs",
}
PEERS: Final = 3
"""With fewer peers it is unclear which host is slow."""
LOADING: Final = 20.0
"""Seconds more for hosts that are importing torch: it is 5 GB on a cold disk, or the host is busy."""
SLOW: Final = 0.8
SLOW_LINK: Final = 0.5
"""Lower than for processors, because a short stream varies more."""


class Figure(NamedTuple):
    """One measurement of a host."""

    value: float
    """Bytes or operations per second."""
    method: str
    """Only figures of the same method are compared."""
    is_busy: bool = False
    """True if other programs used the host meanwhile."""


class HostSmoke(NamedTuple):
    """What was measured on one host."""

    name: str
    figures: Mapping[Measurement, Figure] = {}
    missing: tuple[str, ...] = ()
    """Why measurements are missing; empty if none is."""

    @property
    def speeds(self) -> ProductSpeeds | None:
        """Return the speeds of matrix products to remember; None if they were not measured, or if other programs used
        the host meanwhile."""
        fp32, rounded = self.figures.get("fp32"), self.figures.get("rounded")
        if fp32 is None or rounded is None or fp32.is_busy or rounded.is_busy:
            return None
        return ProductSpeeds(fp32.value, rounded.value)


class LinkSmoke(NamedTuple):
    """What was measured of the link from node0 to one host."""

    name: str
    round_trip: float | None = None
    """Seconds; None if not measured."""
    bits: float | None = None
    """Bits per second; None if not measured."""
    reason: str = ""
    """Why it was not measured; empty if it was."""


class SmokeReport(NamedTuple):
    """What `doctor --smoke` measured, and the findings about it."""

    findings: tuple[Finding, ...] = ()
    hosts: tuple[HostSmoke, ...] = ()
    links: tuple[LinkSmoke, ...] = ()


def measure(
    pool: SessionPool,
    hosts: Sequence[Host],
    internal: Mapping[str, str],
    facts: Mapping[str, Facts],
    *,
    budget: float = 5.0,
) -> SmokeReport:
    """Measure all hosts and links, and return the findings with the measurements. Hosts that still import torch get 20
    s more than `budget`."""
    started = time.monotonic()
    cancel = Cancel()
    try:
        with pool.cancel.waking(cancel.throw):
            sessions, lost = open_sessions(pool, hosts, started + budget * 0.25)
            smoke = _Smoke(hosts, internal, facts, sessions)
            dialog = ScriptDialog(cancel)
            try:
                if len(hosts) > 1:
                    smoke.serve(dialog, budget)
                measured = smoke.measure_hosts(ScriptDialog(cancel), started + budget * 0.65, lost)
                links = smoke.measure_links(dialog, max(started + budget * 0.95, time.monotonic() + budget * 0.25))
            finally:
                dialog.end(min(max(started + budget, time.monotonic() + 0.2), time.monotonic() + 0.5))
    finally:
        cancel.throw()
    return SmokeReport(smoke_findings(measured, links, facts), measured, links)


def parse_figure(event: Reply) -> tuple[Measurement, Figure] | None:
    """Read a host's report on a measurement; None for another event, and for a value that is not positive."""
    kind = next((kind for kind in _MEASUREMENTS if kind == event.get("kind")), None)
    value = as_number(event.get("value")) or 0.0
    if event.get("event") != "figure" or kind is None or value <= 0:
        return None
    return kind, Figure(value, str(event.get("how")), event.get("is_busy") is True)


def parse_link(event: Reply, names: Sequence[str]) -> LinkSmoke | None:
    """Read node0's report on a link; None for another event. Without a positive result it says the reason. `names`:
    hosts in the order in which node0 was told to connect."""
    number = event.get("number")
    if event.get("event") != "result" or type(number) is not int or not 0 <= number < len(names):
        return None
    trip, bits = as_number(event.get("round_trip")) or 0.0, as_number(event.get("bits")) or 0.0
    if trip <= 0 or bits <= 0:
        return LinkSmoke(names[number], reason=str(event.get("reason") or "it has no result"))
    return LinkSmoke(names[number], trip, bits)


def smoke_findings(
    hosts: Sequence[HostSmoke], links: Sequence[LinkSmoke], facts: Mapping[str, Facts]
) -> tuple[Finding, ...]:
    """Return the findings: slow hosts and links, a summary of what was measured, and what was not measured."""
    findings = [*_slow_hosts(hosts, facts), *_slow_links(links)]
    if summary := _summary(hosts, links):
        names = tuple(host.name for host in hosts if host.figures)
        findings.append(Finding("smoke.measured", "info", summary, hosts=names))
    return (*findings, *_missing(hosts, links))


def behind(values: Mapping[str, float], minimum: float) -> dict[str, float]:
    """Return host → its share of the others' median, for hosts below the `minimum` share; empty if there are too few
    others."""
    shares = {}
    if len(values) > PEERS:
        for name, usual in medians_of_others(values).items():
            if usual > 0 and values[name] < minimum * usual:
                shares[name] = values[name] / usual
    return shares


def _slow_hosts(hosts: Sequence[HostSmoke], facts: Mapping[str, Facts]) -> list[Finding]:
    """Return the finding about hosts that are slower than others with the same CPU, by figures of the same method."""
    comparable: dict[tuple[Measurement, str, str | None, int | None], dict[str, float]] = defaultdict(dict)
    for host in hosts:
        cpu = facts[host.name].cpu if host.name in facts else None
        if cpu is not None and cpu.model_name:
            for kind, figure in host.figures.items():
                comparable[kind, figure.method, cpu.model_name, cpu.allowed][host.name] = figure.value
    slow: dict[str, list[str]] = defaultdict(list)
    for (kind, *_), values in comparable.items():
        for name, share in behind(values, SLOW).items():
            slow[name].append(f"{_NAMES[kind]} {100 - 100 * share:.0f} % slower ({_shown(kind, values[name])})")
    if not slow:
        return []
    details = "; ".join((f"{name}: " if len(slow) > 1 else "") + ", ".join(parts) for name, parts in slow.items())
    message = (
        f"It is slower than its peers with the same CPU: {details}. All ranks wait for the slowest at every step, so it"
        " slows the whole job."
    )
    fix = (
        "look for other programs there (top), then at its power limit, governor and cooling, and for missing memory"
        " modules (sudo dmidecode -t memory); or leave it out: --limit '!NAME'"
    )
    return [Finding("smoke.slow", "warn", message, fix, tuple(slow))]


def _slow_links(links: Sequence[LinkSmoke]) -> list[Finding]:
    """Return the finding about links from node0 that are slower than the others."""
    bits = {link.name: link.bits for link in links if link.bits is not None}
    slow = behind(bits, SLOW_LINK)
    if not slow:
        return []
    details = ", ".join(f"{name} {bits[name] / 1e9:.3g} Gbit/s" for name in slow)
    usual = median(value for name, value in bits.items() if name not in slow)
    message = (
        f"The link from node0 to it is much slower than the other links ({details}; the other links {usual / 1e9:.3g} "
        "Gbit/s). Gradients pass through all hosts, so every step waits for this link."
    )
    return [Finding("smoke.slow_link", "warn", message, LOOK_AT_LINK.format(there=" there"), tuple(slow))]


def _summary(hosts: Sequence[HostSmoke], links: Sequence[LinkSmoke]) -> str:
    """Return a sentence with all that was measured; empty if nothing was."""
    parts = []
    for kind in _MEASUREMENTS:
        by_method: dict[str, list[float]] = defaultdict(list)
        for host in hosts:
            if kind in host.figures:
                by_method[host.figures[kind].method].append(host.figures[kind].value)
        for method, values in by_method.items():
            parts.append(f"{_NAMES[kind]} {_span([_shown(kind, value) for value in sorted(values)])} {method}")
    trips = [link.round_trip for link in links if link.round_trip is not None]
    bits = [link.bits for link in links if link.bits is not None]
    if trips and bits:
        parts.append(
            f"node0 to the others {_span([f'{trip * 1e6:.0f} µs' for trip in sorted(trips)])} round trip,"
            f" {_span([f'{speed / 1e9:.3g} Gbit/s' for speed in sorted(bits)])}"
        )
    busy = [host.name for host in hosts if any(figure.is_busy for figure in host.figures.values())]
    if busy:
        parts.append(f"{fold(busy)} had other work meanwhile, so this may be too little, and is not kept")
    return f"Measured: {'; '.join(parts)}." if parts else ""


def _span(shown: Sequence[str]) -> str:
    low, high = shown[0], shown[-1]
    return low if low == high else f"{low.split(' ')[0]} to {high}"


def _shown(kind: str, value: float) -> str:
    return f"{value / 1e9:.3g} {_UNITS[kind]}"


def _missing(hosts: Iterable[HostSmoke], links: Iterable[LinkSmoke]) -> tuple[Finding, ...]:
    """Return the findings about what was not measured, and why."""
    reasons = [(host.name, f"Not measured: {reason}.") for host in hosts for reason in host.missing]
    reasons += [
        (link.name, f"The link from node0 to it was not measured: {link.reason}.") for link in links if link.reason
    ]
    return merge_findings(Finding("smoke.not_measured", "info", reason, hosts=(name,)) for name, reason in reasons)


class _Smoke:
    def __init__(
        self,
        hosts: Sequence[Host],
        internal: Mapping[str, str],
        facts: Mapping[str, Facts],
        sessions: Mapping[str, Session],
    ) -> None:
        self._names = [host.name for host in hosts]
        self._internal = internal
        self._facts = facts
        self._sessions = sessions
        self._tokens = {name: secrets.token_hex(8) for name in sessions}

    def _start(self, dialog: ScriptDialog, name: str, action: str, timeout: float, request: SmokeRequest) -> None:
        """Start a measurement on a host, with a Python that has torch if there is one."""
        software = self._facts.get(name, Facts()).software
        pythons = [f"{env.path}/bin/python" for env in software.envs if env.runs and env.torch]
        pythons += software.agent_pythons
        command = agent_command("network.speed", action, AgentPlace(next(iter(pythons), "")), label="measure speed")
        stdin = agent_and_request("network.speed", request)
        dialog.start(name, self._sessions[name], command, timeout=timeout, stdin=stdin)

    def measure_hosts(self, dialog: ScriptDialog, until: float, lost: Mapping[str, HostError]) -> tuple[HostSmoke, ...]:
        """Let all hosts measure at the same time; return what they report in time."""
        figures: dict[str, dict[Measurement, Figure]] = {name: {} for name in self._names}
        missing = {name: [lost[name].reason] if name in lost else [] for name in self._names}
        left = max(0.2, until - time.monotonic())
        for name in self._sessions:
            cores = self._facts.get(name, Facts()).cpu.allowed or 1
            request: SpeedRequest = {"cores": cores, "seconds": left * 0.8, "lifetime": int(left + LOADING) + 3}
            self._start(dialog, name, "host", left + LOADING, request)
        loading = set[str]()
        while (received := dialog.receive(until + LOADING * bool(dialog.running & loading))) is not None:
            name, event = received
            if isinstance(event, Reply) and event.get("event") == "loading":
                loading.add(name)
            elif isinstance(event, HostError):
                missing[name].append(f"the measurement did not finish: {event.reason}")
            elif event is not None and (figure := parse_figure(event)):
                figures[name][figure[0]] = figure[1]
            elif event is not None and event.get("event") in ("none", "failed"):
                missing[name].append(str(event.get("reason")))
        for name in dialog.running:
            missing[name].append("the measurement took too long")
        for name, have in figures.items():
            if not have and not missing[name]:
                missing[name].append("the measurement had no result")
        return tuple(HostSmoke(name, figures[name], tuple(missing[name])) for name in self._names)

    def serve(self, dialog: ScriptDialog, budget: float) -> None:
        """Start the programs that measure links: servers on the hosts, and the client on node0."""
        for name in self._names:
            if name in self._sessions and name in self._internal:
                action = "connect" if name == self._names[0] else "serve"
                address, token = self._internal[name], self._tokens[name]
                seconds = budget + LOADING
                request: LinkServerRequest = {"address": address, "token": token, "lifetime": round(seconds) + 2}
                self._start(dialog, name, action, seconds, request)

    def measure_links(self, dialog: ScriptDialog, until: float) -> tuple[LinkSmoke, ...]:
        """Measure the links from node0, and slow ones a second time, because other traffic may have slowed a short
        stream."""
        node0, *others = self._names
        no_address, unknown = "it has no address for training", "it could not be measured"
        by_host = {name: LinkSmoke(name, reason=unknown if name in self._internal else no_address) for name in others}
        targets: dict[str, Target] = {}
        answered: set[str] = set()
        while dialog.running - {node0} - answered:
            received = dialog.receive(min(until, time.monotonic() + 1))
            if received is None:
                break
            name, event = received
            if isinstance(event, HostError):
                by_host[name] = LinkSmoke(name, reason=event.reason)
            elif event is not None and (listener := parse_listener(event)):
                answered.add(name)
                by_host[name] = LinkSmoke(name, reason=listener.reason or "no answer in time")
                if listener.port:
                    targets[name] = (self._internal[name], self._tokens[name], listener)
        targets = {name: targets[name] for name in others if name in dialog.running and name in targets}
        by_host |= measure_links(dialog, node0, targets, until)
        # Other traffic may have slowed a short stream: measure slow links again.
        bits = {name: link.bits for name, link in by_host.items() if link.bits is not None}
        slow = {name: targets[name] for name in behind(bits, SLOW_LINK)}
        remeasured = by_host | measure_links(dialog, node0, slow, until)
        return tuple(max(by_host[name], remeasured[name], key=lambda link: link.bits or 0.0) for name in others)


def measure_links(
    dialog: ScriptDialog, node0: str, targets: Mapping[str, Target], until: float
) -> dict[str, LinkSmoke]:
    """Let node0 measure its links to these targets one after another; return host → result, for those that arrived in
    time."""
    by_host: dict[str, LinkSmoke] = {}
    names = list(targets)
    # The last link may take a moment longer to time out.
    seconds = min(0.6 * len(names), until - time.monotonic() - 0.3)
    if not names or node0 not in dialog.running or seconds <= 0.05:
        return by_host
    dialog.send(node0, connect_order(list(targets.values()), seconds))
    while len(by_host) < len(names) and (received := dialog.receive(until)) is not None:
        name, event = received
        if name != node0:
            continue
        if event is None or isinstance(event, HostError):
            break
        if link := parse_link(event, names):
            by_host[link.name] = link
    return by_host
