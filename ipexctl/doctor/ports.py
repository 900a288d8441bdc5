"""Which ports are tried between which hosts, and what came of it. Pure: `network` does the asking.

What is asked and answered on a host is `scripts/ports.*`; what a firewall is told lives here too.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from ipexctl.doctor.finding import Finding
from ipexctl.hosts.nodeset import fold
from ipexctl.text import printable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from ipexctl.facts.facts import Facts

Pair = tuple[str, str]
"""From, to."""
Kind = Literal["ok", "refused", "timeout", "noroute", "denied", "wrong", "mute", "error"]
_KINDS: Final[tuple[Kind, ...]] = ("ok", "refused", "timeout", "noroute", "denied", "wrong", "mute", "error")
_BLOCKED: Final = ("refused", "timeout", "noroute", "denied")
ALL_PAIRS_UP_TO: Final = 16
_USUAL_PORTS: Final = (32768, 60999)


@dataclass(frozen=True, slots=True)
class Result:
    """How one connection went."""

    kind: Kind
    text: str = ""

    @property
    def tells(self) -> bool:
        """Whether it says anything about the way between the two."""
        return self.kind not in ("mute", "error")

    @property
    def blocked(self) -> bool:
        return self.kind in _BLOCKED


@dataclass(frozen=True, slots=True)
class PortListener:
    """What a host's script said of itself: where it listens, if it does, and whether it can connect."""

    port: int | None
    gaps: bool = False
    """It serves one caller at a time, so that one who is refused should try again."""
    connects: bool = True
    tool: str = ""
    why: str = ""
    """Why it doesn't listen."""


def read_ready(line: str) -> PortListener | None:
    """`ready PORT GAPS CONNECTS TOOL WHY…`; None for any other line."""
    words = line.split(" ", 5)
    if len(words) < 5 or words[0] != "ready":
        return None
    port = int(words[1]) if words[1].isascii() and words[1].isdigit() and len(words[1]) < 6 else None
    why = printable(words[5].strip()) if len(words) > 5 else ""
    return PortListener(port, words[2] == "1", words[3] == "1", printable(words[4]), why)


def read_result(line: str) -> tuple[int, Result] | None:
    """`result N KIND TEXT…`; None for any other line."""
    words = line.split(" ", 3)
    if len(words) < 3 or words[0] != "result" or not (words[1].isascii() and words[1].isdigit() and len(words[1]) < 7):
        return None
    kind = next((kind for kind in _KINDS if kind == words[2]), None)
    if kind is None:
        return None
    return int(words[1]), Result(kind, printable(words[3].strip()) if len(words) > 3 else "")


def pairs_to_try(names: Sequence[str]) -> tuple[Pair, ...]:
    """Everybody to everybody, up to sixteen; above that a ring, and the first to and from all, as a run begins."""
    if len(names) <= ALL_PAIRS_UP_TO:
        return tuple((a, b) for a in names for b in names if a != b)
    ring = list(zip(names, [*names[1:], names[0]], strict=True))
    star = [(names[0], name) for name in names[1:]]
    return tuple(dict.fromkeys(pair for a, b in [*star, *ring] for pair in ((a, b), (b, a))))


def orders(targets: Sequence[tuple[str, str, PortListener]], seconds: float) -> str:
    """What a host is told: for each target its address, its token and its station; then for how long to try."""
    lines = [
        f"to {number} {address} {station.port} {token} {int(station.gaps)}\n"
        for number, (address, token, station) in enumerate(targets)
    ]
    return "".join(lines) + f"go {seconds:.1f}\n"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The shortest story that explains every blocked way."""

    closed_in: tuple[str, ...] = ()
    """Nobody gets through to these."""
    closed_out: tuple[str, ...] = ()
    """These get through to nobody."""
    ways: tuple[Pair, ...] = ()
    """What neither explains."""


def diagnose(results: Mapping[Pair, Result]) -> Diagnosis:
    """Blame hosts where that explains more than blaming single ways; a closed door sooner than one that can't leave."""
    inward, outward = _explain(results, inward_first=True), _explain(results, inward_first=False)
    return min(inward, outward, key=lambda it: len(it.closed_in) + len(it.closed_out) + len(it.ways))


