"""`ipexctl versions`: the table of stacks, and the choice with its reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from ipexctl.commands.shared_options import Home, Output, StackOptions, Targets, command

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
    from ipexctl.api.hosts import versions
    from ipexctl.commands.target_hosts import open_hosts
    from ipexctl.stack.resolve.model import StackRequest
    from ipexctl.ui.versions import as_json, show_versions

    request = StackRequest(**vars(stack))
    if not targets.names_hosts:
        report = versions(request)
    else:
        with open_hosts(targets, home, output) as (opened, interrupt):
            report = versions(request, opened)
        interrupt.check()
    output.print_report(report, as_json, show_versions, options=_same_call(request, targets, home))
    raise typer.Exit(report.exit_code)


def _same_call(request: StackRequest, targets: Targets, home: Home) -> str:
    from ipexctl.call_options import option_text
    from ipexctl.commands.target_hosts import host_options

    pairs = [(f"--{name}", getattr(request, name)) for name in ("torch", "stack", "ipex", "oneccl", "python")]
    require = " --require-oneccl" if request.require_oneccl else ""
    return option_text(pairs) + require + host_options(targets, home)
