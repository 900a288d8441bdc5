"""`ipexctl push`: data to a path of the user's choice on every host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ipexctl.cli.options import Home, Output, Targets, argument, command, flag
from ipexctl.errors import UserError
from ipexctl.text import expanded


@command(no_args_is_help=True)
def push_command(
    *,
    source: Path = argument("SRC", "File or directory of the control machine.", readable=False),
    path: str = argument("[HOSTS:]PATH", "Path on the hosts, absolute or below the home; DIR/ for a copy in DIR."),
    force: bool = flag("--force", "Replace files there that have other content."),
    dry_run: bool = flag("--dry-run", "Print what would be sent; change nothing."),
    targets: Targets,
    home: Home,
    output: Output,
) -> None:
    """Copy data to the same path on every host.

    All of SRC is sent, each byte once over the link of the control machine,
    and from host to host. Files that are there are compared by their hash:
    equal ones are skipped, others refused without --force. Nothing is
    deleted. An interrupted push is continued by the same command.

    \b
    Example: ipexctl push ./corpus 'node[1-4]:/data/corpus'
    """
    from ipexctl.api.hosts import push
    from ipexctl.cli.hosts import open_hosts
    from ipexctl.files.push_source import parse_target

    source = expanded(source)
    target = parse_target(path, source)
    targets = targets if target.hosts is None else _with_hosts(targets, target.hosts)
    with open_hosts(targets, home, output, steps_from=2) as (opened, interrupt):
        opened.pool.warm(opened.hosts)  # they are connected while modules are imported
        from ipexctl.ui.progress_view import ProgressView
        from ipexctl.ui.push import as_json, show

        with ProgressView(quiet=output.quiet, verbose=output.verbose > 0, no_color=output.no_color) as view:
            report = push(opened, source, target.path, force=force, dry_run=dry_run, watch=view.watch)
    output.print_report(report, as_json, show)
    raise interrupt.or_exit(report.exit_code)


def _with_hosts(targets: Targets, hosts: str) -> Targets:
    """HOSTS of the word limit the hosts of the call; without a named hostfile, others are hosts of their own."""
    from ipexctl.cli.hosts import choose_hosts

    for option, name, value in (("--hosts", "hosts", targets.hosts), ("-l", "limit", targets.limit)):
        if value is not None and name not in targets.defaults:
            raise UserError(f"HOSTS:PATH and {option} both name hosts", fix=f"{option} '{value}' with PATH alone")
    limited = replace(targets, limit=hosts)
    if targets.hostfile is not None and "hostfile" not in targets.defaults:
        return limited
    try:
        choose_hosts(limited)
    except UserError:
        return replace(targets.without_defaults("hosts", "hostfile", "limit"), hosts=hosts)
    return limited
