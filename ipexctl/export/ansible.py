"""The hosts as an Ansible inventory. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipexctl.export.common import Exported

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.hosts.host import Host


def to_ansible(hosts: Sequence[Host]) -> Exported:
    """With `node0` and `nodes` as groups, and those the hosts came with."""
    import yaml  # costs start-up

    groups: dict[str, Any] = {"node0": {"hosts": {hosts[0].name: {}}}}
    if len(hosts) > 1:
        groups["nodes"] = {"hosts": {host.name: {} for host in hosts[1:]}}
    for host in hosts:
        for group in host.groups:
            if group not in ("all", "ungrouped"):
                groups.setdefault(group, {"hosts": {}})["hosts"][host.name] = {}
    tree = {"all": {"hosts": {host.name: _variables(host) for host in hosts}, "children": groups}}
    text = yaml.safe_dump(tree, sort_keys=False, default_flow_style=False)
    configs = sorted({str(host.ssh_config) for host in hosts if host.ssh_config})
    notes = [f"ssh's own config is not named in an inventory: ANSIBLE_SSH_ARGS='-F {each}'" for each in configs]
    return Exported(text, tuple(notes))


def _variables(host: Host) -> dict[str, Any]:
    known: dict[str, Any] = {}
    if host.address != host.name:
        known["ansible_host"] = host.address
    if host.user:
        known["ansible_user"] = host.user
    if host.port:
        known["ansible_port"] = host.port
    if host.identity:
        known["ansible_ssh_private_key_file"] = str(host.identity)
    if host.known_hosts:
        known["ansible_ssh_common_args"] = f"-o UserKnownHostsFile={host.known_hosts}"
    if host.name == "localhost" and host.address == "localhost":
        known["ansible_connection"] = "local"
    if host.slots:
        known["slots"] = host.slots
    return {**known, **dict(host.vars)}
