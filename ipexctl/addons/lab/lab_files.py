"""Compose a lab's files for its user (hostfile, ssh_config …), each host's own /etc, and its network for `ip -batch`.
Pure.

The bridges are in a namespace of their own, so this machine's firewall, which drops bridged packets on a Docker host,
does not see traffic between the nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ipexctl.addons.lab.lab_plan import PREFIX, PREFIX_V6, front_gateway, ipv6
from ipexctl.addons.lab.lab_record import Lab, LabHost


def hostfile(lab: Lab) -> str:
    """Return the hostfile, with one line for each node that ssh reaches. Its paths are absolute, so a copy works,
    too."""
    lines = []
    for host in lab.hosts[:1] if lab.slurm else lab.hosts:
        internal = f" internal={host.internal}" if host.internal else ""
        options = f"address={host.address} user={host.user} identity={lab.key} known_hosts={lab.known_hosts}{internal}"
        lines.append(
            f"{host.name} {f'user={host.user} ssh_config={lab.ssh_config}' if host.behind_bastion else options}"
        )
    return join_lines(lines)


def ssh_config(lab: Lab) -> str:
    """Return the configuration for `ssh -F ssh_config node1`. Its paths are absolute, so it works from any
    directory."""
    sections = []
    for host in lab.nodes:
        lines = [f"Host {host.name} {host.address}", f"  HostName {host.address}", f"  User {host.user}"]
        sections.append("\n".join([*lines, *(["  ProxyJump bastion"] if host.behind_bastion else [])]))
    common = [
        "Host *",
        f"  IdentityFile {lab.key}",
        "  IdentitiesOnly yes",
        f"  UserKnownHostsFile {lab.known_hosts}",
        "  GlobalKnownHostsFile /dev/null",
        "  StrictHostKeyChecking yes",
        "  PasswordAuthentication no",
        "  ConnectTimeout 10",
    ]
    return "\n\n".join([*sections, "\n".join(common)]) + "\n"


def known_hosts(lab: Lab, keys: Mapping[str, str]) -> str:
    """Return one line per host with its name and addresses. `keys`: name → public key."""
    return "".join(
        f"{','.join(dict.fromkeys(_names(host)))} {' '.join(keys[host.name].split()[:2])}\n" for host in lab.nodes
    )


def _names(host: LabHost) -> list[str]:
    addresses = [host.address, *([host.internal] if host.internal else [])]
    return [host.name, *addresses, *(ipv6(address) for address in addresses)]


def inventory(lab: Lab) -> str:
    """Return an inventory for Ansible."""
    lines = ["[nodes]"]
    lines += [f"{host.name} ansible_host={host.address} ansible_user={host.user}" for host in lab.hosts]
    options = f"-o UserKnownHostsFile={lab.known_hosts} -o IdentitiesOnly=yes"
    if lab.bastion:
        options = f"-F {lab.ssh_config}"
    lines += [
        "",
        "[nodes:vars]",
        f"ansible_ssh_private_key_file={lab.key}",
        f"ansible_ssh_common_args='{options}'",
        "ansible_python_interpreter=/usr/bin/python3",
    ]
    return "\n".join(lines) + "\n"


UID: Final = 1000
"""The UID of every account, whatever its name: files in a shared home must belong to all accounts."""
_FIRST_USER_UID, _NOBODY_UID = 1000, 65534
_SHELL: Final = "/bin/bash"


def passwd(machine: str, host: LabHost) -> str:
    """Return a host's /etc/passwd: this machine's system accounts and the login account, but no other users. `machine`:
    this machine's file."""
    lines = [line for line in machine.splitlines() if _is_system(line) and not line.startswith("root:")]
    lines.insert(0, f"root:x:0:0:root:/root:{_SHELL}")
    if not any(line.startswith("sshd:") for line in lines):
        lines.append("sshd:x:74:65534::/run/sshd:/usr/sbin/nologin")
    if host.user != "root":
        lines.append(f"{host.user}:x:{UID}:{UID}:{host.user}:{host.home}:{_SHELL}")
    return join_lines(lines)


def group(machine: str, host: LabHost) -> str:
    """Return a host's /etc/group: this machine's system groups without their members, and the login account's.
    `machine`: this machine's file."""
    lines = [f"{line.rpartition(':')[0]}:" for line in machine.splitlines() if _is_system(line)]
    if host.user != "root":
        lines.append(f"{host.user}:x:{UID}:")
    return join_lines(lines)


def shadow(passwd_text: str) -> str:
    """Return a host's /etc/shadow for these accounts. Passwords are `*`, because sshd treats `!` as a locked
    account."""
    return join_lines([f"{line.split(':', 1)[0]}:*:19000:0:99999:7:::" for line in passwd_text.splitlines()])


def _is_system(line: str) -> bool:
    fields = line.split(":")
    if len(fields) < 4 or not fields[2].isdigit():
        return False
    return int(fields[2]) < _FIRST_USER_UID or int(fields[2]) == _NOBODY_UID


