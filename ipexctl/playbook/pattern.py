"""Resolves the hosts of a play: names, node sets, globs and groups, with Ansible's commas, colons, `!`, `&`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipexctl.errors import UserError
from ipexctl.hosts.limit import limit_hosts, limit_parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.hosts.host import Host
    from ipexctl.playbook.positions import Position


def hosts_of(pattern: str, position: Position, hosts: Sequence[Host], node0: str = "") -> tuple[Host, ...]:
    """The matching hosts in the order of `hosts`; `node0` is the first host of the call."""
    parts = limit_parts(pattern, {known for host in hosts for known in (host.name, host.address)})
    terms = ["all" if part in ("all", "*") else (node0 or hosts[0].name) if part == "node0" else part for part in parts]
    intersected = [part.removeprefix("&") for part in terms if part.startswith("&")]
    included = [part for part in terms if not part.startswith("&")]
    if not terms:
        raise position.error("'hosts' names no host", fix="hosts: all")
    try:
        selected = limit_hosts(hosts, ",".join(included or ["all"]))
        for part in intersected:
            matching = {host.name for host in limit_hosts(hosts, part)}
            selected = tuple(host for host in selected if host.name in matching)
    except UserError as error:
        fix = "hosts: node0, and delegate_to: localhost with --local" if pattern == "localhost" else error.fix
        raise position.error(error.message.replace("--limit", "hosts", 1), fix=fix) from None
    return selected
