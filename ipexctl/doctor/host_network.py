"""Rules over a host's names and interfaces: how others find it, and what libraries would pick. Pure."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from ipexctl.doctor.finding import Finding
from ipexctl.doctor.host_context import few, main_nic, quoted_output
from ipexctl.doctor.ports import open_ports
from ipexctl.facts.internal import joining

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ipexctl.doctor.finding import Level
    from ipexctl.doctor.host_context import HostContext, Rule, RuleInContext
    from ipexctl.facts.facts import Facts

IDS: Final[Mapping[str, str]] = {
    "name.loopback": "the host's own name leads to loopback",
    "name.unresolved": "the host's own name leads nowhere",
    "name.elsewhere": "the host's own name leads to an address it doesn't have",
    "network.bridges": "bridges of containers or guests that libraries may pick",
    "network.not_its_address": "the address for the others is none of this host's",
    "network.no_default_route": "no way to the internet",
    "network.slow_link": "the link is slow for gradients",
    "network.medium": "training would go over wifi or a tunnel",
    "network.firewall": "a firewall may stand between the hosts",
    "network.few_ports": "few ports for connections",
    "rdma.inactive": "an RDMA device whose port is not active",
}

_KINDS: Final = {"docker": "docker", "libvirt": "libvirt", "veth": "containers"}


def own_name(facts: Facts, context: HostContext) -> Iterator[Finding]:
    """Gloo and MPI take the first address of the host's own name, and tell it to the others.

    Neither name nor address is said: of 200 hosts set up alike this is one finding.
    """
    found = facts.network.resolves_to
    if found is None or context.alone:
        return
    own = {address.address for nic in facts.network.nics for address in nic.addresses}
    main = main_nic(facts, context)
    iface = main.name if main else "IFACE"
    mend = f"as root, in /etc/hosts, give its name the address of {iface} (ip addr show {iface})"
    until = f"; ipexctl run sets GLOO_SOCKET_IFNAME={iface} meanwhile"
    if not found:
        yield Finding(
            "name.unresolved",
            "warn",
            "Its own name does not resolve on the host itself: gloo falls back to loopback, and other hosts can't "
            "reach its ranks",
            mend + until,
        )
    elif _loopback(found[0]):
        yield Finding(
            "name.loopback",
            "warn",
            f"Its own name resolves to {found[0]} here: gloo would tell other hosts to connect there, to themselves, "
            "and hang",
            f"{mend}, in place of {found[0]}{until}",
        )
    elif own and not own & set(found) and quoted_output(facts, "network"):
        yield Finding(
            "name.elsewhere",
            "warn",
            "Its own name resolves to an address this host doesn't have: gloo and MPI would tell others a wrong "
            "address",
            mend + until,
        )


def _loopback(text: str) -> bool:
    try:
        return ip_address(text).is_loopback
    except ValueError:
        return False


def bridges(facts: Facts, context: HostContext) -> Iterator[Finding]:
    if context.alone:
        return
    main = main_nic(facts, context)
    inside = {
        _KINDS.get(nic.kind) or nic.name
        for nic in facts.network.nics
        if nic is not main and nic.kind != "loopback" and not joining(nic)
        if any(address.scope == "global" and address.family == 4 for address in nic.addresses)
    }
    if not inside:
        return
    # docker's own names have a number drawn for this host alone; by their kinds, hosts set up alike are one finding.
    said = f"Bridges inside this host ({few(sorted(inside), 3)}), which oneCCL and libfabric may pick and then hang. "
    if main is None:
        yield Finding(
            "network.bridges",
            "warn",
            f"{said}No interface that others could reach is seen",
            "say which network the hosts share: --iface CIDR, or internal=ADDRESS in the hostfile",
        )
        return
    use = main.name
    yield Finding(
        "network.bridges",
        "info",
        f"{said}The one to use: {use}",
        f"nothing to do under ipexctl run; elsewhere export FI_TCP_IFACE={use} CCL_KVS_IFACE={use} "
        f"GLOO_SOCKET_IFNAME={use}",
    )


def internal_address(facts: Facts, context: HostContext) -> Iterator[Finding]:
    own = {address.address for nic in facts.network.nics for address in nic.addresses}
    given = context.internal
    if given and own and given not in own and re.fullmatch(r"[0-9.]+|.*:.*", given) and quoted_output(facts, "network"):
        yield Finding(
            "network.not_its_address",
            "warn",
            f"{given} is on no interface of this host, and is the address the others are to use: ranks can't listen "
            "there",
            "ip addr shows what it has; put one that the others reach after internal= in the hostfile",
        )


def default_route(facts: Facts) -> Iterator[Finding]:
    if (
        facts.system.is_linux
        and quoted_output(facts, "kernel")
        and facts.network.nics
        and facts.network.default_route is None
    ):
        yield Finding(
            "network.no_default_route",
            "info",
            "No default route: this host can't download wheels, models or data itself",
            "ipexctl install brings the wheels from elsewhere; set HF_HUB_OFFLINE=1 and put models there beforehand",
        )


def link(facts: Facts, context: HostContext) -> Iterator[Finding]:
    nic = None if context.alone else main_nic(facts, context)
    if nic is None:
        return
    if nic.kind in ("wifi", "tunnel"):
        yield Finding(
            "network.medium",
            "warn",
            f"The hosts would train over {nic.name}, {'wifi' if nic.kind == 'wifi' else 'a tunnel or VPN'}: "
            "gradients go over it at every step, slowly",
            "name a wired network that all hosts share: --iface CIDR",
        )
    if nic.speed is not None and nic.speed < 10_000:
        level: Level = "warn" if nic.speed < 1000 else "info"
        speed = f"{nic.speed / 1000:g} Gbit/s" if nic.speed >= 1000 else f"{nic.speed} Mbit/s"
        yield Finding(
            "network.slow_link",
            level,
            f"{nic.name} runs at {speed}: 100 MB of gradients take about {800 / nic.speed:.1f} s a step, which may "
            "be most of it",
            "a faster network if there is one (--iface CIDR), larger batches, or gradient accumulation",
        )


def firewall(facts: Facts, context: HostContext) -> Iterator[Finding]:
    """Tables loaded into the kernel say nothing: docker loads them. A firewall's own service does."""
    services = [name for name in facts.security.firewall if name in ("ufw", "firewalld")]
    if not services or context.alone:
        return
    yield Finding(
        "network.firewall",
        "info",
        f"{' and '.join(services)} runs here: ranks listen on high ports, and where those are closed training hangs "
        "at its start",
        "nothing to do unless network.port_closed is found too; then "
        + open_ports([context.name], {context.name: context.internal or ""}, {context.name: facts}),
    )


def ports(facts: Facts) -> Iterator[Finding]:
    span = facts.network.port_range
    if span is not None and span[1] - span[0] < 2000:
        yield Finding(
            "network.few_ports",
            "warn",
            f"Ports {span[0]}-{span[1]} are all there are for connections: many ranks run out of them ('Cannot assign "
            "requested address')",
            "as root: sysctl net.ipv4.ip_local_port_range='32768 60999'",
        )


def rdma(facts: Facts) -> Iterator[Finding]:
    down = [device.name for device in facts.network.rdma if device.state not in (None, "active")]
    if down and not any(device.state == "active" for device in facts.network.rdma):
        yield Finding(
            "rdma.inactive",
            "info",
            f"{few(down, 3)}: an RDMA device without a link, so training goes over TCP",
            "check cable and subnet manager: ibstat",
        )


RULES: Final[tuple[Rule, ...]] = (default_route, ports, rdma)
IN_CONTEXT: Final[tuple[RuleInContext, ...]] = (own_name, bridges, internal_address, link, firewall)
