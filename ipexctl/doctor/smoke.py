"""Measures memory, matrix products and the network for a few seconds, and finds hosts slower than their peers.

The figures are rough: good enough to compare hosts with one another.
"""

from __future__ import annotations

import re
import secrets
import time
from collections import defaultdict
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from ipexctl.doctor.finding import Finding
from ipexctl.doctor.scripts import ScriptDialog, results_until, script, text_of
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.fanout import run_in_background
from ipexctl.remote.outcome import HostError
from ipexctl.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ipexctl.facts.facts import Facts
    from ipexctl.hosts.host import Host
    from ipexctl.remote.command import Command
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

_FIGURE: Final = re.compile(r"(memory|fp32|bf16) ([0-9]{1,18}) (.+)")
_LINK: Final = re.compile(r"link ([0-9]{1,6}) ([0-9]{1,12}(?:\.[0-9]{1,3})?) ([0-9]{1,18})")


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
            sessions, lost = _sessions(pool, hosts, started + budget * 0.25)
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
    """`memory N HOW`, `fp32 N HOW`, `bf16 N HOW`; None for any other line."""
    match = _FIGURE.fullmatch(line.rstrip())
    kind = next((kind for kind in _MEASUREMENTS if match and kind == match[1]), None)
    if match is None or kind is None or int(match[2]) == 0:
        return None
    return kind, Figure(float(match[2]), printable(match[3]))


def parse_link(line: str, names: Sequence[str]) -> LinkSmoke | None:
    """`link N MICROSECONDS BITS/S` or `lost N WHY`; None for any other line."""
    if match := _LINK.fullmatch(line.rstrip()):
        if int(match[1]) < len(names):
            return LinkSmoke(names[int(match[1])], float(match[2]) / 1e6, float(match[3]))
        return None
    words = line.split(" ", 2)
    if len(words) == 3 and words[0] == "lost" and re.fullmatch("[0-9]{1,6}", words[1]) and int(words[1]) < len(names):
        return LinkSmoke(names[int(words[1])], reason=printable(words[2].strip()))
    return None


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


def _sessions(pool: SessionPool, hosts: Sequence[Host], until: float) -> tuple[dict[str, Session], dict[str, str]]:
    futures = {host.name: run_in_background(partial(pool.session, host), f"doctor-{host.name}") for host in hosts}
    found = results_until(futures, until)
    lost = {name: result.reason for name, result in found.items() if isinstance(result, HostError)}
    return {name: result for name, result in found.items() if not isinstance(result, HostError)}, lost


def _pythons(facts: Facts | None, *, with_torch: bool) -> list[str]:
    """Paths of Pythons: environments with torch first, then those of PATH."""
    if facts is None:
        return []
    of_envs = [f"{env.path}/bin/python" for env in facts.software.envs if env.runs and env.torch] if with_torch else []
    found = [python.path for python in facts.software.pythons if python.minor and python.minor >= (3, 8)]
    return [*of_envs[:2], *found[:3]]


def _python(name: str, *words: str, facts: Facts | None, label: str, with_torch: bool = False) -> Command:
    pythons = _pythons(facts, with_torch=with_torch)
    return script("smoke.sh", text_of(name), str(len(pythons)), *pythons, *words, label=label)


def _hosts(
    hosts: Sequence[Host],
    sessions: Mapping[str, Session],
    facts: Mapping[str, Facts],
    cancel: Cancel,
    until: float,
    lost: Mapping[str, str],
) -> tuple[HostSmoke, ...]:
    """Measure every host; figures that are late are missing."""
    figures: dict[str, dict[Measurement, Figure]] = {host.name: {} for host in hosts}
    missing: dict[str, list[str]] = {host.name: [lost[host.name]] if host.name in lost else [] for host in hosts}
    dialog = ScriptDialog(cancel)
    left = max(0.2, until - time.monotonic())
    for name, session in sessions.items():
        there = facts.get(name)
        cores = (there.cpu.allowed if there else None) or 1
        words = (str(cores), f"{left * 0.8:.2f}")
        command = _python("smoke_host.py", *words, facts=there, label="measure memory and compute", with_torch=True)
        dialog.start(name, session, command, timeout=left)
    while (received := dialog.receive(until)) is not None:
        name, line = received
        if isinstance(line, HostError):
            missing[name].append(f"the measurement didn't end: {line.reason}")
        elif isinstance(line, str) and (figure := parse_figure(line)):
            figures[name][figure[0]] = figure[1]
        elif isinstance(line, str) and line.startswith("none "):
            missing[name].append(printable(line[5:].strip()))
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
    life = str(round(budget) + 2)
    for host in hosts:
        name = host.name
        if name not in sessions or name not in internal:
            continue
        words = ("ask", life) if host == hosts[0] else ("serve", internal[name], tokens[name], life)
        command = _python("smoke_link.py", *words, facts=facts.get(name), label="measure the network")
        dialog.start(name, sessions[name], command, timeout=budget)


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
    open_ports: dict[str, int] = {}
    while len(open_ports) < len(dialog.running - {node0}):
        received = dialog.receive(min(until, time.monotonic() + 1))
        if received is None:
            break
        name, line = received
        if isinstance(line, HostError):
            found[name] = LinkSmoke(name, reason=line.reason)
        elif isinstance(line, str) and (port := re.fullmatch(r"port ([0-9]{1,5})", line.rstrip())):
            open_ports[name] = int(port[1])
            found[name] = LinkSmoke(name, reason="no answer in time")
        elif isinstance(line, str) and line.startswith(("none ", "lost - ")):
            found[name] = LinkSmoke(name, reason=printable(line.removeprefix("none ").removeprefix("lost - ")))
    names = [name for name in others if name in open_ports and name in dialog.running]
    _measure_links(dialog, node0, names, internal, open_ports, tokens, until, found)
    # Other traffic may have slowed a short stream: measure slow links once more.
    bits = {name: link.bits for name, link in found.items() if link.bits is not None}
    again = dict(found)
    _measure_links(dialog, node0, list(behind(bits, SLOW_LINK)), internal, open_ports, tokens, until, again)
    return tuple(max(found[name], again[name], key=lambda link: link.bits or 0.0) for name in others)


def _measure_links(
    dialog: ScriptDialog,
    node0: str,
    names: Sequence[str],
    internal: Mapping[str, str],
    open_ports: Mapping[str, int],
    tokens: Mapping[str, str],
    until: float,
    found: dict[str, LinkSmoke],
) -> None:
    """Measure these links in turn."""
    # The last one may take a moment longer to time out.
    seconds = min(0.6 * len(names), until - time.monotonic() - 0.3)
    if not names or node0 not in dialog.running or seconds <= 0.05:
        return
    orders = [f"to {n} {internal[name]} {open_ports[name]} {tokens[name]}\n" for n, name in enumerate(names)]
    dialog.send(node0, ("".join(orders) + f"go {seconds:.2f}\n").encode())
    waiting = set(names)
    while waiting and (received := dialog.receive(until)) is not None:
        name, line = received
        if name == node0 and not isinstance(line, str):
            return
        if name == node0 and isinstance(line, str) and (link := parse_link(line, names)):
            found[link.name] = link
            waiting.discard(link.name)
