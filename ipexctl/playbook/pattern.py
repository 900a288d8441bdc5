"""Which hosts a play is for: names, node sets, globs and groups, with Ansible's commas, colons, `!` and `&`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipexctl.errors import UserError
from ipexctl.hosts.limit import limit_hosts, limit_parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.hosts.host import Host
    from ipexctl.playbook.positions import Place


def hosts_of(pattern: str, place: Place, hosts: Sequence[Host], node0: str = "") -> tuple[Host, ...]:
    """In the hosts' own order. `node0` is the first of those that the call reaches."""
    parts = limit_parts(pattern, {word for host in hosts for word in (host.name, host.address)})
    named = ["all" if part in ("all", "*") else (node0 or hosts[0].name) if part == "node0" else part for part in parts]
    both = [part.removeprefix("&") for part in named if part.startswith("&")]
    rest = [part for part in named if not part.startswith("&")]
    if not named:
        raise place.error("'hosts' names no host", fix="hosts: all")
    try:
        found = limit_hosts(hosts, ",".join(rest or ["all"]))
        for part in both:
            other = {host.name for host in limit_hosts(hosts, part)}
            found = tuple(host for host in found if host.name in other)
    except UserError as error:
        fix = "hosts: node0, and delegate_to: localhost with --local" if pattern == "localhost" else error.fix
        raise place.error(error.message.replace("--limit", "hosts", 1), fix=fix) from None
    return found
