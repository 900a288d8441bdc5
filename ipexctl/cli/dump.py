"""`ipexctl dump`: the Python stack of every rank of a run."""

from __future__ import annotations

from typing import Annotated

import typer

from ipexctl.cli.options import Output, RunArgument, shared

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(no_args_is_help=True)
@shared(Output)
def dump_command(
    output: Output,
    run: RunArgument,
    ranks: Annotated[
        str,
        typer.Option(
            "--ranks",
            "-r",
            metavar="RANKS",
            show_default=False,
            help="Ranks to show, such as 0 or 0-3,8 (default: all).",
        ),
    ] = "all",
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Show every thread and process, and all calls of deep stacks.")
    ] = False,
) -> None:
    """Show the Python stack of every rank of a running run.

    Ranks at the same place are grouped, the smallest groups first.

    \b
    Example: ipexctl dump last
    """
    from ipexctl.cli.interrupt import cancelling
    from ipexctl.cli.run_hosts import connector_of, report_host_error
    from ipexctl.jobs.dump import RunOver, dump
    from ipexctl.jobs.ranks import parse_ranks
    from ipexctl.jobs.registry import RunRegistry
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.outcome import HostError
    from ipexctl.ui.dump import show, show_json, show_over

    record = RunRegistry().find(run)
    chosen = parse_ranks(ranks).within(record.world_size)
    wanted_ranks = None if chosen.everyone else [rank for rank in range(record.world_size) if rank in chosen]
    cancel = Cancel()
    with cancelling(cancel) as interrupt, connector_of(record, output) as connector:
        try:
            session = connector.open(record.node0, cancel)
            try:
                stacks = dump(session, record, wanted_ranks, cancel)
            finally:
                session.close()
        except HostError as error:
            if output.json:
                show_json(None, record.id, f"{record.node0.name}: {error.reason}")
            raise typer.Exit(interrupt.code or report_host_error(record, error)) from None
    if isinstance(stacks, RunOver):
        if output.json:
            show_json(None, record.id, f"the run has ended: {stacks.status.state}")
        show_over(stacks, record.id)
        raise typer.Exit(1)
    if output.json:
        show_json(stacks, record.id)
    else:
        show(stacks, record.id, everything=everything, quiet=output.quiet, no_color=output.no_color)
    raise typer.Exit(0 if stacks.is_whole else 1)
