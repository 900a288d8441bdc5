"""A lab's network as commands for `ip -batch`. Pure; `up` runs them.

The bridges have their own namespace: this machine gets one link, and its firewall, which drops bridged packets on a
Docker host, does not see traffic between the nodes.
"""

from __future__ import annotations

from ipexctl.extras.lab.files import join_lines
from ipexctl.extras.lab.plan import PREFIX, PREFIX_V6, front_gateway, ipv6
from ipexctl.extras.lab.state import Lab, LabHost

FRONT = "front"
INNER = "inner"
_UPLINK = "uplink"


def namespaces(lab: Lab) -> str:
    return join_lines(f"netns add {name}" for name in (lab.switch, *(host.netns for host in lab.nodes)))


def uplink(lab: Lab, *, v6: bool) -> str:
    link = lab.uplink
    commands = [
        f"link add {link} type veth peer name {_UPLINK} netns {lab.switch}",
        f"address add {front_gateway(lab.block)}/{PREFIX} dev {link}",
        f"link set {link} up",
    ]
    if v6:
        commands.append(f"address add {ipv6(front_gateway(lab.block))}/{PREFIX_V6} dev {link} nodad")
    return join_lines(commands)


def switch(lab: Lab) -> str:
    commands = [f"link add {bridge} type bridge" for bridge in (FRONT, INNER)]
    commands += [f"link set {bridge} up" for bridge in (FRONT, INNER)]
    commands.append(f"link set {_UPLINK} master {FRONT} up")
    for host in lab.nodes:
        for interface, bridge in links(host):
            port = port_name(host, interface)
            commands += [
                f"link add {port} type veth peer name {interface} netns {host.netns}",
                f"link set {port} master {bridge} up",
            ]
            if bridge == FRONT and host.internal and not host.is_bastion:
                # With a second network, this one only connects the host to the control machine.
                commands.append(f"link set {port} type bridge_slave isolated on")
    return join_lines(commands)


def links(host: LabHost) -> tuple[tuple[str, str], ...]:
    if host.behind_bastion:
        return (("eth0", INNER),)
    if host.internal:
        return (("eth0", FRONT), ("eth1", INNER))
    return (("eth0", FRONT),)


def interfaces(host: LabHost) -> tuple[str, ...]:
    return tuple(interface for interface, _ in links(host))


def port_name(host: LabHost, interface: str) -> str:
    """The switch's end of a host's link: at most 15 characters, such as `node400-eth1`."""
    return f"{host.name}-{interface}"


def host_network(host: LabHost, *, v6: bool) -> str:
    addresses = [host.address, *([host.internal] if host.internal else [])]
    commands = ["link set lo up"]
    for (interface, _), address in zip(links(host), addresses, strict=True):
        commands += [f"address add {address}/{PREFIX} dev {interface}", f"link set {interface} up"]
        if v6:
            commands.append(f"address add {ipv6(address)}/{PREFIX_V6} dev {interface} nodad")
    return join_lines(commands)
