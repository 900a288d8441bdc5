"""`ipexctl dump`: the Python stack of every rank of a run."""

from __future__ import annotations

import typer

from ipexctl.cli.options import RANKS, RUN, TIMEOUT, Output, command, flag
from ipexctl.limits import STOP_ANSWER


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
    from ipexctl.cli.hosts import check_seconds
    from ipexctl.cli.run_hosts import begun, call_node0, chosen_ranks, find_run
    from ipexctl.node.common.records import RunStatus
    from ipexctl.run.dump import dump
    from ipexctl.ui.dump import show, show_json, show_over

    check_seconds("--timeout", timeout)
    seconds = timeout or STOP_ANSWER
    record = begun(find_run(run, output), output)
    wanted = chosen_ranks(record, ranks)

    def show_error(reason: str) -> None:
        if output.json:
            show_json(None, record.id, reason)

    stacks = call_node0(
        record, output, lambda session, cancel: dump(session, record, wanted, cancel, timeout=seconds), show_error
    )
    if isinstance(stacks, RunStatus):
        show_error(f"the run has ended: {stacks.state}" if stacks.is_over else "the run waits in the queue")
        show_over(stacks, record.id)
        raise typer.Exit(1)
    if output.json:
        show_json(stacks, record.id)
    else:
        show(stacks, record.id, everything=everything, quiet=output.quiet, no_color=output.no_color)
    raise typer.Exit(0 if stacks.is_whole else 1)
