"""Complete words in the shell from files of the control machine.

No host is contacted, and errors are swallowed: a message would garble the line. bash splits `last:out` into three
words; `join_words_of_bash` joins them before Typer sees them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from pathlib import Path
from typing import Final

import typer

from ipexctl.commands.app import CLUSTER, commands, defaults_of
from ipexctl.commands.defaults import files_of
from ipexctl.errors import UserError
from ipexctl.file_reader import check_regular
from ipexctl.hosts.host import Host
from ipexctl.hosts.select import HostRequest, select_hosts
from ipexctl.node.common.files import read_json
from ipexctl.node.common.plan import PLAN_FILE
from ipexctl.option_declaration import DEFAULT_ENV
from ipexctl.projects.root import find_root

NEWEST: Final = 200
"""Runs that are offered."""


def runs(*_: object) -> list[str]:
    """Offer `last` and the newest runs."""
    return ["last", *(path.stem for path in _records())]


_before_colon: list[str] = []
"""The run of `RUN:PATH` if bash has split the word; else empty."""


def join_words_of_bash(environ: MutableMapping[str, str]) -> None:
    """Join `RUN`, `:` and the start of a path into one word of the completion's variables.

    Typer then sees only the path.
    """
    words, cursor = environ.get("COMP_WORDS", "").split(), environ.get("COMP_CWORD", "")
    if "fetch" not in words or ":" not in words or not cursor.isdecimal():
        return
    colon, at = words.index(":"), int(cursor)
    if colon > 1 and at in (colon, colon + 1):
        _before_colon.append(words[colon - 1])
        environ["COMP_WORDS"] = "\n".join([*words[: colon - 1], *words[colon + 1 :]])
        environ["COMP_CWORD"] = str(colon - 1)


def sources(_: object, incomplete: str) -> list[str]:
    """Offer runs and, after `RUN:`, paths of the run's project; bash gets only the path."""
    run, colon, path = incomplete.rpartition(":")
    if _before_colon:
        return _paths_of(_before_colon[0], incomplete)
    return [f"{run}:{name}" for name in _paths_of(run, path)] if colon else runs()


def _paths_of(run: str, typed: str) -> list[str]:
    """Return the paths below the project of a run, on the control machine, that are in the directory of `typed`."""
    records = [path for path in _records() if run in ("last", path.stem) or path.stem.startswith(run)]
    project = read_json(records[0]).get("project") if records else None
    if not isinstance(project, str) or not project:
        return []
    above, slash, _ = typed.rpartition("/")
    try:
        top = Path.cwd() if Path.cwd().is_relative_to(project) else Path(project)
        entries = sorted((top / above).iterdir())
        return [f"{above}{slash}{path.name}{'/' if path.is_dir() else ''}" for path in entries]
    except OSError:
        return []


def environments(*_: object) -> list[str]:
    """Offer the default environment and those of the newest runs."""
    names = [read_json(path.with_suffix("") / PLAN_FILE).get("env") for path in _records()]
    return list(
        dict.fromkeys([DEFAULT_ENV, *(name for name in names if isinstance(name, str) and name and "/" not in name)])
    )


def hosts(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer the hosts that this call would use, for a list separated by commas."""
    return _in_list(incomplete, [host.name for host in _hosts_in_reach(ctx)])


def limits(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer hosts, groups, and names excluded by `!`."""
    known = _hosts_in_reach(ctx)
    groups = {group: None for host in known for group in host.groups}
    return _in_list(incomplete, [*(host.name for host in known), *groups])


def configured(*_: object) -> list[str]:
    """Offer what `ipexctl config` accepts."""
    return ["init", *(name for name in commands() if name != "config")]


def clusters(ctx: typer.Context, _: str) -> list[str]:
    """Offer the clusters of the files of defaults."""
    try:
        tables = [file.tables.get(CLUSTER) for file in files_of(ctx)]
    except UserError:
        return []
    return [name for table in tables if isinstance(table, dict) for name in table]


def _in_list(incomplete: str, names: Iterable[str]) -> list[str]:
    """Return the names that are not in the list yet, each behind what was typed before."""
    before, comma, partial = incomplete.rpartition(",")
    negation = "!" if partial.startswith("!") else ""
    listed = {word.removeprefix("!") for word in before.split(",")}
    return [f"{before}{comma}{negation}{name}" for name in names if name not in listed]


def _hosts_in_reach(ctx: typer.Context) -> tuple[Host, ...]:
    """Return the hosts of the call so far; empty if its options are wrong."""
    params = ctx.params
    setting = defaults_of(ctx).get("hostfile")
    is_found = setting is not None and setting.is_found
    request = HostRequest(hosts=params.get("hosts"), hostfile=params.get("hostfile"), hostfile_found=is_found)
    try:
        cwd = Path.cwd()
        if request.hostfile is not None:
            check_regular(cwd / request.hostfile)  # Tab must not wait for a pipe
        selection = select_hosts(request, environ=os.environ, cwd=cwd, project=find_root(None, None, cwd))
    except (UserError, OSError):
        return ()
    return selection.hosts


def _records() -> list[Path]:
    """Return the record files of the newest runs, the newest first."""
    from ipexctl.homes.registry import RunRegistry

    try:
        dated = [(path.stat().st_mtime, path) for path in RunRegistry().directory.glob("*.json")]
    except (OSError, UserError):
        return []
    return [path for _, path in sorted(dated, reverse=True)][:NEWEST]


COMPLETIONS: Final[Mapping[str, Callable[[typer.Context, str], list[str]]]] = {
    completion.__name__: completion for completion in (runs, sources, environments, hosts, limits, configured, clusters)
}
