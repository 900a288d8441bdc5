"""`ipexctl hub`: what lies in the hub cache of the hosts, and its removal. `ipexctl push hf:…` fills it."""

from __future__ import annotations

import typer

from ipexctl.cli.options import Home, Output, Targets, argument, subcommand
from ipexctl.errors import UserError

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
    from ipexctl.cli.hosts import call_options, check_home, choose_hosts, session_pool
    from ipexctl.hub.cache import list_cache
    from ipexctl.ui.hub import as_json, show

    home_dir, hosts = check_home(home), choose_hosts(targets)
    with session_pool(targets, output, hosts=hosts, quiet=output.quiet) as (pool, interrupt):
        report = list_cache(hosts, pool, home_dir, targets.timeout)
    output.print_report(call_options(targets, home).in_report(report), as_json, show)
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
    from ipexctl.cli.hosts import call_options, check_home, choose_hosts, session_pool
    from ipexctl.hub.cache import remove_from_cache
    from ipexctl.hugging_face import DEFAULT_REVISION, parse_repo
    from ipexctl.ui.hub import as_json, show

    wanted = [parse_repo(word) for word in repos]
    if any(repo.revision != DEFAULT_REVISION for repo in wanted):
        raise UserError("a repository is removed with all its revisions", fix="leave @REV out")
    home_dir, hosts = check_home(home), choose_hosts(targets)
    with session_pool(targets, output, hosts=hosts, quiet=output.quiet) as (pool, interrupt):
        report = remove_from_cache(wanted, hosts, pool, home_dir, targets.timeout)
    output.print_report(call_options(targets, home).in_report(report), as_json, show)
    raise interrupt.or_exit(report.exit_code)
