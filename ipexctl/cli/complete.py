"""What the shell offers behind Tab: runs, hosts, environments, out of this machine's files; no host is asked.

Nothing may fail here: the line somebody is typing is no place for errors.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from ipexctl.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ipexctl.hosts.host import Host

NEWEST: Final = 200
"""So many runs are looked at: more are no help at a Tab."""


def runs(incomplete: str) -> list[str]:
    return _beginning(incomplete, ["last", *(path.stem for path in _records())])


def environments(incomplete: str) -> list[str]:
    """Those that runs of this machine have used; a Python that isn't ours is none."""
    used = {name: None for name in map(_environment, _records()) if name and "/" not in name}
    return _beginning(incomplete, {"default": None, **used})


def playbooks(incomplete: str) -> list[str]:
    """Those that come with the tool, and the YAML files here; with a directory before it, the shell's own way."""
    from ipexctl.playbook.files import shipped

    try:
        here = sorted(path.name for path in Path.cwd().iterdir() if path.suffix in (".yml", ".yaml"))
    except OSError:
        here = []
    return _beginning(incomplete, [*shipped(), *here])


def hosts(ctx: typer.Context, incomplete: str) -> list[str]:
    """The last name of a list of hosts, out of the file or the allocation the command would take."""
    return _in_list(incomplete, [host.name for host in _hosts_in_reach(ctx)])


def limits(ctx: typer.Context, incomplete: str) -> list[str]:
    """As `hosts`, with groups, and with what is left out."""
    known = _hosts_in_reach(ctx)
    groups = {group: None for host in known for group in host.groups}
    return _in_list(incomplete, [*(host.name for host in known), *groups])


def _in_list(incomplete: str, names: Iterable[str]) -> list[str]:
    before, comma, begun = incomplete.rpartition(",")
    no = "!" if begun.startswith("!") else ""
    said = {word.removeprefix("!") for word in before.split(",")}
    return [f"{before}{comma}{no}{name}" for name in _beginning(begun.removeprefix("!"), names) if name not in said]


def _beginning(incomplete: str, words: Iterable[str]) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]


def _hosts_in_reach(ctx: typer.Context) -> tuple[Host, ...]:
    from ipexctl.hosts.select import HostRequest, select_hosts

    given = ctx.params
    request = HostRequest(hosts=given.get("hosts"), hostfile=given.get("hostfile"))
    try:
        selection = select_hosts(request, environ=os.environ, cwd=Path.cwd())
    except (UserError, OSError):
        return ()
    return selection.hosts


def _records() -> list[Path]:
    """The register's files, the newest first."""
    from ipexctl.jobs.registry import RunRegistry

    try:
        dated = [(path.stat().st_mtime, path) for path in RunRegistry().directory.glob("*.json")]
    except OSError:
        return []
    return [path for _, path in sorted(dated, reverse=True)][:NEWEST]


def _environment(path: Path) -> str | None:
    import json

    try:
        named = json.loads(path.read_text(encoding="utf-8"))["env"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return named if isinstance(named, str) else None
