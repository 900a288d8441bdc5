"""`ipexctl uninstall`: remove ipexctl from the hosts and from the control machine.

Without --yes it asks the hosts twice: first to list what is there, and to remove it once the user has agreed.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import typer

from ipexctl.commands.option_groups import Home, Output, Targets, command, flag
from ipexctl.errors import UserError
from ipexctl.hosts.nodeset import fold
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.json_records import encode
from ipexctl.node.common.owners import name_owners
from ipexctl.text import format_count, readable
from ipexctl.ui.message_output import ask, print_message, print_with_fix
from ipexctl.ui.results import group_by, host_json, report_json, show_results
from ipexctl.ui.text_table import print_lines

if TYPE_CHECKING:
    from ipexctl.node.uninstall import FileGroup
from ipexctl.homes.uninstall_hosts import UninstallReport, UninstallResult


@command()
def uninstall_command(
    *,
    with_results: bool = flag("--with-results", "Remove the files that runs wrote, too: checkpoints, output."),
    dry_run: bool = flag("--dry-run", "List what would be removed; remove nothing."),
    force: bool = flag("--force", "Remove runs and environments of others, too."),
    yes: bool = flag("--yes -y", "Remove without asking first."),
    targets: Targets,
    home: Home,
    output: Output,
) -> None:
    """Remove everything that ipexctl put on the hosts and on the control machine.

    It lists what it found and asks before it removes anything. Files that
    runs wrote stay, unless --with-results is given. While a run is alive on
    one of the hosts, nothing is removed; --dry-run still lists everything.

    \b
    Example: ipexctl uninstall --hosts 'node[1-4]' --dry-run
    """
    from ipexctl.api.host_stacks import uninstall
    from ipexctl.commands.target_hosts import host_options, open_hosts

    if not dry_run and not yes and (output.json or not sys.stdin.isatty()):
        selection = host_options(targets, home)
        reason = "--json prints no question" if output.json else "stdin is not a terminal to answer on"
        raise UserError(
            f"uninstall asks before it removes anything, and {reason}",
            fix=Fix(
                "`ipexctl uninstall {*hosts} --dry-run` lists it; to remove it: `ipexctl uninstall {*hosts} --yes`",
                hosts=shlex.split(selection),
            ),
        )
    if dry_run or not yes:
        with open_hosts(targets, home, output) as (opened, interrupt):
            report = uninstall(opened, with_results=with_results, only_lists=True, dry_run=dry_run, force=force)
        output.print_report(report, as_json, show)
        if dry_run or interrupt.code is not None or report.control.has_failed or not report.has_changes:
            raise interrupt.or_exit(report.exit_code)
        if not confirm(report):
            output.print_note("nothing was removed")
            raise typer.Exit(1)
    with open_hosts(targets, home, output) as (opened, interrupt):
        report = uninstall(opened, with_results=with_results, force=force)
    output.print_report(report, as_json, show)
    raise interrupt.or_exit(report.exit_code)


_FOUND: Final = {
    "environments": "environment",
    "runs": "run",
    "projects": "project",
    "results": "run result",
    "wheels": "cached wheel",
    "agent": "agent version",
    "checkpoints": "checkpoint record",
    "hub": "directory of a hub's cache",
    "temporary": "temporary file",
}
"""Kind of files that are removed → what a text counts."""
_LEFT: Final = {
    "runs": "output of runs",
    "projects": "files that runs wrote",
    "results": "results of runs",
    "pushed": "data that push wrote",
    "changed": "what others changed in data that push wrote",
    "settings": "the settings before tune",
    "records": "records of runs on other hosts",
    "home": "what was installed and run on this machine",
    "config": "your settings",
    "labs": "labs",
}
"""Kind of files that stay → what a text says."""
_UNSHOWN: Final = ("starting", "over", "busy")
"""Fields that no document has."""


def as_json(report: UninstallReport) -> dict[str, Any]:
    """Return the document."""
    obstacles = [{"name": name, "reason": error.reason, "fix": error.fix} for name, error in report.obstacles.items()]
    return report_json(
        "uninstall",
        report,
        without=("is_survey",),
        hosts=[host_json(result, without=_UNSHOWN, **_files_json(result)) for result in report.hosts],
        control=encode(report.control, without=("host", "seconds", "home", "store", "foreign", *_UNSHOWN))
        | _files_json(report.control),
        obstacles=obstacles,
        dry_run=report.is_survey,
    )


def _files_json(result: UninstallResult) -> dict[str, Any]:
    """Return what was found on a host, and what is left there."""
    return {
        "found": [_group_json(group) for group in result.found],
        "left": [{**_group_json(group), "fix": group.fix} for group in result.left],
        "logins": "",  # programs may read the key; no login is added to a host
    }


def _group_json(group: FileGroup) -> dict[str, Any]:
    """Return a group of files."""
    return {"kind": group.kind, "count": group.entries, "bytes": group.size, "path": group.path}


def show(report: UninstallReport, *, quiet: bool = False) -> None:
    """Print what was found, or removed, on each host, what is left, and what would be refused now."""
    alike = group_by(
        report.results, lambda result: (result.status, result.reason, result.foreign, tuple(map(_name, result.found)))
    )
    texts = {result.host.name: _describe(group) for group in alike.values() for result in group}
    show_results(report.results, lambda result: texts[result.host.name], quiet=quiet, dry_run=report.is_survey)
    if quiet or report.control.status == "failed":
        return
    for fix, lines in _left(report).items():
        print_lines([*lines, "  " + fix])
    names = [result.host.name for result in report.results if result.host.name in report.obstacles]
    for fix, names_of_fix in group_by(names, lambda name: report.obstacles[name].fix).items():
        reasons = group_by(names_of_fix, lambda name: report.obstacles[name].reason)
        lines = [f"{fold(hosts)}: {reason}" for reason, hosts in reasons.items()]
        print_with_fix("\n".join(["note: now the call without --dry-run is refused:", *lines]), fix)
    _print_next_step(report)


def _left(report: UninstallReport) -> dict[str, list[str]]:
    """Return what stays, by its fix: fix → lines."""
    hosts: dict[tuple[str, str], list[str]] = {}
    for result in report.results:
        for group in result.left:
            size = f" ({readable(group.size)})" if group.size else ""
            text = f"{_LEFT.get(group.kind, 'not of ipexctl')}: {group.path}{size}"
            hosts.setdefault((group.fix, text), []).append(result.host.name)
    lines: dict[str, list[str]] = {}
    for (fix, text), names in hosts.items():
        lines.setdefault(fix, []).append(f"{fold(names)}: left: {text}")
    return lines


def _name(group: FileGroup) -> str:
    """Return what a text calls the files."""
    return _FOUND.get(group.kind) or f"{group.kind} {group.path}"


def _describe(results: Sequence[UninstallResult]) -> str:
    """Describe what hosts with the same kinds of files have: how many of each kind on all of them together."""
    texts, result = [], results[0]
    for groups in zip(*(other.found for other in results), strict=True):
        name, count = _name(groups[0]), sum(group.entries for group in groups)
        what = format_count(count, name) if groups[0].kind in _FOUND else name
        texts.append(f"{what} ({readable(sum(group.size for group in groups))})")
    others = f"of these, not yours: {name_owners(result.foreign)}" if result.foreign else ""
    return "; ".join(filter(None, (", ".join(texts), others, result.reason))) or "nothing of ipexctl"


def _print_next_step(report: UninstallReport) -> None:
    """Print what to type next."""
    if not report.has_changes:
        return
    if report.is_survey:
        print_message("nothing was removed yet")
    else:
        print_with_fix(
            "the command itself is still installed",
            "pip uninstall ipexctl, pipx uninstall ipexctl or uv tool uninstall ipexctl",
        )


def confirm(report: UninstallReport) -> bool:
    """Ask whether to remove. Only y or yes confirms; a closed stdin does not."""
    answer = ask(f"Remove this from {format_count(len(report.hosts), 'host')} and the control machine? (y/n)")
    return answer.strip().lower() in ("y", "yes")
