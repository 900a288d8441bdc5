"""`ipexctl attach`: follow a run again until it ends."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Final

import typer

from ipexctl.api.explained_runs import why
from ipexctl.commands.named_runs import call_about_runs, find_named_run
from ipexctl.commands.option_groups import NAMED_RUN, RANKS, SUMMARY, RunHosts, TextOutput, ViewOptions, command, flag
from ipexctl.commands.summary_file import check_summary, write_summary
from ipexctl.commands.watch import watch_run
from ipexctl.commands.why_command import profile_live
from ipexctl.errors import UserError
from ipexctl.homes.local_copy import read_final_status
from ipexctl.homes.registry import RunRegistry
from ipexctl.node.common.fix import Fix
from ipexctl.remote.cancel import Cancel
from ipexctl.run.profile import lines_of
from ipexctl.run.ranks import parse_ranks
from ipexctl.ui.message_output import print_message
from ipexctl.ui.run.events import EventsView

_DETACHING: Final = (signal.SIGHUP, signal.SIGTERM)
"""Signals that do not stop the run: `timeout 60 ipexctl attach RUN` only watches it."""


@command()
def attach_command(
    *,
    run: str | None = NAMED_RUN,
    ranks: str = RANKS,
    view: ViewOptions,
    profile: bool = flag("--profile", "First profile the next two optimizer steps, on all ranks."),
    summary: Path | None = SUMMARY,
    where: RunHosts,
    output: TextOutput,
) -> None:
    """Watch a run from its first line until it ends; Ctrl-C stops the run, `q` and SIGTERM detach.

    The exit code is the run's; after SIGTERM, 143. To wait for the end without output: ipexctl wait.

    \b
    Example: ipexctl attach last
    """
    if output.json:
        raise UserError("attach has no --json", fix=Fix("`ipexctl ps --json` has the state of each run"))
    record = find_named_run(run or _only_run(), "attach", where, output)
    check_summary(summary)
    if profile and not profile_live(record, output)[0]:
        with call_about_runs(output) as (caller, _):
            for line in lines_of(why(record, caller).profile):
                print_message(line)
    began = time.monotonic()
    chosen = parse_ranks(ranks).within(record.plan.world_size)
    events = None
    if view.events:
        events = EventsView(Cancel(), ranks=chosen, quiet=output.quiet)
    code = watch_run(record, view, chosen, output, events=events, detaching=_DETACHING)
    if summary is not None:
        status = read_final_status(RunRegistry().directory / record.id)
        if not record.is_kept:
            with call_about_runs(output) as (caller, _):
                status = snapshot.status if (snapshot := why(record, caller).snapshot) else None
        if not write_summary(summary, record, status, code, time.monotonic() - began):
            code = code or 1
    raise typer.Exit(code)


def _only_run() -> str | None:
    """Return the only run whose end this machine has not seen; None if there are several, or none."""
    registry = RunRegistry()
    open_runs = [record.id for record in registry.all() if read_final_status(registry.directory / record.id) is None]
    return open_runs[0] if len(open_runs) == 1 else None
