"""`ipexctl hub`: lists and removes models and datasets in the hosts' hub cache, which `ipexctl push hf:…` fills."""

from __future__ import annotations

import time
from typing import Any, Final

import typer

from ipexctl.commands.shared_options import Home, Output, Targets, argument, subcommand
from ipexctl.errors import UserError
from ipexctl.hub.cached_repos import CacheReport, CacheResult
from ipexctl.hugging_face import DEFAULT_REVISION, HubRepo, parse_repo
from ipexctl.node.files.call_replies import CachedRepo
from ipexctl.text import readable
from ipexctl.ui.messages import print_message
from ipexctl.ui.results import group_by, report_json, show_results
from ipexctl.ui.text_table import fitting_layout, folded_hosts, show_table

hub_command = typer.Typer(
    help="List or remove models and datasets in the hub cache of every host.",
    epilog="Example: ipexctl hub ls --hosts 'node[1-4]'",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)


@subcommand(hub_command, "ls")
def list_command(*, targets: Targets, home: Home, output: Output) -> None:
    """List the models and datasets on every host, with size and last use.

    \b
    Example: ipexctl hub ls --hosts 'node[1-4]'
    """
    from ipexctl.api.pushed_files import list_repos
    from ipexctl.commands.target_hosts import open_hosts

    with open_hosts(targets, home, output) as (opened, interrupt):
        report = list_repos(opened)
    output.print_report(report, as_json, show)
    raise interrupt.or_exit(report.exit_code)


@subcommand(hub_command, "rm", no_args_is_help=True)
def remove_command(
    *,
    repos: list[str] = argument("REPO…", "Repositories to remove: hf:ORG/MODEL or hf-dataset:ORG/NAME."),
    targets: Targets,
    home: Home,
    output: Output,
) -> None:
    """Remove models and datasets, with all their revisions, from every host.

    \b
    Example: ipexctl hub rm hf:org/model --hosts 'node[1-4]'
    """
    from ipexctl.api.pushed_files import remove_repos
    from ipexctl.commands.target_hosts import open_hosts

    wanted = [parse_repo(word) for word in repos]
    if any(repo.revision != DEFAULT_REVISION for repo in wanted):
        raise UserError("a repository is removed with all its revisions", fix="leave @REV out")
    with open_hosts(targets, home, output) as (opened, interrupt):
        report = remove_repos(opened, wanted)
    output.print_report(report, as_json, show)
    raise interrupt.or_exit(report.exit_code)


_LAYOUTS: Final = (("repository", "revisions", "files", "size", "last use", "hosts"), ("repository", "size", "hosts"))


def as_json(report: CacheReport) -> dict[str, Any]:
    return report_json("hub", report, without=("is_list",))


def show(report: CacheReport, *, quiet: bool = False, no_color: bool = False) -> None:
    if report.is_list:
        _show_list(report, quiet=quiet, no_color=no_color)
    show_results(report.hosts, _describe, quiet=quiet or report.is_list, no_color=no_color)


def _describe(result: CacheResult) -> str:
    if not result.removed:
        return result.reason or "nothing to remove"
    return f"removed {', '.join(result.removed)}, {readable(result.freed_bytes)}"


def _show_list(report: CacheReport, *, quiet: bool, no_color: bool) -> None:
    entries = [(_row(repo), done.host.name) for done in report.hosts for repo in done.repos]
    if entries:
        equal = group_by(entries, lambda entry: tuple(entry[0].items()))
        rows = [{**dict(row), "hosts": folded_hosts([name for _, name in found])} for row, found in equal.items()]
        layout = fitting_layout(_LAYOUTS, rows)
        show_table(layout, [[row[name] for name in layout] for row in rows], no_color=no_color)
    elif not quiet and any(done.status == "ok" for done in report.hosts):
        print_message("no models and no datasets; ipexctl push copies one there, named as hf:ORG/MODEL")


def _row(repo: CachedRepo) -> dict[str, str]:
    return {
        "repository": HubRepo("dataset" if repo.kind == "dataset" else "model", repo.repo_id).word,
        "revisions": ", ".join(revision[:12] for revision in repo.revisions) or "-",
        "files": f"{repo.files:,}",
        "size": readable(repo.size),
        "last use": time.strftime("%Y-%m-%d", time.localtime(repo.used)) if repo.used else "-",
    }
