"""`ipexctl dump`: the Python stack of every rank of a run."""

from __future__ import annotations

import typer

from ipexctl.cli.options import RANKS, RUN, TIMEOUT, Output, command, flag
from ipexctl.errors import CallError


@command()
def dump_command(
    *,
    run: str = RUN,
    ranks: str = RANKS,
    everything: bool = flag("--all -a", "Show every thread and process, and all calls of deep stacks."),
    timeout: float | None = TIMEOUT,
    output: Output,
) -> None:
    """Show the Python stack of every rank of a running run.

    Ranks at the same place are grouped, the smallest groups first.

    \b
    Example: ipexctl dump last
    """
    from ipexctl.api.hosts import check_seconds
    from ipexctl.api.runs import dump
    from ipexctl.cli.run_hosts import begun, call_about_runs, chosen_ranks, find_run
    from ipexctl.node.common.records import RunStatus
    from ipexctl.ui.dump import show, show_json, show_over
    from ipexctl.ui.messages import print_with_fix

    check_seconds("--timeout", timeout)
    record = begun(find_run(run, output), output)
    wanted = chosen_ranks(record, ranks)

    def show_error(reason: str) -> None:
        if output.json:
            show_json(None, record.id, reason)

    try:
        with call_about_runs(output) as (caller, _):
            stacks = dump(record, caller, wanted, timeout=timeout)
    except CallError as error:
        show_error(error.message)
        print_with_fix(error.message, error.fix)
        raise typer.Exit(error.exit_code) from None
    if isinstance(stacks, RunStatus):
        show_error(f"the run has ended: {stacks.state}" if stacks.is_over else "the run waits in the queue")
        show_over(stacks, record.id)
        raise typer.Exit(1)
    if output.json:
        show_json(stacks, record.id)
    else:
        show(stacks, record.id, everything=everything, quiet=output.quiet, no_color=output.no_color)
    raise typer.Exit(0 if stacks.is_whole else 1)
