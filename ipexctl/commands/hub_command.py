"""`ipexctl hub`: lists and removes what is in the hosts' hub cache. `ipexctl push hf:…` fills it."""

from __future__ import annotations

import typer

from ipexctl.commands.shared_options import Home, Output, Targets, argument, subcommand
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
    from ipexctl.api.hosts import list_repos
    from ipexctl.commands.target_hosts import open_hosts
    from ipexctl.ui.hub import as_json, show

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
    from ipexctl.api.hosts import remove_repos
    from ipexctl.commands.target_hosts import open_hosts
    from ipexctl.hugging_face import DEFAULT_REVISION, parse_repo
    from ipexctl.ui.hub import as_json, show

    wanted = [parse_repo(word) for word in repos]
    if any(repo.revision != DEFAULT_REVISION for repo in wanted):
        raise UserError("a repository is removed with all its revisions", fix="leave @REV out")
    with open_hosts(targets, home, output) as (opened, interrupt):
        report = remove_repos(opened, wanted)
    output.print_report(report, as_json, show)
    raise interrupt.or_exit(report.exit_code)
