"""`ipexctl why`: explain a run: its first failure, last lines, likely cause and fix; slow ranks; or stacks of live
ranks.

This module only prints. `run/why` finds the cause.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Final, NoReturn

import typer

from ipexctl.api.explained_runs import dump, why
from ipexctl.api.explained_runs import profile as request_profile
from ipexctl.commands.named_runs import call_about_runs, chosen_ranks, find_run
from ipexctl.commands.option_groups import RANKS, RUN, TIMEOUT, Output, RunHosts, command, flag, is_on_command_line
from ipexctl.errors import CallError, Interrupted, UserError
from ipexctl.homes.registry import FailedCall, RunRecord
from ipexctl.known_errors.match import Cause
from ipexctl.node.common.fix import Fix, clauses, parts_of
from ipexctl.node.common.records import RunStatus
from ipexctl.option_declaration import check_seconds
from ipexctl.remote.outcome import Cancelled
from ipexctl.run.profile import lines_of as profile_lines
from ipexctl.run.ranks import name_ranks
from ipexctl.run.stack_dump import ProfileAnswer
from ipexctl.run.why.diagnosis import Diagnosis, Line, describe_evidence, label_of
from ipexctl.run.why.why import WhyResult
from ipexctl.text import format_clock
from ipexctl.ui.message_output import fold_fix, fold_text, paint, print_message, print_with_fix, wants_color
from ipexctl.ui.results import group_by
from ipexctl.ui.run.end_of_run import throughput_text
from ipexctl.ui.run.slow_report import ToldRun, comparison_lines, cost_lines, slow_lines
from ipexctl.ui.run.why_document import why_json
from ipexctl.ui.stacks_output import show_json, show_over, show_stacks
from ipexctl.ui.text_table import print_lines


@command()
def why_command(
    ctx: typer.Context,
    *,
    run: str = RUN,
    stacks: bool = flag("--stacks", "Show the Python stack of every rank of a live run, the smallest groups first."),
    ranks: str = RANKS,
    everything: bool = flag("--all -a", "With --stacks: every thread and process, and all calls of deep stacks."),
    profile: bool = flag("--profile", "Profile the next two optimizer steps of a live run, on all ranks."),
    timeout: float | None = TIMEOUT,
    where: RunHosts,
    output: Output,
) -> None:
    """Explain why a run ended, hangs or is slow: the first failure, slow ranks, the likely cause and the fix.

    For a live run, show the line of code that each rank executes.

    \b
    Example: ipexctl why last
    """
    check_seconds("--timeout", timeout)
    if not stacks and any(is_on_command_line(ctx, name) for name in ("ranks", "everything")):
        raise UserError("-r and --all choose stacks", fix=Fix("`ipexctl why --stacks`"))
    if stacks and profile:
        raise UserError("--stacks and --profile are two answers", fix="leave one of them out")
    record = find_run(run, where, output)
    if stacks:
        _show_stacks(record, output, ranks, everything=everything, timeout=timeout)
    code, unprofiled = profile_live(record, output, timeout=timeout) if profile else (0, ())
    with call_about_runs(output, timeout=timeout) as (caller, _):
        report = why(record, caller, word=run)
    report = replace(report, unprofiled=unprofiled, exit_code=report.exit_code or code)
    output.print_report(report, why_json, show)
    raise typer.Exit(report.exit_code)


def profile_live(record: RunRecord, output: Output, *, timeout: float | None = None) -> tuple[int, ProfileAnswer]:
    """Profile the next steps of a live run, and print which ranks are missing. Returns an exit code and the missing
    ranks.

    Raises Interrupted after a signal.
    """
    output.print_note(f"profiling the next steps of {record.id}; Ctrl-C ends the waiting, not the run")
    with call_about_runs(output, only_waits=True, timeout=timeout) as (caller, interrupt):
        try:
            missing = request_profile(record, caller)
        except (CallError, Cancelled) as error:
            if interrupt.code is not None or isinstance(error, Cancelled):
                print_message("ranks that got the request are profiled", Fix(f"  to see it: `ipexctl why {record.id}`"))
                raise Interrupted(interrupt.code or 130) from None
            print_with_fix(error.message, error.fix)
            return error.exit_code, ()
    if isinstance(missing, RunStatus):
        print_with_fix(f"run {record.id} has ended: no steps to profile", "start it with --profile for its first steps")
        return 1, ()
    for reason, ranks in group_by(missing, attrgetter("reason")).items():
        print_message(f"no profile of {name_ranks(ranks)}: {reason}")
    return int(bool(missing)), missing


def _show_stacks(record: RunRecord, output: Output, ranks: str, *, everything: bool, timeout: float | None) -> NoReturn:
    """Print the stacks of a live run, and exit."""
    wanted = chosen_ranks(record, ranks)

    def show_error(reason: str) -> None:
        """Print a document without stacks, if the call asks for JSON."""
        if output.json:
            show_json(None, record.id, reason)

    try:
        with call_about_runs(output, timeout=timeout) as (caller, _):
            stacks = dump(record, caller, wanted)
    except CallError as error:
        show_error(error.message)
        print_with_fix(error.message, error.fix)
        raise typer.Exit(error.exit_code) from None
    if isinstance(stacks, RunStatus):
        show_error(f"the run has ended: {stacks.state}")
        show_over(stacks, record.id)
        raise typer.Exit(1)
    if output.json:
        show_json(stacks, record.id)
    else:
        show_stacks(stacks, record.id, everything=everything, quiet=output.quiet)
    raise typer.Exit(0 if stacks.is_complete else 1)


_ENDS: Final = {"ok": "succeeded", "failed": "failed", "stopped": "was stopped", "lost": "is lost"}
"""State → how the headline says it."""
_ROWS_OF_A_LINE: Final = 3
"""Rows of the terminal that a line of output may take."""
_PIPED: Final = 500
"""Characters of a line of output, if stdout is no terminal."""
_STREAM_LABELS: Final = {"stdout": "stdout", "stderr": "stderr", "mpirun": "mpirun.log", "supervisor": "supervise.log"}
"""Stream → what its lines are called."""
_PURPOSES: Final = {
    "why": "see where each rank is: ",
    "attach": "watch it: ",
    "stop": "end it, only if it hangs: ",
    "report": "see it on one page: ",
}
"""Command → what it is for, if several are suggested."""


def show(answer: WhyResult, *, quiet: bool = False) -> None:
    """Print the answer; --quiet hides nothing of it."""
    del quiet
    terminal = sys.stdout.isatty()
    columns = shutil.get_terminal_size().columns if terminal else 0
    colors = wants_color(sys.stdout)
    print_lines(lines_of(answer, columns, colors=colors))


def lines_of(answer: WhyResult, columns: int = 0, *, colors: bool = False) -> Iterator[str]:
    """Return the answer as lines, the headline first. `columns`: width of the terminal; 0 to wrap nothing."""
    diagnosis = answer.diagnosis
    if answer.failed_call is not None:
        yield from _failed_call(answer.failed_call, columns, colors=colors)
        how = _ENDS.get(diagnosis.state, f"is {diagnosis.state}")
        yield from ("", Fix(f"the run before it {how}: `ipexctl why {diagnosis.id}`"))
        return
    yield from _headline(answer, columns, colors=colors)
    yield from _last_lines(diagnosis.lines, diagnosis.whose, columns, colors=colors)
    figures = [*cost_lines(answer.slow)] if diagnosis.cause is None else []
    figures += profile_lines(answer.profile)
    if diagnosis.others or diagnosis.notes or figures:
        yield ""
    for other in diagnosis.others:
        yield from fold_text(other.sentence, columns)
    for note in diagnosis.notes:
        yield from fold_text(note, columns)
    for text in figures:
        yield from fold_text(text, columns)
    cause = diagnosis.cause
    if cause is not None:
        yield from _cause(diagnosis, cause, columns, colors=colors)
    yield from _slow_part(answer, columns, colors=colors)
    commands = [
        command
        for command in diagnosis.next
        if cause is None or command not in map(str, Fix.of(parts_of(cause.fix)).commands)
    ]
    if commands:
        yield ""
        for index, command in enumerate(commands):
            # A stop among other commands is no step that follows them.
            purpose = _PURPOSES.get(command.split()[1], "") if len(commands) > 1 else ""
            yield ("      " if index else "next: ") + purpose + command


def _cause(diagnosis: Diagnosis, cause: Cause, columns: int, *, colors: bool) -> Iterator[str]:
    """Yield the cause, what shows it, and the fix."""
    yield ""
    source = ""
    is_of_first = diagnosis.first is None or cause.rank in (None, diagnosis.first.rank)
    if cause.source == "output" and not is_of_first:
        source = f" (in the output of rank {cause.rank} on {cause.host})"
    for line in fold_text(f"{label_of(cause)}: {cause.sentence}{source}", columns):
        yield paint(line, "1", on=colors)
    for evidence in describe_evidence(diagnosis):
        yield from fold_text(evidence, columns, "  ")
    for clause in clauses(cause.fix):
        yield from fold_fix(clause, columns)


def _slow_part(answer: WhyResult, columns: int, *, colors: bool) -> Iterator[str]:
    """Yield slow ranks and links. That there are none is said only of a live run."""
    verdict, closing = answer.slow, list[str]()
    if answer.state == "running" and answer.cause is None and verdict.unjudged in ("", "too-short"):
        closing += comparison_lines(ToldRun(answer.record, False), verdict)
    if lines := list(slow_lines(answer, columns, colors=colors, closing=closing)):
        yield from ("", *lines)


def _headline(answer: WhyResult, columns: int, *, colors: bool) -> Iterator[str]:
    """Yield the headline, and the measured throughput."""
    for line in fold_text(answer.headline, columns):
        yield paint(line, "1", on=colors)
    if measured := throughput_text(answer.run.throughput):
        yield from fold_text(f"measured: {measured}", columns)


def _failed_call(failed: FailedCall, columns: int, *, colors: bool) -> Iterator[str]:
    """Yield reason (maybe several lines) and fix of a call that started no run."""
    at = format_clock(failed.at, "%Y-%m-%d %H:%M:%S")
    reason, *more = failed.reason.splitlines() or [""]
    sentence = f"ipexctl run {failed.script} at {at} started no run{f': {reason}' if reason else ''}"
    for line in fold_text(sentence, columns):
        yield paint(line, "1", on=colors)
    for line in more:
        yield from fold_text(line, columns, "  ")
    for line in failed.fix.splitlines():
        yield from fold_fix(line, columns)


def _last_lines(lines: Sequence[Line], whose: str, columns: int, *, colors: bool) -> Iterator[str]:
    """Yield the last lines of the first rank that failed, by stream."""
    limit = columns * _ROWS_OF_A_LINE - 8 if columns else _PIPED
    stream = ""
    for line in lines:
        if line.stream != stream:
            stream = line.stream
            yield ""
            yield paint(f"{whose}, last lines of {_STREAM_LABELS[stream]}:", "2", on=colors)
        yield f"  {_cut(line.text.expandtabs(8), limit)}".rstrip()


def _cut(text: str, limit: int) -> str:
    """Return the text, or its beginning and end if it is longer than `limit`."""
    if len(text) <= limit:
        return text
    half = max(10, limit // 2 - 2)
    return f"{text[:half]} … {text[-half:]}"


def cause_lines(run: str, cause: Cause | None) -> list[str]:
    """Return the lines for the end of a failed run: the likely cause, and the command that says more."""
    known = [f"  {label_of(cause)}: {cause.sentence}"] if cause is not None else []
    return [*known, Fix(f"  why, and what to do: `ipexctl why {run}`")]
