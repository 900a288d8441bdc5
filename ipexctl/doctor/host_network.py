"""Rules over a host's name, addresses, interfaces and ports. Pure.

Messages avoid names and addresses, so 200 hosts with one setup give one finding.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ipexctl.doctor.context import few, link_rate, open_ports
from ipexctl.doctor.finding import Finding
from ipexctl.facts.internal import joining
from ipexctl.remote.control_machine import is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ipexctl.doctor.context import HostContext, HostRule
    from ipexctl.doctor.finding import Level

_KINDS: Final = {"docker": "docker", "libvirt": "libvirt", "veth": "containers"}


def own_name(host: HostContext) -> Iterator[Finding]:
    """gloo and MPI send the first address of the host's own name to the others. If that is a loopback address, as some
    installers write it, the other hosts connect to themselves."""
    found = host.facts.network.resolves_to
    if found is None or host.alone:
        return
    own = {address.address for nic in host.facts.network.nics for address in nic.addresses}
    main = host.nic
    iface = main.name if main else "IFACE"
    fix = f"as root, in /etc/hosts, give its name the address of {iface} (ip addr show {iface})"
    meanwhile = f"; meanwhile ipexctl run sets GLOO_SOCKET_IFNAME={iface}"
    if not found:
        yield Finding(
            "name.unresolved",
            "warn",
            "Its own name does not resolve on the host itself: gloo falls back to loopback, and other hosts can't "
            "reach its ranks",
            fix + meanwhile,
        )
    elif is_loopback(found[0]):
        yield Finding(
            "name.loopback",
            "warn",
            f"Its own name resolves to {found[0]} on the host itself: gloo would make other hosts connect there, to "
            "themselves, and hang",
            f"{fix}, instead of {found[0]}{meanwhile}",
        )
    elif own and not own & set(found) and host.facts.has_finished("network"):
        yield Finding(
            "name.elsewhere",
            "warn",
            "Its own name resolves to an address this host doesn't have: gloo and MPI would send a wrong "
            "address to the others",
            fix + meanwhile,
        )


def bridges(host: HostContext) -> Iterator[Finding]:
    if host.alone:
        return
    main = host.nic
    inside = {
        _KINDS.get(nic.kind) or nic.name
        for nic in host.facts.network.nics
        if nic is not main and nic.kind != "loopback" and not joining(nic)
        if any(address.scope == "global" and address.family == 4 for address in nic.addresses)
    }
    if not inside:
        return
    # Docker's names differ from host to host; their kinds don't.
    message = (
        f"Bridges inside this host ({few(sorted(inside), 3)}), which oneCCL and libfabric may pick and then hang. "
    )
    if main is None:
        yield Finding(
            "network.bridges",
            "warn",
            f"{message}No interface is known that other hosts could reach",
            "name the network the hosts share: --iface CIDR, or internal=ADDRESS in the hostfile",
        )
        return
    name = main.name
    yield Finding(
        "network.bridges",
        "info",
        f"{message}The one to use: {name}",
        f"nothing to do under ipexctl run; elsewhere export FI_TCP_IFACE={name} CCL_KVS_IFACE={name} "
        f"GLOO_SOCKET_IFNAME={name}",
    )


def internal_address(host: HostContext) -> Iterator[Finding]:
    own = {address.address for nic in host.facts.network.nics for address in nic.addresses}
    given = host.internal
    if (
        given
        and own
        and given not in own
        and re.fullmatch(r"[0-9.]+|.*:.*", given)
        and host.facts.has_finished("network")
    ):
        yield Finding(
            "network.not_its_address",
            "warn",
            f"{given} is the address other hosts are to use, but no interface of this host has it: ranks can't listen "
            "there",
            "ip addr shows its addresses; put one that the others reach after internal= in the hostfile",
        )


def default_route(host: HostContext) -> Iterator[Finding]:
    if (
        host.facts.system.is_linux
        and host.facts.has_finished("kernel")
        and host.facts.network.nics
        and host.facts.network.default_route is None
    ):
        yield Finding(
            "network.no_default_route",
            "info",
            "No default route: this host can't download wheels, models or data by itself",
            "ipexctl install brings wheels from another host, ipexctl push hf:org/model models of the Hugging Face Hub",
        )


def link(host: HostContext) -> Iterator[Finding]:
    nic = None if host.alone else host.nic
    if nic is None:
        return
    if nic.kind in ("wifi", "tunnel"):
        yield Finding(
            "network.medium",
            "warn",
            f"The hosts would train over {nic.name}, {'wifi' if nic.kind == 'wifi' else 'a tunnel or VPN'}: "
            "every step sends gradients over it, slowly",
            "name a wired network that all hosts share: --iface CIDR",
        )
    if nic.speed is not None and nic.speed < 10_000:
        level: Level = "warn" if nic.speed < 1000 else "info"
        yield Finding(
            "network.slow_link",
            level,
            f"{nic.name} runs at {link_rate(nic.speed)}: 100 MB of gradients take about {800 / nic.speed:.1f} s per "
            "step, maybe most of its time",
            "a faster network if there is one (--iface CIDR), larger batches, or gradient accumulation",
        )


def firewall(host: HostContext) -> Iterator[Finding]:
    """Only a firewall's own service counts: Docker loads tables into the kernel too."""
    services = [name for name in host.facts.security.firewall if name in ("ufw", "firewalld")]
    if not services or host.alone:
        return
    yield Finding(
        "network.firewall",
        "info",
        f"{' and '.join(services)} runs on this host: ranks listen on high ports, and if those are closed training "
        "hangs at its start",
        "nothing to do unless network.port_closed is found too; then "
        + open_ports([host.name], {host.name: host.internal or ""}, {host.name: host.facts}),
    )


def port_range(host: HostContext) -> Iterator[Finding]:
    span = host.facts.network.port_range
    if span is not None and span[1] - span[0] < 2000:
        yield Finding(
            "network.few_ports",
            "warn",
            f"Only ports {span[0]}-{span[1]} are for connections: many ranks use them up ('Cannot assign requested "
            "address')",
            "if no firewall rule depends on this range, as root: sysctl net.ipv4.ip_local_port_range='32768 60999'",
        )


def rdma(host: HostContext) -> Iterator[Finding]:
    down = [device.name for device in host.facts.network.rdma if device.state not in (None, "active")]
    if down and not any(device.state == "active" for device in host.facts.network.rdma):
        yield Finding(
            "rdma.inactive",
            "info",
            f"{few(down, 3)}: an RDMA device without a link, so training goes over TCP",
            "check cable and subnet manager: ibstat",
        )


RULES: Final[tuple[HostRule, ...]] = (
    default_route, port_range, rdma, own_name, bridges, internal_address, link, firewall,
)  # fmt: skip
