"""The hosts as an Ansible inventory. Pure."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Final

from ipexctl.export.common import Exported, known_hosts_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.hosts.host import Host

SSH_ARGS: Final = "ansible_ssh_common_args"


def to_ansible(hosts: Sequence[Host]) -> Exported:
    """With `node0` and `nodes` as groups where nothing else is called so, and those the hosts came with."""
    import yaml  # costs start-up

    groups: dict[str, Any] = {}
    for host in hosts:
        for group in host.groups:
            if group not in ("all", "ungrouped"):
                groups.setdefault(group, {"hosts": {}})["hosts"][host.name] = {}
    taken = {*groups, *(host.name for host in hosts)}
    ours = {"node0": hosts[:1], "nodes": hosts[1:]}
    for group, some in ours.items():
        if some and group not in taken:
            groups[group] = {"hosts": {host.name: {} for host in some}}
    tree = {"all": {"hosts": {host.name: _variables(host) for host in hosts}, "children": groups}}
    notes = [f"{each} is called something else already: no such group" for each in ours if each in taken and ours[each]]
    return Exported(yaml.safe_dump(tree, sort_keys=False, default_flow_style=False), tuple(notes))


def _variables(host: Host) -> dict[str, Any]:
    known: dict[str, Any] = {}
    if host.address == "localhost":
        known["ansible_connection"] = "local"
    elif host.address != host.name:
        known["ansible_host"] = host.address
    if host.user:
        known["ansible_user"] = host.user
    if host.port:
        known["ansible_port"] = host.port
    if host.identity:
        known["ansible_ssh_private_key_file"] = str(host.identity)
    theirs = dict(host.vars)
    options = [f"-F {shlex.quote(str(host.ssh_config))}"] if host.ssh_config else []
    if host.known_hosts:
        options.append(f"-o {shlex.quote(known_hosts_option(host.known_hosts))}")
    if options:
        known[SSH_ARGS] = " ".join([*options, *filter(None, [theirs.pop(SSH_ARGS, "")])])
    ours = {"internal": host.internal, "slots": host.slots, "max_slots": host.max_slots}
    return {**known, **{name: value for name, value in ours.items() if value is not None}, **theirs}
