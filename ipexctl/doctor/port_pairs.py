"""Choose the pairs of hosts whose ports are tried, read what the hosts report, and diagnose the results. Pure."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple, get_args

from ipexctl.doctor.finding import Finding, close_ports, merge_findings, open_ports
from ipexctl.facts.facts import Facts
from ipexctl.facts.software import GLOO_MENDED, Env, has_gloo_overflow, package_command
from ipexctl.hosts.nodeset import fold
from ipexctl.node.common.fix import Fix
from ipexctl.option_declaration import install_command
from ipexctl.remote.node_call import NO_PYTHON
from ipexctl.remote.reply import Reply

Pair = tuple[str, str]
ConnectionKind = Literal["ok", "refused", "timeout", "noroute", "denied", "wrong", "mute", "large-lost", "error"]
_KINDS: Final[tuple[ConnectionKind, ...]] = get_args(ConnectionKind)
_BLOCKED: Final = ("refused", "timeout", "noroute", "denied")
ALL_PAIRS_UP_TO: Final = 16


class ConnectionResult(NamedTuple):
    """What came of one connection from a host to another."""

    kind: ConnectionKind
    text: str = ""

    @property
    def is_conclusive(self) -> bool:
        """True if the result tells whether the hosts can connect. It tells nothing if the probe failed, or if the other
        host accepted and then stayed silent."""
        return self.kind not in ("mute", "error")

    @property
    def is_blocked(self) -> bool:
        """True if no connection came about."""
        return self.kind in _BLOCKED


class PortListener(NamedTuple):
    """A host's report on its listener."""

    port: int | None
    """None if the host could not listen."""
    reason: str = ""
    """Why it could not; empty otherwise."""


def parse_listener(event: Reply) -> PortListener | None:
    """Read a host's report on its listener; None for another event. The port is None if the host could not listen."""
    if event.get("event") not in ("ready", "failed"):
        return None
    port = event.get("port")
    reason = str(event.get("reason") or "")
    if event["event"] != "ready" or not isinstance(port, int) or isinstance(port, bool) or not 0 < port < 65536:
        port = None
    return PortListener(port, reason)


def parse_result(event: Reply) -> tuple[int, ConnectionResult] | None:
    """Read a host's report on a connection: the number of its target in the order, and the result; None for another
    event."""
    number, kind = event.get("number"), next((kind for kind in _KINDS if kind == event.get("kind")), None)
    if event.get("event") != "result" or type(number) is not int or number < 0 or kind is None:
        return None
    return number, ConnectionResult(kind, str(event.get("text") or ""))


def pairs_to_try(names: Sequence[str]) -> tuple[Pair, ...]:
    """Return all pairs of up to sixteen hosts. Of more, return a ring and the first host with all others, as mpirun
    connects."""
    if len(names) <= ALL_PAIRS_UP_TO:
        return tuple((a, b) for a in names for b in names if a != b)
    ring = list(zip(names, [*names[1:], names[0]], strict=True))
    star = [(names[0], name) for name in names[1:]]
    return tuple(dict.fromkeys(pair for a, b in [*star, *ring] for pair in ((a, b), (b, a))))


def listen_order(address: str, token: str, life: int) -> bytes:
    """Return the line that tells a host to listen on this address. `life`: seconds after which its program ends by
    itself."""
    return f"{address} {token} {life}\n".encode()


Target = tuple[str, str, PortListener]


def connect_order(targets: Sequence[Target], seconds: float) -> bytes:
    """Return the line that tells a host to connect to these listeners, all within these seconds."""
    wanted = [f"{address} {listener.port} {token}" for address, token, listener in targets]
    return " ".join([f"{seconds:.3f}", *wanted]).encode() + b"\n"


class PortDiagnosis(NamedTuple):
    """The smallest set of closed hosts and pairs that explains all blocked connections."""

    closed_in: tuple[str, ...] = ()
    closed_out: tuple[str, ...] = ()
    pairs: tuple[Pair, ...] = ()


def diagnose(results: Mapping[Pair, ConnectionResult]) -> PortDiagnosis:
    """Return the smallest explanation of the blocked connections. It blames hosts before pairs, and incoming firewalls
    before outgoing ones."""
    candidates = [_explain(results, inward_first=inward_first) for inward_first in (True, False)]
    return min(candidates, key=lambda found: len(found.closed_in) + len(found.closed_out) + len(found.pairs))


