"""A few seconds of measuring: memory, matrix products, and the network from node0 to each; and who falls behind.

The figures are rough. They are there to find the machine that is slower than its peers, not to praise any.
"""

from __future__ import annotations

import re
import secrets
import time
from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Final, Literal

from ipexctl.doctor.finding import Finding
from ipexctl.doctor.scripts import Concurrent, ScriptDialog, script, text_of
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.outcome import HostError
from ipexctl.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ipexctl.facts.facts import Facts
    from ipexctl.hosts.host import Host
    from ipexctl.remote.command import Command
    from ipexctl.remote.session import Session
    from ipexctl.remote.session_pool import SessionPool

What = Literal["memory", "fp32", "bf16"]
_WHAT: Final[tuple[What, ...]] = ("memory", "fp32", "bf16")
_UNITS: Final = {"memory": "GB/s", "fp32": "GFLOP/s", "bf16": "GFLOP/s"}
_CALLED: Final = {"memory": "memory copies", "fp32": "fp32 matrix products", "bf16": "bf16 matrix products"}
PEERS: Final = 3
"""With fewer others of its model nobody can say which of them is the slow one."""
SLOW: Final = 0.8
SLOW_LINK: Final = 0.5
"""A stream of a fraction of a second varies more than a processor does."""

_FIGURE: Final = re.compile(r"(memory|fp32|bf16) ([0-9]{1,18}) (.+)")
_LINK: Final = re.compile(r"link ([0-9]{1,6}) ([0-9]{1,12}(?:\.[0-9]{1,3})?) ([0-9]{1,18})")


@dataclass(frozen=True, slots=True)
class Figure:
    value: float
    """Bytes or operations a second."""
    how: str
    """By what it was measured: only figures measured alike can be compared."""


