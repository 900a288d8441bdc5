"""Measures memory, matrix products and the network for a few seconds, and finds hosts slower than their peers.

The figures are rough: good enough to compare hosts with one another.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from ipexctl.doctor.finding import Finding
from ipexctl.doctor.ports import PortListener, connect_order, parse_event, parse_listener
from ipexctl.doctor.script_dialog import ScriptDialog, open_sessions
from ipexctl.node.common.records import as_number
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.node_call import agent_command, agent_zip
from ipexctl.remote.outcome import HostError
from ipexctl.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ipexctl.facts.facts import Facts
    from ipexctl.hosts.host import Host
    from ipexctl.remote.session import Session
    from ipexctl.remote.session_pool import SessionPool

Measurement = Literal["memory", "fp32", "bf16"]
_MEASUREMENTS: Final[tuple[Measurement, ...]] = ("memory", "fp32", "bf16")
_UNITS: Final = {"memory": "GB/s", "fp32": "GFLOP/s", "bf16": "GFLOP/s"}
_NAMES: Final = {"memory": "memory copies", "fp32": "fp32 matrix products", "bf16": "bf16 matrix products"}
PEERS: Final = 3
"""With fewer peers it is unclear which of them is slow."""
SLOW: Final = 0.8
SLOW_LINK: Final = 0.5
"""A short stream varies more than a processor."""


class Figure(NamedTuple):
    value: float
    """Bytes or operations per second."""
    method: str
    """How it was measured: only figures of one method are compared."""


class HostSmoke(NamedTuple):
    """The figures of one host, and reasons for missing ones."""

    name: str
    figures: Mapping[Measurement, Figure] = {}
    missing: tuple[str, ...] = ()


class LinkSmoke(NamedTuple):
    """The link from node0 to another host."""

    name: str
    round_trip: float | None = None
    """Seconds, the median."""
    bits: float | None = None
    """Per second, from node0."""
    reason: str = ""


class SmokeReport(NamedTuple):
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
    """Measure all hosts at once, then the links from node0 one after the other."""
    started = time.monotonic()
    cancel = Cancel()
    try:
        with pool.cancel.waking(cancel.throw):
            sessions, lost = open_sessions(pool, hosts, started + budget * 0.25)
            dialog = ScriptDialog(cancel)
            try:
                tokens = {name: secrets.token_hex(8) for name in sessions}
                if len(hosts) > 1:
                    _serve(dialog, hosts, sessions, internal, facts, tokens, budget)
                measured = _hosts(hosts, sessions, facts, cancel, started + budget * 0.65, lost)
                links = _links(dialog, hosts, internal, tokens, started + budget * 0.95)
            finally:
                dialog.end(min(started + budget, time.monotonic() + 0.5))
    finally:
        cancel.throw()
    return SmokeReport(smoke_findings(measured, links, facts), measured, links)


def parse_figure(line: str) -> tuple[Measurement, Figure] | None:
    """The event `figure`; None for any other line."""
    event = parse_event(line)
    kind = next((kind for kind in _MEASUREMENTS if kind == event.get("kind")), None)
    value = as_number(event.get("value")) or 0.0
    if event.get("event") != "figure" or kind is None or value <= 0:
        return None
    return kind, Figure(value, printable(str(event.get("how"))))


def parse_link(line: str, names: Sequence[str]) -> LinkSmoke | None:
    """The event `result`; None for any other line."""
    event = parse_event(line)
    number = event.get("number")
    if event.get("event") != "result" or type(number) is not int or not 0 <= number < len(names):
        return None
    trip, bits = as_number(event.get("round_trip")) or 0.0, as_number(event.get("bits")) or 0.0
    if trip <= 0 or bits <= 0:
        return LinkSmoke(names[number], reason=printable(str(event.get("reason") or "it has no result")))
    return LinkSmoke(names[number], trip, bits)


def smoke_findings(
    hosts: Sequence[HostSmoke], links: Sequence[LinkSmoke], facts: Mapping[str, Facts]
) -> tuple[Finding, ...]:
    findings = [*_slow_hosts(hosts, facts), *_slow_links(links)]
    if summary := _summary(hosts, links):
        names = tuple(host.name for host in hosts if host.figures)
        findings.append(Finding("smoke.measured", "info", summary, hosts=names))
    return (*findings, *_missing(hosts, links))


def behind(values: Mapping[str, float], least: float) -> dict[str, float]:
    """The hosts below that share of the median of all others, with their share; none if there are few others."""
    shares = {}
    if len(values) > PEERS:
        for name, value in values.items():
            usual = median(other for peer, other in values.items() if peer != name)
            if usual > 0 and value < least * usual:
                shares[name] = value / usual
    return shares


def _slow_hosts(hosts: Sequence[HostSmoke], facts: Mapping[str, Facts]) -> list[Finding]:
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
    bits = {link.name: link.bits for link in links if link.bits is not None}
    slow = behind(bits, SLOW_LINK)
    if not slow:
        return []
    details = ", ".join(f"{name} {bits[name] / 1e9:.3g} Gbit/s" for name in slow)
    usual = median(value for name, value in bits.items() if name not in slow)
    message = (
        f"The link from node0 to it is much slower than to the others ({details}; the others {usual / 1e9:.3g} Gbit/s)."
        " Gradients pass all hosts, so every step waits for this link."
    )
    fix = "look at the link's speed and errors there (ethtool IFACE; ip -s link), at the cable and the switch's port"
    return [Finding("smoke.slow_link", "warn", message, fix, tuple(slow))]


def _summary(hosts: Sequence[HostSmoke], links: Sequence[LinkSmoke]) -> str:
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
    return f"Measured: {'; '.join(parts)}." if parts else ""


def _span(shown: Sequence[str]) -> str:
    low, high = shown[0], shown[-1]
    return low if low == high else f"{low.split(' ')[0]} to {high}"


def _shown(kind: str, value: float) -> str:
    return f"{value / 1e9:.3g} {_UNITS[kind]}"


def _missing(hosts: Iterable[HostSmoke], links: Iterable[LinkSmoke]) -> list[Finding]:
    grouped: dict[str, list[str]] = defaultdict(list)
    for host in hosts:
        for reason in host.missing:
            grouped[f"Not measured: {reason}."].append(host.name)
    for link in links:
        if link.reason:
            grouped[f"The link from node0 to it was not measured: {link.reason}."].append(link.name)
    return [Finding("smoke.not_measured", "info", message, hosts=tuple(names)) for message, names in grouped.items()]


def _start(
    dialog: ScriptDialog,
    name: str,
    session: Session,
    facts: Facts | None,
    action: str,
    request: Mapping[str, object],
    timeout: float,
) -> None:
    """Start the agent with the Python of an environment with torch if there is one, else with one of the system."""
    envs = facts.software.envs if facts else ()
    pythons = [f"{env.path}/bin/python" for env in envs if env.runs and env.torch]
    pythons += facts.software.agent_pythons if facts else ()
    command = agent_command("smoke.speed", action, python=next(iter(pythons), ""), label="measure speed")
    stdin = agent_zip("smoke") + json.dumps(request).encode() + b"\n"
    dialog.start(name, session, command, timeout=timeout, stdin=stdin)


def _hosts(
    hosts: Sequence[Host],
    sessions: Mapping[str, Session],
    facts: Mapping[str, Facts],
    cancel: Cancel,
    until: float,
    lost: Mapping[str, HostError],
) -> tuple[HostSmoke, ...]:
    """Measure every host; figures that are late are missing."""
    figures: dict[str, dict[Measurement, Figure]] = {host.name: {} for host in hosts}
    missing: dict[str, list[str]] = {host.name: [lost[host.name].reason] if host.name in lost else [] for host in hosts}
    dialog = ScriptDialog(cancel)
    left = max(0.2, until - time.monotonic())
    for name, session in sessions.items():
        there = facts.get(name)
        cores = (there.cpu.allowed if there else None) or 1
        request = {"cores": cores, "seconds": left * 0.8, "life": left + 3}
        _start(dialog, name, session, there, "host", request, left)
    while (received := dialog.receive(until)) is not None:
        name, line = received
        if isinstance(line, HostError):
            missing[name].append(f"the measurement didn't end: {line.reason}")
        elif isinstance(line, str) and (figure := parse_figure(line)):
            figures[name][figure[0]] = figure[1]
        elif isinstance(line, str) and (event := parse_event(line)).get("event") in ("none", "failed"):
            missing[name].append(printable(str(event.get("reason"))))
    for name in dialog.running:
        missing[name].append("the measurement took too long")
    for name, have in figures.items():
        if not have and not missing[name]:
            missing[name].append("the measurement had no result")
    return tuple(HostSmoke(host.name, figures[host.name], tuple(missing[host.name])) for host in hosts)


def _serve(
    dialog: ScriptDialog,
    hosts: Sequence[Host],
    sessions: Mapping[str, Session],
    internal: Mapping[str, str],
    facts: Mapping[str, Facts],
    tokens: Mapping[str, str],
    budget: float,
) -> None:
    """Start the listeners, and the program on node0 that connects to them when it gets its orders."""
    for host in hosts:
        name = host.name
        if name in sessions and name in internal:
            action = "connect" if host == hosts[0] else "serve"
            request = {"address": internal[name], "token": tokens[name], "life": round(budget) + 2}
            _start(dialog, name, sessions[name], facts.get(name), action, request, budget)


def _links(
    dialog: ScriptDialog,
    hosts: Sequence[Host],
    internal: Mapping[str, str],
    tokens: Mapping[str, str],
    until: float,
) -> tuple[LinkSmoke, ...]:
    node0, *others = [host.name for host in hosts]
    found = {name: LinkSmoke(name, reason="it could not be measured") for name in others}
    found |= {name: LinkSmoke(name, reason="it has no address for training") for name in others if name not in internal}
    listeners: dict[str, PortListener] = {}
    while dialog.running - {node0} - listeners.keys():
        received = dialog.receive(min(until, time.monotonic() + 1))
        if received is None:
            break
        name, line = received
        if isinstance(line, HostError):
            found[name] = LinkSmoke(name, reason=line.reason)
        elif isinstance(line, str) and (listener := parse_listener(line)):
            listeners[name] = listener
            found[name] = LinkSmoke(name, reason=listener.reason or "no answer in time")
    names = [name for name in others if name in dialog.running and name in listeners and listeners[name].port]
    measure_links(dialog, node0, names, internal, listeners, tokens, until, found)
    # Other traffic may have slowed a short stream: measure slow links once more.
    bits = {name: link.bits for name, link in found.items() if link.bits is not None}
    again = dict(found)
    measure_links(dialog, node0, list(behind(bits, SLOW_LINK)), internal, listeners, tokens, until, again)
    return tuple(max(found[name], again[name], key=lambda link: link.bits or 0.0) for name in others)


def measure_links(
    dialog: ScriptDialog,
    node0: str,
    names: Sequence[str],
    internal: Mapping[str, str],
    listeners: Mapping[str, PortListener],
    tokens: Mapping[str, str],
    until: float,
    found: dict[str, LinkSmoke],
) -> None:
    """Measure these links in turn."""
    # The last one may take a moment longer to time out.
    seconds = min(0.6 * len(names), until - time.monotonic() - 0.3)
    if not names or node0 not in dialog.running or seconds <= 0.05:
        return
    dialog.send(node0, connect_order([(internal[name], tokens[name], listeners[name]) for name in names], seconds))
    waiting = set(names)
    while waiting and (received := dialog.receive(until)) is not None:
        name, line = received
        if name == node0 and not isinstance(line, str):
            return
        if name == node0 and isinstance(line, str) and (link := parse_link(line, names)):
            found[link.name] = link
            waiting.discard(link.name)