def _explain(results: Mapping[Pair, Result], *, inward_first: bool) -> Diagnosis:
    telling = {pair: result.blocked for pair, result in results.items() if result.tells}
    blamed: dict[bool, tuple[str, ...]] = {}
    names = tuple(dict.fromkeys(name for pair in results for name in pair))
    for inward in (inward_first, not inward_first):
        ways: dict[str, list[bool]] = defaultdict(list)
        for pair, blocked in telling.items():
            ways[pair[int(inward)]].append(blocked)
        blamed[inward] = tuple(name for name in names if name in ways and all(ways[name]))
        telling = {pair: blocked for pair, blocked in telling.items() if pair[int(inward)] not in blamed[inward]}
    return Diagnosis(blamed[True], blamed[False], tuple(pair for pair, blocked in telling.items() if blocked))


def findings(
    results: Mapping[Pair, Result],
    untested: Mapping[str, str],
    silent: Collection[str],
    internal: Mapping[str, str],
    facts: Mapping[str, Facts],
) -> tuple[Finding, ...]:
    """All that the ports have to say. `untested`: hosts that didn't listen, and why; `silent`: those of which node0's
    ssh got no answer on the same network either."""
    found = diagnose(results)
    away = [name for name in found.closed_in if name in silent]
    closed = tuple(name for name in found.closed_in if name not in silent)
    said: list[Finding] = []
    if away:
        said.append(_away(away, internal))
    if closed:
        said.append(_closed_in(closed, results, internal, facts))
    if found.closed_out:
        message = (
            "It gets through to no high port of any other host, though others do. In training every rank connects to"
            " others, so the job would hang at its start."
        )
        fix = (
            "look for rules on outgoing connections on it (sudo iptables -S OUTPUT; sudo nft list ruleset) and for the"
            " route it takes: ip route get ADDRESS"
        )
        said.append(Finding("network.port_closed", "fail", message, fix, found.closed_out))
    if found.ways:
        said.append(_blocked_ways(found.ways))
    said += _foreign(results, internal)
    said += _untested(results, untested)
    return tuple(said)


def _away(hosts: Sequence[str], internal: Mapping[str, str]) -> Finding:
    where = f" ({internal[hosts[0]]})" if len(hosts) == 1 else ""
    message = (
        f"The other hosts get no answer from its internal address{where}, neither ssh nor another port. We reach it,"
        " but they don't, and the ranks talk to one another over these addresses."
    )
    fix = "is that the right network? name another with --iface NAME or CIDR, or give internal=ADDRESS in the hostfile"
    return Finding("network.unreachable", "fail", message, fix, tuple(hosts))


def _closed_in(
    closed: tuple[str, ...], results: Mapping[Pair, Result], internal: Mapping[str, str], facts: Mapping[str, Facts]
) -> Finding:
    kinds = {result.kind for (_, to), result in results.items() if to in closed and result.blocked}
    how = {"timeout": "get no answer", "refused": "are refused"}.get(next(iter(kinds)) if len(kinds) == 1 else "")
    message = (
        f"Connections from other hosts to a high port of it {how or 'fail'}: a firewall lets only some ports through."
        " MPI, gloo and oneCCL open connections between all ranks on ports like these, so training would hang at its"
        " start, without an error."
    )
    return Finding("network.port_closed", "fail", message, open_ports(closed, internal, facts), closed)


def _blocked_ways(ways: Sequence[Pair]) -> Finding:
    targets: dict[str, list[str]] = defaultdict(list)
    for source, target in ways:
        targets[source].append(target)
    shown = [f"{source} → {fold(names)}" for source, names in targets.items()]
    more = f" and {len(shown) - 8} more" if len(shown) > 8 else ""
    message = (
        f"These hosts don't get through to one another on high ports, while others do: {', '.join(shown[:8])}{more}."
        " Ranks on them would wait for each other for ever."
    )
    fix = (
        "look for a firewall or a security group between them, or leave hosts out: --limit '!NAME'; ip route get"
        " ADDRESS shows the way that is taken"
    )
    return Finding("network.port_closed", "fail", message, fix, tuple(dict.fromkeys(n for way in ways for n in way)))


