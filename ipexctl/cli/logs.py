"""`ipexctl logs`: the output of a run's ranks, from node0, or from the local copy if node0 is not available."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from ipexctl.cli.options import Output, RanksOption, RunArgument, grouped, option
from ipexctl.errors import OutputError, UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.cli.interrupt import Leave
    from ipexctl.jobs.follow import Event, Watch
    from ipexctl.jobs.registry import RunRecord
    from ipexctl.node.common.frames import Stream
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.outcome import HostError

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(no_args_is_help=True)
@grouped
def logs_command(
    *,
    run: RunArgument,
    ranks: RanksOption = "all",
    follow: Annotated[bool, option("--follow", "-f", help="Follow the logs until the run ends.")] = False,
    stderr: Annotated[bool, option("--stderr", help="Print only the stderr of the ranks, to stdout.")] = False,
    output: Output,
) -> None:
    """Print the output of the ranks, each line prefixed with its rank.

    The stdout of a rank goes to stdout, its stderr to stderr.

    \b
    Example: ipexctl logs last -r 0 -f
    """
    from ipexctl.cli.interrupt import handling_signals
    from ipexctl.cli.run_hosts import chosen_ranks, connector_of
    from ipexctl.jobs.follow import Follower
    from ipexctl.jobs.registry import RunRegistry
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.outcome import Cancelled, HostError
    from ipexctl.ui.run.plain import PlainRun

    if output.json:
        raise UserError("logs has no --json", fix="ipexctl ps --json says how runs are")
    record = RunRegistry().find(run)
    wanted_ranks = chosen_ranks(record, ranks)
    streams: tuple[Stream, ...] = ("stderr",) if stderr else ("stdout", "stderr")
    cancel = Cancel()
    code = 0

    def handle_signal(number: int, leave: Leave) -> None:
        nonlocal code
        if cancel.thrown:
            leave("")
        code = 128 + number
        cancel.throw()

    with handling_signals(handle_signal), connector_of(record, output) as connector:
        shown = PlainRun(cancel, no_color=output.no_color, quiet=output.quiet)
        watch = _lines_only(shown.watch, stderr, follow)
        follower = Follower(
            record,
            lambda cancel: connector.open(record.node0, cancel),
            watch,
            cancel,
            ranks=wanted_ranks,
            streams=streams,
            figures=10.0,
        )
        with shown:
            try:
                follower.follow(to_the_end=follow)
            except Cancelled:
                pass
            except HostError as error:
                copy_code = _from_copy(record, error, watch, cancel, wanted_ranks, streams)
                code = code or copy_code
    if shown.broken and not code:
        raise OutputError(shown.broken)
    raise typer.Exit(code)


def _from_copy(
    record: RunRecord,
    error: HostError,
    watch: Watch,
    cancel: Cancel,
    ranks: Sequence[int] | None,
    streams: Sequence[Stream],
) -> int:
    """Print the local copy, made while the run was followed; the exit code is not 0 if the copy is incomplete."""
    from ipexctl.cli.run_hosts import report_host_error
    from ipexctl.jobs.local_copy import read_copy
    from ipexctl.jobs.registry import RunRegistry
    from ipexctl.remote.outcome import Unreachable
    from ipexctl.remote.progress import Notice

    copy = read_copy(RunRegistry().directory / record.id)
    if copy is None:
        return report_host_error(record, error)
    last_seen = time.strftime("%Y-%m-%d %H:%M", time.localtime(copy.seen))
    extent = "" if copy.is_complete else f", as far as the run was followed: until {last_seen}"
    watch(Notice(f"{record.node0.name}: {error.reason}; from the copy on this machine{extent}", not copy.is_complete))
    for chunk in copy.chunks(ranks, streams):
        if cancel.thrown:
            break
        watch(chunk)
    return 0 if copy.is_complete else 3 if isinstance(error, Unreachable) else 1


def _lines_only(watch: Watch, stderr: bool, follow: bool) -> Watch:
    """Send the lines of --stderr to stdout, and drop the end of the run unless the logs are followed."""
    from ipexctl.jobs.follow import RunEnded
    from ipexctl.node.common.frames import Chunk

    def watched(event: Event) -> None:
        if isinstance(event, Chunk) and stderr:
            event = event._replace(stream="stdout")
        if follow or not isinstance(event, RunEnded):
            watch(event)

    return watched