def _explain(results: Mapping[Pair, ConnectionResult], *, inward_first: bool) -> PortDiagnosis:
    """Return the closed hosts, by incoming connections first or by outgoing ones, and the blocked pairs that remain."""
    blocked = {pair: result.is_blocked for pair, result in results.items() if result.is_conclusive}
    closed: dict[bool, tuple[str, ...]] = {}
    names = tuple(dict.fromkeys(name for pair in results for name in pair))
    for inward in (inward_first, not inward_first):
        by_host: dict[str, list[bool]] = defaultdict(list)
        for pair, is_blocked in blocked.items():
            by_host[pair[int(inward)]].append(is_blocked)
        closed[inward] = tuple(name for name in names if name in by_host and all(by_host[name]))
        blocked = {pair: is_blocked for pair, is_blocked in blocked.items() if pair[int(inward)] not in closed[inward]}
    return PortDiagnosis(closed[True], closed[False], tuple(pair for pair, is_blocked in blocked.items() if is_blocked))


def port_findings(
    results: Mapping[Pair, ConnectionResult],
    untested: Mapping[str, str],
    internal: Mapping[str, str],
    facts: Mapping[str, Facts],
) -> tuple[Finding, ...]:
    """Return the findings about connections between the hosts. `untested`: host that didn't listen → reason."""
    diagnosis = diagnose(results)
    away = tuple(name for name in diagnosis.closed_in if name in diagnosis.closed_out)
    closed_in, closed_out = (
        tuple(name for name in closed if name not in away) for closed in (diagnosis.closed_in, diagnosis.closed_out)
    )
    findings: list[Finding] = []
    if away:
        findings.append(_not_reachable(away, internal))
    if closed_in:
        findings.append(_closed_in(closed_in, results, internal, facts))
    if closed_out:
        message = (
            "It can't connect to a high port of any other host, while other hosts can. During training every rank "
            "connects to others, so ipexctl run refuses this host."
        )
        fix = (
            "check its rules for outgoing connections (sudo iptables -S OUTPUT, sudo nft list ruleset) and for the"
            " route it takes (ip route get)"
        )
        findings.append(Finding("network.port_closed", "fail", message, fix, closed_out))
    if diagnosis.pairs:
        findings.append(_blocked_pairs(diagnosis.pairs))
    findings += _wrong_hosts(results, internal)
    findings += _lost_packets(results, internal, facts)
    findings += _untested(results, untested, facts)
    return tuple(findings)


def is_inside(source: str, address: str, facts: Iterable[Facts]) -> bool:
    """True if the control machine's address `source` is on a host, or in the network where a host has `address`. True
    also if that network is unknown."""
    nics = [nic for there in facts for nic in there.network.nics]
    networks = [f"{its.address}/{its.prefix}" for nic in nics for its in nic.addresses if its.address == address]
    own = ipaddress.ip_address(source)
    inside = any(own in ipaddress.ip_network(network, strict=False) for network in networks)
    return inside or own.is_loopback or source == address or not networks


def overflow_findings(
    facts: Mapping[str, Facts], internal: Mapping[str, str], open_outside: Collection[str]
) -> tuple[Finding, ...]:
    """Return findings for environments whose gloo lets others write into ranks. There are none for a single host, which
    trains over its loopback interface.

    `open_outside`: hosts whose ports other networks reach, for which the finding is a warning.
    """
    if len(facts) < 2:
        return ()
    return merge_findings(
        _overflow(name, env, internal, facts, is_open=name in open_outside)
        for name, there in facts.items()
        for env in there.software.envs
        if env.torch and has_gloo_overflow(env.torch)
    )


def _overflow(
    name: str, env: Env, internal: Mapping[str, str], facts: Mapping[str, Facts], *, is_open: bool
) -> Finding:
    """Return the finding about one environment whose gloo lets others write into ranks. `is_open`: True if other
    networks reach the host's ports."""
    newer = "{}.{}".format(*GLOO_MENDED)
    message = f"gloo of torch {env.torch} ({env.name[:30]}) lets anyone who reaches a rank's port write into the rank"
    message += ", and other networks reach these ports" if is_open else ": keep these ports closed to other networks"
    install = install_command(env.name[:40]).with_words("--torch", newer)
    closing = close_ports([name], internal, facts)
    fix = Fix(
        "{closing}; or {install}" if is_open else "nothing to do in a network you trust; else {install}",
        closing=closing,
        install=install,
    )
    fix += " (its gloo checks incoming data)"
    return Finding("stack.gloo_overflow", "warn" if is_open else "info", message, fix, (name,))


def _not_reachable(hosts: tuple[str, ...], internal: Mapping[str, str]) -> Finding:
    """Return the finding about hosts with no connection in either direction."""
    address = f" ({internal[hosts[0]]})" if len(hosts) == 1 else ""
    message = (
        f"It and the other hosts can't connect to each other over its internal address{address}. The control machine"
        " reaches it, but ranks connect to one another over these addresses."
    )
    fix = "check the network, or choose another one with --iface NAME or CIDR, or set internal=ADDRESS in the hostfile"
    return Finding("network.unreachable", "fail", message, fix, hosts)