def hosts(lab: Lab, host: LabHost, *, others: bool) -> str:
    """Return a host's /etc/hosts, without Debian's `127.0.1.1 NAME`, which would bind a rendezvous to the loopback.
    `others`: whether it names the other hosts.

    torch's sockets are IPv6 and see their peer as `::ffff:10.77.1.12`, for which glibc does not find the IPv4 line:
    torch warns about every connection. The line for it has another name, so that node2 keeps one address.
    """
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    known = lab.nodes if others else (host,)
    lines += [f"{node.peer_address} {node.name}" for node in known]
    lines += [f"::ffff:{node.peer_address} {node.name}.mapped" for node in known]
    return join_lines(lines)


RESOLV_CONF: Final = "# no name server: a lab's hosts have only /etc/hosts\noptions timeout:1 attempts:1\n"
NSSWITCH: Final = "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n"


def sshd_config(openssh: tuple[int, int]) -> str:
    """Return a host's sshd_config. `openssh`: version of this machine's OpenSSH; an older sshd refuses options that it
    does not know."""
    lines = [
        "Port 22",
        "HostKey /etc/ssh/ssh_host_ed25519_key",
        "PidFile /run/sshd.pid",
        "UsePAM no",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "PermitRootLogin prohibit-password",
        "UseDNS no",
        "MaxStartups 200",
        "MaxSessions 100",
        "PrintMotd no",
        "PrintLastLog no",
        "AcceptEnv LANG LC_*",
        "Subsystem sftp internal-sftp",
    ]
    if openssh >= (9, 8):
        # Tests fail to log in on purpose; since 9.8, sshd would then refuse connections from the whole lab.
        lines.append("PerSourcePenalties no")
    return join_lines(lines)


def openssh_version(banner: str) -> tuple[int, int]:
    """Return (9, 2) for `OpenSSH_9.2p1 Debian-2…`; (0, 0) if it can't be parsed."""
    head = banner.removeprefix("OpenSSH_").split("p", 1)[0].split(",", 1)[0].strip()
    major, _, minor = head.partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else (0, 0)


def join_lines(lines: Iterable[str]) -> str:
    """Return the lines as a text, each with a line break."""
    return "".join(f"{line}\n" for line in lines)


FRONT = "front"
INNER = "inner"
UPLINK = "uplink"


def namespaces(lab: Lab) -> str:
    """Return the commands that add the network namespaces of the switch and of each host."""
    return join_lines(f"netns add {name}" for name in (lab.switch, *(host.netns for host in lab.nodes)))


def uplink(lab: Lab, mark: str, *, v6: bool) -> str:
    """Return the commands that link this machine to the lab's switch. `mark`: what `view_mark` returns, by which the
    link is recognized. `v6`: True to add IPv6 addresses."""
    link = lab.uplink
    commands = [
        f"link add {link} type veth peer name {UPLINK} netns {lab.switch}",
        f"link set {link} alias {mark}",
        f"address add {front_gateway(lab.block)}/{PREFIX} dev {link}",
        f"link set {link} up",
    ]
    if v6:
        commands.append(f"address add {ipv6(front_gateway(lab.block))}/{PREFIX_V6} dev {link} nodad")
    return join_lines(commands)


def switch(lab: Lab, mark: str) -> str:
    """Return the commands, for the switch's namespace, that make the two bridges and a link to each host. `mark`: as of
    `uplink`."""
    commands = [f"link add {bridge} type bridge" for bridge in (FRONT, INNER)]
    commands += [f"link set {bridge} up" for bridge in (FRONT, INNER)]
    commands.append(f"link set {UPLINK} master {FRONT} up alias {mark}")
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
    """Return the interfaces of a host, each with the bridge to which it is linked. The one for ssh comes first."""
    if host.behind_bastion:
        return (("eth0", INNER),)
    if host.internal:
        return (("eth0", FRONT), ("eth1", INNER))
    return (("eth0", FRONT),)


def interfaces(host: LabHost) -> tuple[str, ...]:
    """Return the names of a host's interfaces."""
    return tuple(interface for interface, _ in links(host))


def port_name(host: LabHost, interface: str) -> str:
    """Return the name of the switch's end of a host's link, at most 15 characters, such as `node400-eth1`."""
    return f"{host.name}-{interface}"


def host_network(host: LabHost, *, v6: bool) -> str:
    """Return the commands, for the host's namespace, that give its interfaces their addresses."""
    addresses = [host.address, *([host.internal] if host.internal else [])]
    commands = ["link set lo up"]
    for (interface, _), address in zip(links(host), addresses, strict=True):
        commands += [f"address add {address}/{PREFIX} dev {interface}", f"link set {interface} up"]
        if v6:
            commands.append(f"address add {ipv6(address)}/{PREFIX_V6} dev {interface} nodad")
    return join_lines(commands)
