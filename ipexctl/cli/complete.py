"""Shell completion of runs, hosts and environments from files of the control machine; no host is contacted.

Typer keeps the candidates that begin with what is typed. Errors are swallowed: a message would garble that line.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from ipexctl.cli.defaults import CLUSTER, defaults_of, files_of
from ipexctl.errors import UserError
from ipexctl.file_reader import check_regular
from ipexctl.option_defaults import DEFAULT_ENV

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ipexctl.hosts.host import Host

NEWEST: Final = 200
"""Runs that are read; more candidates would not help."""


def runs() -> list[str]:
    return ["last", *(path.stem for path in _records())]


def environments() -> list[str]:
    """The environments of known runs; the path of a user's Python is not one."""
    from ipexctl.node.common.files import read_json

    found = [read_json(path).get("env") for path in _records()]
    return list(
        dict.fromkeys([DEFAULT_ENV, *(name for name in found if isinstance(name, str) and name and "/" not in name)])
    )


def playbooks() -> list[str]:
    """The playbooks of ipexctl, and YAML files in the current directory; the shell completes other paths."""
    from ipexctl.playbook.playbook_file import shipped

    try:
        here = sorted(path.name for path in Path.cwd().iterdir() if path.suffix in (".yml", ".yaml"))
    except OSError:
        here = []
    return [*shipped(), *here]


def hosts(ctx: typer.Context, incomplete: str) -> list[str]:
    """The last name in a list of hosts, from the hostfile or allocation that the command would use."""
    return _in_list(incomplete, [host.name for host in _hosts_in_reach(ctx)])


def limits(ctx: typer.Context, incomplete: str) -> list[str]:
    """As `hosts`, also groups and names excluded with `!`."""
    known = _hosts_in_reach(ctx)
    groups = {group: None for host in known for group in host.groups}
    return _in_list(incomplete, [*(host.name for host in known), *groups])


def configured() -> list[str]:
    """The arguments of config: the commands that have options in files, and init."""
    from ipexctl.cli.app import COMMANDS

    return ["init", *(name for name in COMMANDS if name != "config")]


def clusters(ctx: typer.Context) -> list[str]:
    try:
        tables = [file.tables.get(CLUSTER) for file in files_of(ctx)]
    except UserError:
        return []
    return [name for table in tables if isinstance(table, dict) for name in table]


def _in_list(incomplete: str, names: Iterable[str]) -> list[str]:
    before, comma, partial = incomplete.rpartition(",")
    negation = "!" if partial.startswith("!") else ""
    listed = {word.removeprefix("!") for word in before.split(",")}
    return [f"{before}{comma}{negation}{name}" for name in names if name not in listed]


def _hosts_in_reach(ctx: typer.Context) -> tuple[Host, ...]:
    from ipexctl.hosts.select import HostRequest, select_hosts
    from ipexctl.sync.root import find_root

    params = ctx.params
    setting = defaults_of(ctx).get("hostfile")
    found = setting is not None and setting.is_found
    request = HostRequest(hosts=params.get("hosts"), hostfile=params.get("hostfile"), hostfile_found=found)
    try:
        cwd = Path.cwd()
        if request.hostfile is not None:
            check_regular(cwd / request.hostfile)  # at Tab, nobody waits for a pipe
        selection = select_hosts(request, environ=os.environ, cwd=cwd, project=find_root(None, None, cwd))
    except (UserError, OSError):
        return ()
    return selection.hosts


def _records() -> list[Path]:
    """The files of the run registry, the newest first."""
    from ipexctl.jobs.registry import RunRegistry

    try:
        dated = [(path.stat().st_mtime, path) for path in RunRegistry().directory.glob("*.json")]
    except (OSError, UserError):
        return []
    return [path for _, path in sorted(dated, reverse=True)][:NEWEST]
