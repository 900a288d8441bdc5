"""`ipexctl attach`: follows a run again."""

from __future__ import annotations

import typer

from ipexctl.cli.defaults import ConfiguredCommand
from ipexctl.cli.options import Output, RanksOption, RunArgument, ViewOptions, grouped
from ipexctl.errors import UserError

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(cls=ConfiguredCommand, no_args_is_help=True)
@grouped
def attach_command(
    *,
    run: RunArgument,
    ranks: RanksOption = "all",
    view: ViewOptions,
    output: Output,
) -> None:
    """Watch a run from its first line until it ends; Ctrl-C stops the run, `q` detaches.

    \b
    Example: ipexctl attach last
    """
    from ipexctl.cli.watch import watch_run
    from ipexctl.jobs.ranks import parse_ranks
    from ipexctl.jobs.registry import RunRegistry

    if output.json:
        raise UserError("attach has no --json", fix="ipexctl ps --json says how runs are")
    record = RunRegistry().find(run)
    chosen = parse_ranks(ranks).within(record.world_size)
    raise typer.Exit(watch_run(record, view, chosen, output))
