"""A lab's wires as text for `ip -batch`. Pure; `up` runs them.

The bridges live in a namespace of their own: this machine gains one link, and its firewall,
which on a Docker host drops what crosses a bridge, never sees what the nodes say to one another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipexctl.lab.plan import front6_gateway, front_gateway, ipv6

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ipexctl.lab.state import Lab, LabHost

FRONT = "front"
INNER = "inner"
_UPLINK = "uplink"


def namespaces(lab: Lab) -> str:
    return _lines(f"netns add {name}" for name in netns_names(lab))


def netns_names(lab: Lab) -> tuple[str, ...]:
    return (lab.switch, *(host.netns for host in lab.nodes))


def uplink(lab: Lab, *, v6: bool) -> str:
    """Run in this machine's own namespace."""
    link = lab.uplink
    commands = [
        f"link add {link} type veth peer name {_UPLINK} netns {lab.switch}",
        f"address add {front_gateway(lab.block)}/24 dev {link}",
        f"link set {link} up",
    ]
    if v6:
        commands.append(f"address add {front6_gateway(lab.block)}/64 dev {link} nodad")
    return _lines(commands)


def switch(lab: Lab) -> str:
    """Run in the switch's namespace: the bridges, and a wire to every host."""
    commands = [f"link add {bridge} type bridge" for bridge in (FRONT, INNER)]
    commands += [f"link set {bridge} up" for bridge in (FRONT, INNER)]
    commands.append(f"link set {_UPLINK} master {FRONT} up")
    for host in lab.nodes:
        for interface, bridge in wires(host):
            port = port_name(host, interface)
            commands += [
                f"link add {port} type veth peer name {interface} netns {host.netns}",
                f"link set {port} master {bridge} up",
            ]
            if bridge == FRONT and host.internal and not host.is_bastion:
                # With a second network, this one leads to the control machine and nowhere else.
                commands.append(f"link set {port} type bridge_slave isolated on")
    return _lines(commands)


def wires(host: LabHost) -> tuple[tuple[str, str], ...]:
    """(interface in the host, bridge it is plugged into)."""
    if host.behind_bastion:
        return (("eth0", INNER),)
    if host.internal:
        return (("eth0", FRONT), ("eth1", INNER))
    return (("eth0", FRONT),)


def interfaces(host: LabHost) -> tuple[str, ...]:
    return tuple(interface for interface, _ in wires(host))


def port_name(host: LabHost, interface: str) -> str:
    """The switch's end of a host's wire: at most 15 characters, as `node200-eth1`."""
    return f"{host.name}-{interface}"


def inside(host: LabHost, *, v6: bool) -> str:
    """Run in the host's namespace."""
    addresses = [host.address, *([host.internal] if host.internal else [])]
    commands = ["link set lo up"]
    for (interface, _), address in zip(wires(host), addresses, strict=True):
        commands += [f"address add {address}/24 dev {interface}", f"link set {interface} up"]
        if v6:
            commands.append(f"address add {ipv6(address)}/64 dev {interface} nodad")
    return _lines(commands)


def _lines(commands: Iterable[str]) -> str:
    return "".join(f"{command}\n" for command in commands)