@dataclass(frozen=True, slots=True)
class HostSmoke:
    """One host's own figures, and what couldn't be measured there."""

    name: str
    figures: Mapping[What, Figure] = field(default_factory=dict, hash=False)
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LinkSmoke:
    """node0 and one other host."""

    name: str
    round_trip: float | None = None
    """Seconds there and back, the median."""
    bits: float | None = None
    """A second, from node0."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SmokeReport:
    findings: tuple[Finding, ...] = ()
    hosts: tuple[HostSmoke, ...] = ()
    links: tuple[LinkSmoke, ...] = ()
    seconds: float = 0.0


def measure(
    pool: SessionPool,
    hosts: Sequence[Host],
    internal: Mapping[str, str],
    facts: Mapping[str, Facts],
    *,
    budget: float = 5.0,
) -> SmokeReport:
    """Each host by itself, all at once; then node0 to each of the others, one after the other."""
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
    return SmokeReport(findings(measured, links, facts), measured, links, time.monotonic() - started)


def read_figure(line: str) -> tuple[What, Figure] | None:
    """`memory N HOW`, `fp32 N HOW`, `bf16 N HOW`; None for any other line."""
    match = _FIGURE.fullmatch(line.rstrip())
    what = next((what for what in _WHAT if match and what == match[1]), None)
    if match is None or what is None or int(match[2]) == 0:
        return None
    return what, Figure(float(match[2]), printable(match[3]))


def read_link(line: str, names: Sequence[str]) -> LinkSmoke | None:
    """`link N MICROSECONDS BITS/S` or `lost N WHY`; None for any other line."""
    if match := _LINK.fullmatch(line.rstrip()):
        if int(match[1]) < len(names):
            return LinkSmoke(names[int(match[1])], float(match[2]) / 1e6, float(match[3]))
        return None
    words = line.split(" ", 2)
    if len(words) == 3 and words[0] == "lost" and re.fullmatch("[0-9]{1,6}", words[1]) and int(words[1]) < len(names):
        return LinkSmoke(names[int(words[1])], reason=printable(words[2].strip()))
    return None


def findings(hosts: Sequence[HostSmoke], links: Sequence[LinkSmoke], facts: Mapping[str, Facts]) -> tuple[Finding, ...]:
    said = [*_slow_hosts(hosts, facts), *_slow_links(links)]
    if summary := _summary(hosts, links):
        names = tuple(host.name for host in hosts if host.figures)
        said.append(Finding("smoke.measured", "info", summary, hosts=names))
    return (*said, *_missing(hosts, links))


def behind(values: Mapping[str, float], least: float) -> dict[str, float]:
    """Who is below that share of the median of all others, and at what share it is. Few others say nothing."""
    shares = {}
    if len(values) > PEERS:
        for name, value in values.items():
            middle = median(other for peer, other in values.items() if peer != name)
            if middle > 0 and value < least * middle:
                shares[name] = value / middle
    return shares


def _slow_hosts(hosts: Sequence[HostSmoke], facts: Mapping[str, Facts]) -> list[Finding]:
    alike: dict[tuple[What, str, str | None, int | None], dict[str, float]] = defaultdict(dict)
    for host in hosts:
        cpu = facts[host.name].cpu if host.name in facts else None
        if cpu is not None and cpu.model_name:
            for what, figure in host.figures.items():
                alike[what, figure.how, cpu.model_name, cpu.allowed][host.name] = figure.value
    slow: dict[str, list[str]] = defaultdict(list)
    for (what, *_), values in alike.items():
        for name, share in behind(values, SLOW).items():
            slow[name].append(f"{_CALLED[what]} {100 - 100 * share:.0f} % slower ({_shown(what, values[name])})")
    if not slow:
        return []
    each = "; ".join((f"{name}: " if len(slow) > 1 else "") + ", ".join(parts) for name, parts in slow.items())
    message = (
        f"It is slower than its peers with the same CPU: {each}. All ranks wait for the slowest at every step, so it"
        " holds the whole job back."
    )
    fix = (
        "is something else running there (top)? else look at its power limit and governor, its cooling, and whether all"
        " memory modules are there (sudo dmidecode -t memory); or leave it out: --limit '!NAME'"
    )
    return [Finding("smoke.slow", "warn", message, fix, tuple(slow))]


def _slow_links(links: Sequence[LinkSmoke]) -> list[Finding]:
    bits = {link.name: link.bits for link in links if link.bits is not None}
    slow = behind(bits, SLOW_LINK)
    if not slow:
        return []
    each = ", ".join(f"{name} {bits[name] / 1e9:.3g} Gbit/s" for name in slow)
    middle = median(value for name, value in bits.items() if name not in slow)
    message = (
        f"From node0 much less gets through to it than to the others ({each}; the others {middle / 1e9:.3g} Gbit/s)."
        " Gradients go round all hosts, so every step waits for this link."
    )
    fix = "look at the link's speed and errors there (ethtool IFACE; ip -s link), at the cable and the switch's port"
    return [Finding("smoke.slow_link", "warn", message, fix, tuple(slow))]


def _summary(hosts: Sequence[HostSmoke], links: Sequence[LinkSmoke]) -> str:
    parts = []
    for what in _WHAT:
        by_how: dict[str, list[float]] = defaultdict(list)
        for host in hosts:
            if what in host.figures:
                by_how[host.figures[what].how].append(host.figures[what].value)
        for how, values in by_how.items():
            parts.append(f"{_CALLED[what]} {_span([_shown(what, value) for value in sorted(values)])} {how}")
    trips = [link.round_trip for link in links if link.round_trip is not None]
    bits = [link.bits for link in links if link.bits is not None]
    if trips and bits:
        parts.append(
            f"node0 to the others {_span([f'{trip * 1e6:.0f} µs' for trip in sorted(trips)])} there and back,"
            f" {_span([f'{speed / 1e9:.3g} Gbit/s' for speed in sorted(bits)])}"
        )
    return f"Measured: {'; '.join(parts)}." if parts else ""


def _span(shown: Sequence[str]) -> str:
    low, high = shown[0], shown[-1]
    return low if low == high else f"{low.split(' ')[0]} to {high}"


def _shown(what: str, value: float) -> str:
    return f"{value / 1e9:.3g} {_UNITS[what]}"


def _missing(hosts: Iterable[HostSmoke], links: Iterable[LinkSmoke]) -> list[Finding]:
    grouped: dict[str, list[str]] = defaultdict(list)
    for host in hosts:
        for reason in host.missing:
            grouped[f"Not measured: {reason}."].append(host.name)
    for link in links:
        if link.reason:
            grouped[f"Not measured what gets through to it from node0: {link.reason}."].append(link.name)
    return [Finding("smoke.not_measured", "info", message, hosts=tuple(names)) for message, names in grouped.items()]


def _sessions(pool: SessionPool, hosts: Sequence[Host], until: float) -> tuple[dict[str, Session], dict[str, str]]:
    def opening(host: Host) -> Callable[[], Session]:
        return lambda: pool.session(host)

    found = Concurrent({host.name: opening(host) for host in hosts}).results(until)
    lost = {name: result.reason for name, result in found.items() if isinstance(result, HostError)}
    return {name: result for name, result in found.items() if not isinstance(result, HostError)}, lost


def _pythons(facts: Facts | None, *, with_torch: bool) -> list[str]:
    """Where a Python is: of our environments first those that hold torch, then what PATH has."""
    if facts is None:
        return []
    ours = [f"{env.path}/bin/python" for env in facts.software.envs if env.runs and env.torch] if with_torch else []
    found = [python.path for python in facts.software.pythons if python.minor and python.minor >= (3, 8)]
    return [*ours[:2], *found[:3]]


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
    """What each host's own figures are, as far as they have come by then."""
    figures: dict[str, dict[What, Figure]] = {host.name: {} for host in hosts}
    missing: dict[str, list[str]] = {host.name: [lost[host.name]] if host.name in lost else [] for host in hosts}
    dialog = ScriptDialog(cancel)
    left = max(0.2, until - time.monotonic())
    for name, session in sessions.items():
        there = facts.get(name)
        cores = (there.cpu.allowed if there else None) or 1
        words = (str(cores), f"{left * 0.8:.2f}")
        command = _python("smoke_host.py", *words, facts=there, label="measure memory and compute", with_torch=True)
        dialog.start(name, session, command, timeout=left)
    while (heard := dialog.receive(until)) is not None:
        name, said = heard
        if isinstance(said, HostError):
            missing[name].append(f"the measurement didn't end: {said.reason}")
        elif isinstance(said, str) and (figure := read_figure(said)):
            figures[name][figure[0]] = figure[1]
        elif isinstance(said, str) and said.startswith("none "):
            missing[name].append(printable(said[5:].strip()))
    for name in dialog.running:
        missing[name].append("the measurement took too long")
    for name, have in figures.items():
        if not have and not missing[name]:
            missing[name].append("the measurement said nothing")
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
    """Start what node0 will talk to, and what does so on node0; they wait until they are told."""
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
    found = {name: LinkSmoke(name, reason="it couldn't be asked") for name in others}
    found |= {name: LinkSmoke(name, reason="it has no address for it") for name in others if name not in internal}
    open_ports: dict[str, int] = {}
    while len(open_ports) < len(dialog.running - {node0}):
        heard = dialog.receive(min(until, time.monotonic() + 1))
        if heard is None:
            break
        name, said = heard
        if isinstance(said, HostError):
            found[name] = LinkSmoke(name, reason=said.reason)
        elif isinstance(said, str) and (port := re.fullmatch(r"port ([0-9]{1,5})", said.rstrip())):
            open_ports[name] = int(port[1])
            found[name] = LinkSmoke(name, reason="no answer in time")
        elif isinstance(said, str) and said.startswith(("none ", "lost - ")):
            found[name] = LinkSmoke(name, reason=printable(said.removeprefix("none ").removeprefix("lost - ")))
    names = [name for name in others if name in open_ports and name in dialog.running]
    _ask(dialog, node0, names, internal, open_ports, tokens, until, found)
    # A short stream may have met with something else on its way: who looks slow is asked once more.
    bits = {name: link.bits for name, link in found.items() if link.bits is not None}
    again = dict(found)
    _ask(dialog, node0, list(behind(bits, SLOW_LINK)), internal, open_ports, tokens, until, again)
    return tuple(max(found[name], again[name], key=lambda link: link.bits or 0.0) for name in others)


def _ask(
    dialog: ScriptDialog,
    node0: str,
    names: Sequence[str],
    internal: Mapping[str, str],
    open_ports: Mapping[str, int],
    tokens: Mapping[str, str],
    until: float,
    found: dict[str, LinkSmoke],
) -> None:
    """One round of node0's: each of these in turn."""
    # The last of them may take a moment more to be given up.
    seconds = min(0.6 * len(names), until - time.monotonic() - 0.3)
    if not names or node0 not in dialog.running or seconds <= 0.05:
        return
    orders = [f"to {n} {internal[name]} {open_ports[name]} {tokens[name]}\n" for n, name in enumerate(names)]
    dialog.send(node0, ("".join(orders) + f"go {seconds:.2f}\n").encode())
    waiting = set(names)
    while waiting and (heard := dialog.receive(until)) is not None:
        name, said = heard
        if name == node0 and not isinstance(said, str):
            return
        if name == node0 and isinstance(said, str) and (link := read_link(said, names)):
            found[link.name] = link
            waiting.discard(link.name)
