"""`ipexctl push`: copy data to a path on every host, or repositories of a hub to the caches of the hosts.

The prefix of the first word decides (`hf:`); options of the other kind are refused.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from ipexctl.commands.option_groups import Home, Output, Targets, argument, command, flag, option
from ipexctl.commands.target_hosts import choose_hosts, open_hosts
from ipexctl.errors import UserError
from ipexctl.files.push_files import PushReport, PushResult
from ipexctl.files.push_source import parse_target
from ipexctl.hub.hugging_face import is_repo_word, parse_repo
from ipexctl.node.common.fix import Fix
from ipexctl.option_declaration import HUB_MACHINE
from ipexctl.text import expand_tilde, format_count, readable
from ipexctl.ui.message_output import print_message
from ipexctl.ui.progress_view import ProgressView
from ipexctl.ui.results import fold_equal, how_to_continue, report_json, show_results
from ipexctl.ui.text_table import print_lines


@command(no_args_is_help=True)
def push_command(
    *,
    source: Path = argument(
        "SRC|REPO",
        "File or directory of the control machine; or hf:ORG/MODEL[@REV], hf-dataset:ORG/NAME[@REV] of a hub.",
        readable=False,
    ),
    others: list[str] = argument(
        "[HOSTS:]PATH|[REPO…]",
        "Path on the hosts, absolute or below the home; DIR/ for a copy in DIR. Or more repositories.",
        [],
    ),
    force: bool = flag("--force", "Replace files there that have other content and that no push wrote."),
    include: list[str] | None = option(
        "--include GLOB", "Take only these files of a repository, such as '*.safetensors'; repeatable."
    ),
    on: str = option(
        "--on WHERE", "Machine that downloads: control, node0, a host, or auto (default: {default}).", HUB_MACHINE
    ),
    dry_run: bool = flag("--dry-run", "Print what would be sent; change nothing."),
    targets: Targets,
    home: Home,
    output: Output,
) -> None:
    """Copy data, or models and datasets of a hub, to every host.

    Each byte of SRC crosses the control machine's link once, and then goes from
    host to host. Existing files are compared by hash: identical files are skipped,
    those that a push wrote are replaced, others need --force. Nothing is deleted.
    After an interruption, the same command continues.

    One machine downloads a REPO from the hub and sends it to the hub cache of
    every host; `ipexctl run` gives that cache to scripts. It uses your HF_TOKEN
    and HF_ENDPOINT.

    \b
    Example: ipexctl push ./corpus 'node[1-4]:/data/corpus'
    Example: ipexctl push hf:org/model --hosts 'node[1-4]'
    """
    if is_repo_word(str(source)):
        _push_repos([str(source), *others], force, include or [], on, dry_run, targets, home, output)

    source = expand_tilde(source)
    if include or on != HUB_MACHINE:
        raise UserError(
            "--include and --on are for repositories of a hub",
            fix="leave them out, or name a repository, as hf:ORG/MODEL",
        )
    if len(others) != 1:
        raise UserError(
            f"push takes SRC and PATH, not {len(others) + 1} words", fix=Fix("`ipexctl push ./corpus data/corpus`")
        )
    hosts, path = parse_target(others[0], source)
    targets = targets if hosts is None else _with_hosts(targets, hosts)
    with open_hosts(targets, home, output) as (opened, interrupt):
        opened.warm()
        from ipexctl.api.pushed_files import push  # while the hosts connect

        with ProgressView(quiet=output.quiet, verbose=output.verbose > 0) as view:
            report = push(opened, source, path, force=force, dry_run=dry_run, watch=view.watch)
    output.print_report(report, as_json, show)
    raise interrupt.or_exit(report.exit_code)


def _push_repos(
    words: list[str],
    force: bool,
    include: list[str],
    on: str,
    dry_run: bool,
    targets: Targets,
    home: Home,
    output: Output,
) -> NoReturn:
    """Push repositories of a hub, and exit. Raises a UserError for options or words that are for a path."""
    if other := next((word for word in words if not is_repo_word(word)), None):
        fix = "write it as hf:ORG/MODEL or hf-dataset:ORG/NAME"
        raise UserError(f"{other[:200]!r} is not a repository of a hub", fix=fix)
    if force:
        raise UserError("--force is for PATH: a file of a repository has its hash as its name", fix="leave --force out")
    repos = list(dict.fromkeys(map(parse_repo, words)))
    if len({repo.folder for repo in repos}) < len(repos):
        raise UserError("a repository is named twice, with two revisions", fix="push one revision, then the other")
    from ipexctl.hub.downloader import take_hub_access  # slow to import

    access = take_hub_access(os.environ)
    with open_hosts(targets, home, output) as (opened, interrupt):
        opened.warm()
        from ipexctl.api.pushed_files import push_repos  # while the hosts connect

        with ProgressView(quiet=output.quiet, verbose=output.verbose > 0) as view:
            report = push_repos(opened, repos, access, include=include, on=on, dry_run=dry_run, watch=view.watch)
    output.print_report(report, as_json, show)
    for path in (repo.path for repo in report.repos if repo.path and not (output.json or output.quiet or dry_run)):
        print_message(f"the directory of this dataset on each host, for load_dataset() or --dataset_name: {path}")
    raise interrupt.or_exit(report.exit_code)


def _with_hosts(targets: Targets, hosts: str) -> Targets:
    """Return the targets with the HOSTS of `HOSTS:PATH`.

    HOSTS limit the chosen hosts. If they are not among these, they replace them, unless a hostfile is named.
    """
    for named, name, value in (("--hosts", "hosts", targets.hosts), ("-l", "limit", targets.limit)):
        if value is not None and name not in targets.defaults:
            raise UserError(f"HOSTS:PATH and {named} both name hosts", fix=f"{named} '{value}' with PATH alone")
    limited = replace(targets, limit=hosts)
    if targets.hostfile is not None and "hostfile" not in targets.defaults:
        return limited
    try:
        choose_hosts(limited)
    except UserError:
        return replace(targets.without_defaults("hosts", "hostfile", "limit"), hosts=hosts)
    return limited


def as_json(report: PushReport) -> dict[str, Any]:
    """Return the document."""
    return report_json("push", report, without=("size",), bytes=report.size)


def show(report: PushReport, *, quiet: bool = False) -> None:
    """Print the results; with --dry-run also the names of the files."""
    show_results(report.hosts, _describe, quiet=quiet, dry_run=report.dry_run)
    if report.dry_run and not quiet:
        _show_names(report)
    if not quiet:
        _print_next_step(report)


def _describe(result: PushResult) -> str:
    """Describe what a host got."""
    if result.status != "changed" or result.reason:
        return result.reason
    parts = [format_count(result.files_sent, "file")] if result.files_sent else ["directories"]
    parts += [f"{result.replaced:,} of them in place of others"] if result.replaced else []
    parts += [f"{result.same:,} {'was' if result.same == 1 else 'were'} there"] if result.same else []
    return f"{', '.join(parts)}: {result.path}"


def _show_names(report: PushReport) -> None:
    """Print the files that would be sent, once for equal hosts."""
    groups = fold_equal([result for result in report.hosts if result.would_send], lambda result: result.would_send)
    for names, hosts in groups.items():
        print_lines(
            [*([f"{hosts}:"] if len(groups) > 1 else []), *(f"  send    {name or report.path}" for name in names)]
        )


def _print_next_step(report: PushReport) -> None:
    """Print what to type next."""
    statuses = {result.status for result in report.hosts}
    failed = [result for result in report.hosts if result.status in ("failed", "unreachable") and not result.refused]
    cut_short = [result for result in failed if result.path is not None]
    if report.dry_run:
        print_message("nothing was sent (--dry-run)")
    elif report.hosts and statuses == {"ok"}:
        size = f"{format_count(report.files, 'file')}, {readable(report.size)}"
        print_message(f"nothing to do: every host has the same {size}")
    elif cut_short:
        print_message(how_to_continue(cut_short, "push"))
