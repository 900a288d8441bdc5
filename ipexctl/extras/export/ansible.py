"""Writes the hosts as an Ansible inventory. Pure."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ipexctl.extras.export.common import Exported, header
from ipexctl.hosts.host import ssh_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.hosts.host import Host

SSH_ARGS: Final = "ansible_ssh_common_args"
INTERPRETER: Final = "ansible_python_interpreter"
REQUIREMENTS: Final = (
    "Needed on the machine that uses it: ssh to every host, with the keys and ssh files at the paths below; their host "
    "keys are known there."
)


def to_ansible(hosts: Sequence[Host], python: str | None = None) -> Exported:
    """The inventory with the hosts' groups, and the groups `node0` and `nodes` if these names are free.

    `python`: the Python that Ansible uses on every host, whatever an inventory that was read says.
    """
    import yaml  # costs start-up

    groups: dict[str, Any] = {}
    for host in hosts:
        for group in host.groups:
            if group not in ("all", "ungrouped"):
                groups.setdefault(group, {"hosts": {}})["hosts"][host.name] = {}
    used_names = {*groups, *(host.name for host in hosts)}
    own_groups = {"node0": hosts[:1], "nodes": hosts[1:]}
    for group, members in own_groups.items():
        if members and group not in used_names:
            groups[group] = {"hosts": {host.name: {} for host in members}}
    interpreter = {INTERPRETER: python} if python is not None else {}
    tree = {"all": {"hosts": {host.name: {**_variables(host), **interpreter} for host in hosts}, "children": groups}}
    notes = [
        f"{group_name} is called something else already: no such group"
        for group_name in own_groups
        if group_name in used_names and own_groups[group_name]
    ]
    lines = [*header(REQUIREMENTS), yaml.safe_dump(tree, sort_keys=False, default_flow_style=False)]
    return Exported("\n".join(lines), tuple(notes))


def _variables(host: Host) -> dict[str, str | int]:
    variables: dict[str, str | int] = {}
    if host.address == "localhost":
        variables["ansible_connection"] = "local"
    elif host.address != host.name:
        variables["ansible_host"] = host.address
    if host.user:
        variables["ansible_user"] = host.user
    if host.port:
        variables["ansible_port"] = host.port
    if host.identity:
        variables["ansible_ssh_private_key_file"] = str(host.identity)
    host_vars = dict(host.vars)
    if options := ssh_options(replace(host, user=None, port=None, identity=None)):
        variables[SSH_ARGS] = " ".join(filter(None, [shlex.join(options), host_vars.pop(SSH_ARGS, "")]))
    own_options = {"internal": host.internal, "slots": host.slots, "max_slots": host.max_slots}
    return {**variables, **{name: value for name, value in own_options.items() if value is not None}, **host_vars}
