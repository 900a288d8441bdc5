"""`ipexctl attach`: follows a run again."""

from __future__ import annotations

import typer

from ipexctl.cli.options import NAMED_RUN, RANKS, TextOutput, ViewOptions, command
from ipexctl.errors import UserError


@command()
def attach_command(
    *,
    run: str | None = NAMED_RUN,
    ranks: str = RANKS,
    view: ViewOptions,
    output: TextOutput,
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
    record = RunRegistry().find_named(run, "attach")
    chosen = parse_ranks(ranks).within(record.world_size)
    events = None
    if view.events:
        from ipexctl.remote.cancel import Cancel
        from ipexctl.ui.run.events import EventsView

        events = EventsView(Cancel(), ranks=chosen, quiet=output.quiet)
    raise typer.Exit(watch_run(record, view, chosen, output, events=events))
