"""Which hosts a play is for: names, node sets, globs and groups, with Ansible's commas, colons, `!` and `&`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipexctl.errors import UserError
from ipexctl.hosts.limit import limit_hosts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.hosts.host import Host
    from ipexctl.playbook.places import Place


def hosts_of(pattern: str, place: Place, hosts: Sequence[Host]) -> tuple[Host, ...]:
    """In the hosts' own order. `node0` is the first of them."""
    parts = _parts(pattern, {host.name for host in hosts} | {host.address for host in hosts})
    first = hosts[0].name
    named = ["all" if part in ("all", "*") else first if part == "node0" else part for part in parts]
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
        raise place.error(error.message.replace("--limit", "hosts", 1), fix=error.fix) from None
    return found


def _parts(pattern: str, known: set[str]) -> list[str]:
    """Ansible separates by commas and by colons, which an IPv6 address has, too."""
    found: list[str] = []
    depth, part = 0, ""
    for letter in pattern:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            found.append(part)
            part = ""
        else:
            part += letter
    words = [word.strip() for word in (*found, part) if word.strip()]
    return [
        piece
        for word in words
        for piece in ([word] if word.lstrip("!&") in known or "[" in word else word.split(":"))
        if piece
    ]
