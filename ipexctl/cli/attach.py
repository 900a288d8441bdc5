"""`ipexctl attach`: follows a run again."""

from __future__ import annotations

from typing import Annotated

import typer

from ipexctl.cli.options import Output, RunArgument, shared
from ipexctl.errors import UserError

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(no_args_is_help=True)
@shared(Output)
def attach_command(
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
    plain: Annotated[
        bool, typer.Option("--plain", help="Print lines prefixed with their rank, also on a terminal.")
    ] = False,
    live: Annotated[bool, typer.Option("--live", help="Show the live view; an error without a terminal.")] = False,
) -> None:
    """Watch a run from its first line until it ends; Ctrl-C stops the run, `q` detaches.

    \b
    Example: ipexctl attach last
    """
    from ipexctl.cli.watch import View, watch_run
    from ipexctl.jobs.ranks import parse_ranks
    from ipexctl.jobs.registry import RunRegistry

    if plain and live:
        raise UserError("--plain and --live are two views", fix="one of them")
    if output.json:
        raise UserError("attach has no --json", fix="ipexctl ps --json says how runs are")
    record = RunRegistry().find(run)
    chosen = parse_ranks(ranks).within(record.world_size)
    raise typer.Exit(watch_run(record, View(plain, live, chosen, output.no_color, output.quiet)))