def _foreign(results: Mapping[Pair, Result], internal: Mapping[str, str]) -> list[Finding]:
    """Somebody answered, and it wasn't who we meant."""
    hosts = tuple(dict.fromkeys(to for (_, to), result in results.items() if result.kind == "wrong"))
    if not hosts:
        return []
    where = ", ".join(dict.fromkeys(internal[name] for name in hosts if name in internal))
    message = (
        f"Something else answers at its internal address ({where}): another machine with the same address, or a bridge"
        " inside the host that asks. Ranks would talk to the wrong machine."
    )
    fix = "choose the network the hosts share: --iface NAME or CIDR, or internal=ADDRESS in the hostfile"
    return [Finding("network.wrong_host", "fail", message, fix, hosts)]


def _untested(results: Mapping[Pair, Result], untested: Mapping[str, str]) -> list[Finding]:
    reasons = dict(untested)
    for (source, target), result in results.items():
        if result.kind == "mute":
            reasons.setdefault(target, "connections are accepted, but nobody speaks in time")
        elif result.kind == "error":
            reasons.setdefault(source, f"it can't connect ({result.text or 'no reason given'})")
    grouped: dict[str, list[str]] = defaultdict(list)
    for name, reason in reasons.items():
        grouped[reason].append(name)
    return [
        Finding(
            "network.port_untested",
            "info",
            f"Not tested whether other hosts get through to it: {reason}.",
            "python3, perl or nc there makes the test possible" if reason.startswith("it has none of") else "",
            tuple(names),
        )
        for reason, names in grouped.items()
    ]


def open_ports(hosts: Sequence[str], internal: Mapping[str, str], facts: Mapping[str, Facts]) -> str:
    """What to type on those hosts, in the words of the firewall they have."""
    ranges = [there.network.port_range or _USUAL_PORTS for name in hosts if (there := facts.get(name))]
    low = min((first for first, _ in ranges), default=_USUAL_PORTS[0])
    high = max((last for _, last in ranges), default=_USUAL_PORTS[1])
    source, version = _network_of(hosts, internal, facts)
    kinds = {kind for name in hosts if (there := facts.get(name)) for kind in there.security.firewall}
    commands = []
    if "firewalld" in kinds:
        commands.append(
            f"sudo firewall-cmd --permanent --add-rich-rule='rule family=ipv{version} source address={source}"
            f" port port={low}-{high} protocol=tcp accept' && sudo firewall-cmd --reload"
        )
    if "ufw" in kinds:
        commands.append(f"sudo ufw allow proto tcp from {source} to any port {low}:{high}")
    if not commands:
        tables = "ip6tables" if version == 6 else "iptables"
        commands.append(f"sudo {tables} -I INPUT -p tcp -s {source} --dport {low}:{high} -j ACCEPT")
    return (
        f"let the nodes through to ports {low}-{high}: {' or '.join(commands)}; in a cloud, the security group too."
        " Where only a few ports can be had: I_MPI_PORT_RANGE=LOW:HIGH holds Intel MPI to them, not gloo"
    )


def _network_of(hosts: Iterable[str], internal: Mapping[str, str], facts: Mapping[str, Facts]) -> tuple[str, int]:
    """The subnet their internal addresses are on."""
    for name in hosts:
        for nic in facts[name].network.nics if name in facts else ():
            for address in nic.addresses:
                if address.address == internal.get(name):
                    return str(
                        ipaddress.ip_network(f"{address.address}/{address.prefix}", strict=False)
                    ), address.family
    return "CIDR", 6 if any(":" in internal.get(name, "") for name in hosts) else 4
