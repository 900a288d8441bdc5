"""`ipexctl stop`: stops a run on every node."""

from __future__ import annotations

import typer

from ipexctl.commands.ps_command import show_stopped
from ipexctl.commands.shared_options import NAMED_RUN, TIMEOUT, TextOutput, command
from ipexctl.errors import UserError
from ipexctl.option_declaration import check_seconds
from ipexctl.run.registry import RunRegistry


@command()
def stop_command(
    *,
    run: str | None = NAMED_RUN,
    timeout: float | None = TIMEOUT,
    output: TextOutput,
) -> None:
    """Stop a run on every node; ranks that do not exit within 4 seconds are killed.

    \b
    Example: ipexctl stop last
    """
    from ipexctl.api.known_runs import stop
    from ipexctl.commands.run_calls import call_about_runs

    if output.json:
        raise UserError("stop has no --json", fix="ipexctl ps --json has the state of each run")
    check_seconds("--timeout", timeout)
    record = RunRegistry().find_named(run, "stop")
    with call_about_runs(output) as (caller, _):
        result = stop(record, caller, timeout=timeout)
    show_stopped(record, result, quiet=output.quiet)
    raise typer.Exit(0 if result.status.is_over else 1)