def _closed_in(
    closed: tuple[str, ...],
    results: Mapping[Pair, ConnectionResult],
    internal: Mapping[str, str],
    facts: Mapping[str, Facts],
) -> Finding:
    """Return the finding about hosts whose ports nobody reaches."""
    kinds = {result.kind for (_, to), result in results.items() if to in closed and result.is_blocked}
    how = {"timeout": "get no answer", "refused": "are refused"}.get(next(iter(kinds)) if len(kinds) == 1 else "")
    message = (
        f"Connections from other hosts to its high ports {how or 'fail'}: a firewall lets only some ports through."
        " MPI, gloo and oneCCL open connections between all ranks on ports like these, so ipexctl run refuses this"
        " host."
    )
    return Finding("network.port_closed", "fail", message, open_ports(closed, internal, facts), closed)


def _blocked_pairs(pairs: Sequence[Pair]) -> Finding:
    """Return the finding about pairs of hosts that can't connect, while others can."""
    targets: dict[str, list[str]] = defaultdict(list)
    for source, target in pairs:
        targets[source].append(target)
    shown = [f"{source} → {fold(names)}" for source, names in targets.items()]
    more = f" and {len(shown) - 8} more" if len(shown) > 8 else ""
    message = (
        f"These hosts can't connect to each other on high ports, while others can: {', '.join(shown[:8])}{more}."
        " Ranks there would hang."
    )
    fix = (
        "look for a firewall or a security group between them (ip route get shows the route), or"
        " leave hosts out: --limit '!NAME'"
    )
    hosts = tuple(dict.fromkeys(name for pair in pairs for name in pair))
    return Finding("network.port_closed", "fail", message, fix, hosts)


def _wrong_hosts(results: Mapping[Pair, ConnectionResult], internal: Mapping[str, str]) -> list[Finding]:
    """Return the finding about addresses at which another machine answers."""
    hosts = tuple(dict.fromkeys(to for (_, to), result in results.items() if result.kind == "wrong"))
    if not hosts:
        return []
    addresses = ", ".join(dict.fromkeys(internal[name] for name in hosts if name in internal))
    message = (
        f"Another machine answers at its internal address ({addresses}): it may have the same address, or be a"
        " bridge on the connecting host. Ranks would connect to the wrong machine."
    )
    fix = "choose the network that the hosts share: --iface NAME or CIDR, or internal=ADDRESS in the hostfile"
    return [Finding("network.wrong_host", "fail", message, fix, hosts)]


def _lost_packets(
    results: Mapping[Pair, ConnectionResult], internal: Mapping[str, str], facts: Mapping[str, Facts]
) -> list[Finding]:
    """Return the finding about connections on which only small packets arrive."""
    pairs = [(to, source) for (source, to), result in results.items() if result.kind == "large-lost"]
    if not pairs:
        return []
    (sender, receiver), more = pairs[0], f" and {len(pairs) - 1} more" if len(pairs) > 1 else ""
    nics = facts[receiver].network.nics if receiver in facts else ()
    own = [nic for nic in nics if any(each.address == internal.get(receiver) for each in nic.addresses)]
    name, mtu = (own[0].name, own[0].mtu or 1500) if own else ("IFACE", 1500)
    message = f"Large packets (MTU {mtu}) are lost from {sender} to {receiver}{more}, while small ones arrive"
    fix = Fix(
        "look for a tunnel, a VPN or a firewall that drops them, or ICMP's 'fragmentation needed'; what passes, on "
        "{host}: `ping -c 3 -M do -s {size} {to}`; as root on every host, as most tunnels pass it: "
        "`ip link set dev {name} mtu 1400`",
        host=sender,
        size=str(mtu - 28),
        to=internal.get(receiver, receiver),
        name=name,
    )
    hosts = tuple(dict.fromkeys(each for pair in pairs for each in pair))
    return [Finding("network.large_lost", "fail", f"{message}: ssh works, and ranks would hang.", fix, hosts)]


def _untested(
    results: Mapping[Pair, ConnectionResult], untested: Mapping[str, str], facts: Mapping[str, Facts]
) -> tuple[Finding, ...]:
    """Return the findings about hosts whose ports could not be tested, and why."""
    reasons = dict(untested)
    for (source, target), result in results.items():
        if result.kind == "mute":
            reasons.setdefault(target, "it accepts connections but sends nothing in time")
        elif result.kind == "error":
            reasons.setdefault(source, f"it can't connect ({result.text or 'no reason given'})")
    return merge_findings(
        Finding(
            "network.port_untested",
            "info",
            f"Ports between it and the other hosts were not checked: {reason}{' on it' * (reason == NO_PYTHON)}.",
            package_command(facts.get(name, Facts()).system, "python3", "python3", "python3")
            if reason == NO_PYTHON
            else "",
            (name,),
        )
        for name, reason in reasons.items()
    )
