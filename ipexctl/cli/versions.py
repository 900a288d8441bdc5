"""`ipexctl versions`: the table of stacks, and the choice with its reason."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import typer

from ipexctl.cli.options import Home, Output, StackOptions, Targets, command
from ipexctl.errors import Interrupted

if TYPE_CHECKING:
    from ipexctl.stack.resolve.model import StackRequest


@command()
def versions_command(
    *,
    stack: StackOptions,
    targets: Targets,
    home: Home,
    output: Output,
) -> None:
    """Show the table of stacks, which one install would choose, and why.

    Hosts are queried only if they are named (--hosts, -H, -c): then the choice
    fits all of them.

    \b
    Example: ipexctl versions --torch 2.7
    """
    from ipexctl.stack.catalog.user_table import known_rows
    from ipexctl.stack.choice import VersionsReport, choose_stack, versions_for
    from ipexctl.stack.resolve.model import StackRequest
    from ipexctl.ui.versions import as_json, show_versions

    rows = known_rows(os.environ)
    request = StackRequest(**vars(stack))
    if not targets.names_hosts:
        report = VersionsReport(rows, choose_stack(request, {}, rows))
    else:
        from ipexctl.cli.hosts import check_home, choose_hosts, session_pool

        hosts = choose_hosts(targets)
        home_dir = check_home(home)
        with session_pool(targets, output, hosts=hosts, quiet=output.quiet) as (pool, interrupt):
            report = versions_for(hosts, request, rows, pool, home=home_dir, timeout=targets.timeout)
        if interrupt.code is not None:
            raise Interrupted(interrupt.code)
    output.print_report(report, as_json, show_versions, options=_same_call(request, targets, home))
    raise typer.Exit(report.exit_code)


def _same_call(request: StackRequest, targets: Targets, home: Home) -> str:
    """The command line options for the same request and hosts, for the suggested command."""
    from ipexctl.call_options import option_text
    from ipexctl.cli.hosts import host_options

    pairs = [(f"--{name}", getattr(request, name)) for name in ("torch", "stack", "ipex", "oneccl", "python")]
    require = " --require-oneccl" if request.require_oneccl else ""
    return option_text(pairs) + require + host_options(targets, home)
