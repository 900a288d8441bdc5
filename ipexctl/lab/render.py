"""Renders the files of a lab for its user: hostfile, ssh_config, known_hosts, inventory. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipexctl.lab.plan import ipv6

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ipexctl.lab.state import Lab, LabHost


def hostfile(lab: Lab) -> str:
    """One line for each node. Paths are relative to the hostfile, so the directory can be moved."""
    return "".join(_hostfile_line(host) for host in lab.hosts)


def _hostfile_line(host: LabHost) -> str:
    if host.behind_bastion:
        return f"{host.name} user={host.user} ssh_config=ssh_config\n"
    internal = f" internal={host.internal}" if host.internal else ""
    return f"{host.name} address={host.address} user={host.user} identity=key known_hosts=known_hosts{internal}\n"


def ssh_config(lab: Lab) -> str:
    """For `ssh -F ssh_config node1`. Paths are absolute, so it works from any directory."""
    sections = [_ssh_section(host) for host in lab.nodes]
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


def _ssh_section(host: LabHost) -> str:
    lines = [f"Host {host.name} {host.address}", f"  HostName {host.address}", f"  User {host.user}"]
    if host.behind_bastion:
        lines.append("  ProxyJump bastion")
    return "\n".join(lines)


def known_hosts(lab: Lab, keys: Mapping[str, str]) -> str:
    """One line for each host, with its name and all its addresses; `keys` maps names to public keys."""
    return "".join(
        f"{','.join(dict.fromkeys(_names(host)))} {_without_comment(keys[host.name])}\n" for host in lab.nodes
    )


def _names(host: LabHost) -> list[str]:
    addresses = [host.address, *([host.internal] if host.internal else [])]
    return [host.name, *addresses, *(ipv6(address) for address in addresses)]


def _without_comment(public_key: str) -> str:
    """`ssh-ed25519 AAAA…` without the comment."""
    return " ".join(public_key.split()[:2])


def inventory(lab: Lab) -> str:
    """An Ansible inventory of the nodes."""
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
