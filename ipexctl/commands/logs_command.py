"""`ipexctl logs`: print the output of a run's ranks.

It comes from node0, which selects the lines, or from the local copy if node0 is not available. With --follow the exit
code is the run's.
"""

from __future__ import annotations

import typer

from ipexctl.api.followed_runs import logs
from ipexctl.commands.named_runs import call_about_runs, chosen_ranks, find_run
from ipexctl.commands.option_groups import RANKS, RECONNECT, RUN, Output, RunHosts, command, flag, option
from ipexctl.errors import OutputError, UserError
from ipexctl.hosts.host import quote
from ipexctl.node.common.frames import Chunk, StreamName
from ipexctl.node.common.records import FINAL, RunStatus
from ipexctl.run.follow_run import LineChoice, OnRunUpdate, RunEnded, RunUpdate, check_pattern
from ipexctl.ui.message_output import print_message, print_with_fix
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
    plain: bool = flag("--plain", "Print lines prefixed with their rank (the default)."),
    reconnect: float = RECONNECT,
    where: RunHosts,
    output: Output,
) -> None:
    """Print the output of the ranks in order of time, each line prefixed with its rank.

    The stdout of a rank goes to stdout, its stderr to stderr. node0 sends
    only the chosen lines. With --follow, the exit code is the run's.

    \b
    Example: ipexctl logs last -r 0 --tail 20 -f
    """
    del plain
    if output.json and follow:
        raise UserError("--json prints one document, and --follow has no end", fix="leave one of them out")
    check_pattern(grep)
    record = find_run(run, where, output)
    streams: tuple[StreamName, ...] = ("stderr",) if stderr else ("stdout", "stderr")
    lines = LineChoice(chosen_ranks(record, ranks), streams, tail, grep, exact=timestamps or output.json)
    with call_about_runs(output, only_waits=True) as (caller, interrupt):
        shown: JsonLog | PlainRun
        if output.json:
            shown = JsonLog(record, caller.cancel)
        else:
            shown = PlainRun(caller.cancel, quiet=output.quiet, timestamps=timestamps)
        watch = _lines_only(shown.watch, stderr=stderr and not output.json, follow=follow)
        with shown:
            result = logs(record, caller, lines, watch, follow=follow, reconnect=reconnect)
            if result.error is not None:
                print_with_fix(result.error.message, result.error.fix)
            if isinstance(shown, JsonLog):
                shown.reason = result.reason or result.missing
            elif result.missing and not output.quiet:
                print_message(f"run {record.id}: {result.missing}")
    code = result.exit_code if interrupt.code is None else interrupt.code
    if not (shown.lines or code or output.json or output.quiet):
        reason = f"no line matches --grep {quote(grep)}" if grep else _without_output(result.status)
        which = ("" if ranks == "all" else f", ranks {ranks}") + (", stderr only" if stderr else "")
        print_message(f"run {record.id}{which}: {reason}")
    if shown.broken and not code:
        raise OutputError(shown.broken)
    raise typer.Exit(code)


def _without_output(status: RunStatus | None) -> str:
    """Return why nothing is printed."""
    is_over = status is not None and status.state in FINAL
    return "they printed nothing" if is_over else "there is no output yet"


def _lines_only(watch: OnRunUpdate, *, stderr: bool, follow: bool) -> OnRunUpdate:
    """Send the lines of --stderr to stdout; leave out the end of the run unless the call follows it."""

    def watched(event: RunUpdate) -> None:
        """Pass on an update that is shown."""
        if isinstance(event, Chunk) and stderr:
            event = event._replace(stream="stdout")
        if follow or not isinstance(event, RunEnded):
            watch(event)

    return watched
