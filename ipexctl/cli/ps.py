"""`ipexctl ps`: the runs started from this machine, and how they are."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated

import typer

from ipexctl.cli.options import Output, shared

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
@shared(Output)
def ps_command(
    output: Output,
    running: Annotated[bool, typer.Option("--running", help="Only those that go on.")] = False,
) -> None:
    """Show the runs started from this machine: what each is doing, or how it ended.

    \b
    Example: ipexctl ps
    """
    from ipexctl.cli.interrupt import cancelling
    from ipexctl.cli.reached import reach_of
    from ipexctl.jobs.ps import look
    from ipexctl.jobs.record import Register
    from ipexctl.remote.cancel import Cancel
    from ipexctl.ui.ps import show, show_json

    records = Register().all()
    cancel = Cancel()
    with cancelling(cancel) as interrupt, ExitStack() as ways:
        runs = look(records, lambda record: ways.enter_context(reach_of(record)).open(record.node0, cancel), cancel)
    if running:
        runs = [run for run in runs if run.state in ("starting", "running", "unknown")]
    if output.json:
        show_json(runs)
    else:
        show(runs, quiet=output.quiet, no_color=output.no_color)
    raise typer.Exit(interrupt.code or 0)
