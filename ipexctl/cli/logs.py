"""`ipexctl logs`: the output of a run's ranks, from node0, or from the local copy if node0 is not available.

In come the run and a choice of ranks, streams and lines, which node0 applies, so that only these lines travel. Out go
lines in order of time, or one JSON document. The copy is read only if node0 has sent nothing yet: lines would come
twice. Output that is missing is named, whether a disk was full or the copy ends early, and the exit code is not 0 if
the copy is incomplete. With --follow the exit code is the run's.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import typer

from ipexctl.cli.options import RANKS, RECONNECT, RUN, Output, command, flag, option
from ipexctl.errors import OutputError, UserError
from ipexctl.hosts.names import quoted
from ipexctl.node.common.records import FINAL
from ipexctl.text import printable

if TYPE_CHECKING:
    from ipexctl.cli.interrupt import Leave
    from ipexctl.node.common.frames import StreamName
    from ipexctl.node.common.records import RunStatus
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.outcome import HostError
    from ipexctl.run.follow import LineChoice, OnRunUpdate, RunUpdate
    from ipexctl.run.registry import RunRecord
    from ipexctl.ui.run.plain import JsonLog, PlainRun


@command()
def logs_command(
    *,
    run: str = RUN,
    ranks: str = RANKS,
    follow: bool = flag("--follow -f", "Follow the logs until the run ends."),
    stderr: bool = flag("--stderr", "Print only the stderr of the ranks, to stdout."),
    tail: int | None = option(
        "--tail N", "Last N lines of all shown ranks together (default: all lines).", min=1, max=100_000
    ),
    timestamps: bool = flag("--timestamps", "Print the time when node0 received each line, after its rank."),
    grep: str = option("--grep RE", "Print only lines that match this regular expression.", ""),
    plain: bool = flag("--plain", "Print lines prefixed with their rank, which is how logs are printed."),
    reconnect: float = RECONNECT,
    output: Output,
) -> None:
    """Print the output of the ranks in order of time, each line prefixed with its rank.

    The stdout of a rank goes to stdout, its stderr to stderr. Only the chosen
    lines travel from node0. With --follow, the exit code is the run's.

    \b
    Example: ipexctl logs last -r 0 --tail 20 -f
    """
    from ipexctl.cli.interrupt import handling_signals
    from ipexctl.cli.run_hosts import begun, chosen_ranks, connector_of, find_run, report_host_error
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.outcome import Cancelled, HostError
    from ipexctl.run.follow import Follower, LineChoice, check_pattern
    from ipexctl.ui.messages import print_message
    from ipexctl.ui.run.plain import JsonLog, PlainRun

    del plain
    if output.json and follow:
        raise UserError("--json prints one document, and --follow has no end", fix="leave one of them out")
    check_pattern(grep)
    record = begun(find_run(run, output), output, waits=follow)
    streams: tuple[StreamName, ...] = ("stderr",) if stderr else ("stdout", "stderr")
    lines = LineChoice(chosen_ranks(record, ranks), streams, tail, grep, exact=timestamps or output.json)
    cancel = Cancel()
    code = 0

    def handle_signal(number: int, leave: Leave) -> None:
        nonlocal code
        if cancel.thrown:
            leave("")
        code = 128 + number
        cancel.throw()

    with handling_signals(handle_signal), connector_of(record, output) as connector:
        shown: JsonLog | PlainRun
        if output.json:
            shown = JsonLog(record, cancel)
        else:
            shown = PlainRun(cancel, no_color=output.no_color, quiet=output.quiet, timestamps=timestamps)
        watch = _lines_only(shown.watch, stderr=stderr and not output.json, follow=follow)
        follower = Follower(
            record,
            lambda cancel: connector.open(record.node0, cancel),
            watch,
            cancel,
            lines=lines,
            figures=10.0,
            reconnect=reconnect,
        )
        with shown:
            try:
                ended = follower.follow(to_the_end=follow)
                code = code or (ended.exit_code if follow else 0)
            except Cancelled:
                pass
            except HostError as error:
                if follower.status is None:
                    copy_code = _from_copy(record, error, watch, cancel, lines)
                else:  # what has come was printed
                    copy_code = report_host_error(record, error)
                code = code or copy_code
                if copy_code and isinstance(shown, JsonLog):
                    shown.reason = f"{record.node0.name}: {error.reason}"
            _report_missing_output(record, follower.status, shown, output)
    if not (shown.lines or code or output.json or output.quiet):
        reason = f"no line matches --grep {quoted(grep)}" if grep else _without_output(follower.status)
        which = ("" if ranks == "all" else f", ranks {ranks}") + (", stderr only" if stderr else "")
        print_message(printable(f"run {record.id}{which}: {reason}"))
    if shown.broken and not code:
        raise OutputError(shown.broken)
    raise typer.Exit(code)


def _without_output(status: RunStatus | None) -> str:
    is_over = status is not None and status.state in FINAL
    return "they printed nothing" if is_over else "there is no output yet"


def _report_missing_output(
    record: RunRecord, status: RunStatus | None, shown: JsonLog | PlainRun, output: Output
) -> None:
    """Say what the record of node0 lacks, because its disk was full, and where it is."""
    from ipexctl.run.registry import RunRegistry
    from ipexctl.ui.messages import print_message
    from ipexctl.ui.run.plain import JsonLog

    if status is None or (lost := status.output_lost) is None:
        return
    copy = RunRegistry().directory / record.id / "ranks"
    where = f"; what this machine has received of it is in {copy}" if copy.is_dir() else ""
    missing = f"{lost.bytes:,} bytes are not in the record of {lost.host}, whose disk was full{where}"
    if isinstance(shown, JsonLog):
        shown.reason = shown.reason or missing
    elif not output.quiet:
        print_message(printable(f"run {record.id}: {missing}"))


def _from_copy(record: RunRecord, error: HostError, watch: OnRunUpdate, cancel: Cancel, lines: LineChoice) -> int:
    """Print the local copy, made while the run was followed; the exit code is not 0 if the copy is incomplete."""
    from ipexctl.cli.run_hosts import report_host_error
    from ipexctl.remote.outcome import Cancelled, HostError, Unreachable
    from ipexctl.remote.progress import Notice
    from ipexctl.run.follow import follow_copy
    from ipexctl.run.local_copy import read_copy
    from ipexctl.run.registry import RunRegistry

    runs = RunRegistry().directory
    copy = read_copy(runs / record.id)
    if copy is None:
        return report_host_error(record, error)
    last_seen = time.strftime("%Y-%m-%d %H:%M", time.localtime(copy.seen))
    extent = "" if copy.is_complete else f", as far as the run was followed: until {last_seen}"
    watch(Notice(f"{record.node0.name}: {error.reason}; from the copy on this machine{extent}", not copy.is_complete))
    try:
        follow_copy(record, runs, watch, cancel, lines)
    except Cancelled:
        pass
    except HostError as copy_error:
        return report_host_error(record, copy_error)
    return 0 if copy.is_complete else 3 if isinstance(error, Unreachable) else 1


def _lines_only(watch: OnRunUpdate, *, stderr: bool, follow: bool) -> OnRunUpdate:
    """Send the lines of --stderr to stdout, and drop the end of the run unless the logs are followed."""
    from ipexctl.node.common.frames import Chunk
    from ipexctl.run.follow import RunEnded

    def watched(event: RunUpdate) -> None:
        if isinstance(event, Chunk) and stderr:
            event = event._replace(stream="stdout")
        if follow or not isinstance(event, RunEnded):
            watch(event)

    return watched
