"""Diagnoses a run from its snapshot: what happened, its last lines, the others, the next command. Pure.

`cause.py` finds the first failure and the likely cause; this adds the last lines of the rank that failed first, and one
sentence for all other ranks that ended alike. A rank that failed only because it lost a peer counts as a follower, so
that nobody looks for the fault there. A silent run that was ended may have hung: the diagnosis shows where its ranks
were, and warns that more time may not help. Fields are for programs, sentences for people.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from ipexctl.hosts.nodeset import fold
from ipexctl.known_errors.error_table import known_errors
from ipexctl.known_errors.match import OF_HOOKS, TRACEBACK, Cause, RankOutput, bare, cause_of, shorten_text
from ipexctl.node.common.fix import Fix, parts_of
from ipexctl.node.common.job_words import describe_run_end
from ipexctl.node.common.rank_options import HALF_MATH
from ipexctl.node.common.records import (
    Failure,
    RankStatus,
    SilentRank,
    State,
    describe_apart,
    describe_mismatches,
    describe_successes,
)
from ipexctl.node.run.decisions.verdict import describe_exit, signal_name
from ipexctl.run.hang import Hang, describe_silent
from ipexctl.run.ranks import describe_ranks, name_ranks
from ipexctl.run.stack_dump import RankStacks, place_lines
from ipexctl.run.why.cause import (
    OF_STOPPING,
    choose_cause,
    choose_hang_cause,
    choose_raised,
    describe_full_disk,
    find_first_failure,
    find_hang,
    is_quiet,
)
from ipexctl.run.why.read_snapshot import RunSnapshot
from ipexctl.text import format_clock, format_count, rough_duration

LINES: Final = 30
RANKS_PER_CORE: Final = 8
_OF_STDOUT: Final = 10
"""Of those, the lines kept for stdout if both streams have many."""
_FIGURES: Final = re.compile(r"0x[0-9a-f]+|\d+")
_Row = RankStacks | RankStatus | SilentRank
What = Literal["same", "failed", "lost-peer", "ended", "ok", "lost", "not-begun", "running"]
"""`lost-peer`: it failed because it lost the rank of the first failure; `ended`: ipexctl ended it."""


@dataclass(frozen=True, slots=True)
class Line:
    """One of the last lines; `stream` may also be a log of mpirun or the supervisor."""

    stream: Literal["stdout", "stderr", "mpirun", "supervisor"]
    text: str


@dataclass(frozen=True, slots=True)
class AlikeRanks:
    """Ranks that ended alike, with one sentence for all of them."""

    what: What
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    sentence: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What happened to a run, why, and what to type next."""

    id: str
    state: State
    headline: str
    first: Failure | None = None
    cause: Cause | None = None
    lines: tuple[Line, ...] = ()
    whose: str = ""
    """Source of the lines: a rank, mpirun, the supervisor."""
    others: tuple[AlikeRanks, ...] = ()
    notes: tuple[str, ...] = ()
    next: tuple[str, ...] = ()
    hang: Hang | None = None
    """Who waited for whom, if the run hung and its stacks show it."""


_OF_WRITING: Final = tuple(
    (id_, "output") for id_ in ("disk.full", "disk.write_failed", "memory.shm", "process.bus_error")
)
"""Causes in which a full disk has a part."""
_LABELS: Final = {"certain": "cause", "likely": "likely cause", "possible": "possible cause"}
_MOST_SEEN: Final = 3


def label_of(cause: Cause) -> str:
    """Return `cause`, `likely cause` or `possible cause`; a cause without evidence is only a possible one."""
    return _LABELS[cause.confidence] if cause.evidence else "cause not known; possible"


def describe_evidence(diagnosis: Diagnosis) -> list[str]:
    """What was measured, where and when: what neither the cause nor the last lines show."""
    cause, shown = diagnosis.cause, [line.text for line in diagnosis.lines]
    lines = []
    for seen in cause.evidence[:_MOST_SEEN] if cause is not None else ():
        if cause is not None and seen.text not in cause.sentence and not any(seen.text in line for line in shown):
            at = f" at {format_clock(seen.at)}" if seen.at is not None else ""
            lines.append(f"seen{f' on {seen.host}' if seen.host else ''}{at}: {seen.text}")
    return lines


def diagnose(snapshot: RunSnapshot) -> Diagnosis:
    """Return the diagnosis of a run in any state."""
    by_state: dict[str, Callable[[RunSnapshot], Diagnosis]] = {
        "failed": _failed,
        "lost": _lost,
        "stopped": _stopped,
        "ok": _ended_well,
    }
    verdict = by_state.get(snapshot.status.state, _running)(snapshot)
    return replace(verdict, hang=find_hang(snapshot, find_first_failure(snapshot)))


def _failed(snapshot: RunSnapshot) -> Diagnosis:
    run, first = snapshot.id, find_first_failure(snapshot)
    failed = f"run {run} failed{_after(snapshot)}"
    has_hung = first is not None and first.kind == "hang"
    if has_hung or (first is not None and first.kind == "time-limit"):
        is_silent = has_hung or snapshot.silent_for is not None
        cause = choose_hang_cause(snapshot) if is_silent else choose_raised(snapshot)
        more = snapshot.context.plan.notes
        if has_hung:
            more = ("--on-hang stop has ended it; a run that prints less often needs a longer --hang-after", *more)
        elif cause is None and not more:
            more = ("a longer --time-limit gives it more time; a script continues from its own checkpoint",)
        return Diagnosis(
            run,
            "failed",
            f"run {run} was ended{_after(snapshot)}: {snapshot.status.reason or 'its time limit was over'}",
            first,
            cause,
            others=_last_places(snapshot),
            notes=(*_hung(snapshot), *_notes(snapshot), *more),
            next=(Fix(f"`ipexctl logs {run}`"),),
        )
    cause, others = choose_cause(snapshot, first), _other_ranks(snapshot, first)
    notes = _notes(snapshot, cause)
    if first is None or first.rank is None:
        headline = f"{failed}: {snapshot.status.reason or 'no rank printed a reason'}"
        own = [line for line in snapshot.context.launcher_output.err if line != snapshot.status.reason]
        lines = tuple(Line("mpirun", bare(line)) for line in _without_blanks(own, LINES))
        has_started = any(row.pid for row in snapshot.status.ranks)
        command = Fix(f"`ipexctl logs {run}`") if has_started else Fix("`ipexctl doctor`")
        return Diagnosis(run, "failed", headline, first, cause, lines, "mpirun on node0", others, notes, (command,))
    ended = f"rank {first.rank} on {first.host} {describe_exit(first.exit_code, first.signal, first.oom)}"
    headline = f"{failed}: {snapshot.status.reason or ended}"
    lines, logs = (
        last_lines(snapshot.output_of(first.rank)),
        _logs_of(cause, run) or Fix(f"`ipexctl logs {run} -r {first.rank}`"),
    )
    if first.kind == "checkpoint":  # no rank was started: its last lines, if any, are from an earlier attempt
        lines, logs = (), Fix(f"`ipexctl logs {run}`")
    return Diagnosis(run, "failed", headline, first, cause, lines, f"rank {first.rank}", others, notes, (logs,))


def _logs_of(cause: Cause | None, run: str) -> Fix | None:
    """The command that shows the rank of the cause, which may be another than the one that failed first."""
    commands = () if cause is None else Fix.of(parts_of(cause.fix)).commands
    return next((Fix.of((command,)) for command in commands if command.verb == "logs" and run in command.options), None)


def _after(snapshot: RunSnapshot) -> str:
    return f" after {rough_duration(snapshot.took)}" if snapshot.took is not None else ""


def _lost(snapshot: RunSnapshot) -> Diagnosis:
    run, notes = snapshot.id, _notes(snapshot)
    if snapshot.status.unrecorded:
        reason = f"node0 ({snapshot.node0}) could not record its end: {snapshot.status.unrecorded}"
    elif snapshot.restarted:
        reason = f"node0 ({snapshot.node0}) has been started again since: a reboot, or a restart of its container"
    else:
        raised = RankOutput(None, snapshot.node0, err=snapshot.supervise).exception
        reason = f"its supervisor on node0 ({snapshot.node0}) "
        reason += (
            f"ended with {': '.join(raised)}, an error of ipexctl" if raised else f"was killed{_by_whom(snapshot)}"
        )
        if raised is None and snapshot.kills != 0:
            advice = Fix(
                f"the kernel's log shows whether it did; as root on {snapshot.node0}: `dmesg -T | grep -i kill`"
            )
            notes = (*notes, advice)
    lines = tuple(Line("supervisor", bare(line)) for line in _without_blanks(snapshot.supervise, LINES))
    return Diagnosis(
        run,
        "lost",
        f"run {run} is lost{_after(snapshot)}: {reason}; its ranks exit within a minute",
        cause=choose_cause(snapshot, None),
        lines=lines,
        whose="the supervisor" if lines else "",
        others=_other_ranks(snapshot, None),
        notes=notes,
        next=(Fix(f"`ipexctl logs {run}`"),),
    )


def _by_whom(snapshot: RunSnapshot) -> str:
    if snapshot.kills == 0:
        return ", and the kernel has counted no kill for memory since its boot: by a person, a scheduler or a guard"
    return "; by whom is not known: a person, a scheduler, a guard, or the kernel if memory ran out"


def _stopped(snapshot: RunSnapshot) -> Diagnosis:
    """A stopped run has no cause but its stop; if it hung until then, a note says who waited for whom."""
    headline = f"run {snapshot.id} was stopped{_after(snapshot)}, {_describe_stop(snapshot)}"
    hang = find_hang(snapshot)
    waited = (f"until then, {hang.sentence}",) if hang is not None else ()
    notes, logs = (*waited, *_hung(snapshot), *_notes(snapshot)), Fix(f"`ipexctl logs {snapshot.id}`")
    return Diagnosis(snapshot.id, "stopped", headline, others=_last_places(snapshot), notes=notes, next=(logs,))


def _describe_stop(snapshot: RunSnapshot) -> str:
    if of_job := describe_run_end(snapshot.status.job_end):
        return f"as {of_job}"
    stopped, code = snapshot.status.stopped, snapshot.status.exit_code or 0
    if stopped is not None and stopped.who:
        at = f" at {format_clock(stopped.at)}" if stopped.at is not None else ""
        return f"by {'Ctrl-C of ' if code == 128 + signal.SIGINT else ''}{stopped.who}{at}"
    return {130: "by Ctrl-C", 143: "by ipexctl stop, or SIGTERM", 129: "as its call was gone"}.get(code, "by a signal")


def _hung(snapshot: RunSnapshot) -> tuple[str, ...]:
    """Notes on where the ranks were, and whether the run was silent until its end: more time may not help then."""
    notes = []
    dump = snapshot.current_dump
    if dump is not None:
        before = f", {rough_duration(snapshot.status.ended - dump.at)} before the end" if snapshot.status.ended else ""
        notes.append(f"the places of the ranks are of {format_clock(dump.at)}{before}")
    if snapshot.silent_for is not None:
        quiet = (
            f"no rank had printed anything for {rough_duration(snapshot.silent_for)} when it ended: it may have hung"
        )
        advice = "" if dump is not None else Fix("; while a run hangs, `ipexctl why last --stacks` shows where")
        notes.append(quiet + advice)
    return tuple(notes)


def _ended_well(snapshot: RunSnapshot) -> Diagnosis:
    headline = f"run {snapshot.id} succeeded{_after(snapshot)}{snapshot.status.but_nan}: {_size(snapshot)}"
    after = filter(None, (Fix(f"`ipexctl logs {snapshot.id}`"), snapshot.status.fetch_line))
    return Diagnosis(snapshot.id, "ok", headline, notes=_notes(snapshot), next=tuple(after))


def _running(snapshot: RunSnapshot) -> Diagnosis:
    run = snapshot.id
    status = snapshot.status
    seconds = status.elapsed
    if seconds is None and status.started and snapshot.now:
        seconds = snapshot.now - status.started
    age = f", {rough_duration(seconds)}" if seconds is not None else ""
    headline = f"run {run} is {status.state}{age}: {_size(snapshot)}"
    silent = snapshot.silent_for
    cause = None
    after: tuple[str, ...] = (Fix(f"`ipexctl attach {run}`"),)
    if silent is not None:
        headline += f"; no rank has printed anything for {rough_duration(silent)}"
    if silent is not None or find_hang(snapshot) is not None or is_quiet(snapshot):
        cause = choose_hang_cause(snapshot)
        after = (Fix(f"`ipexctl why {run} --stacks`"), *after, Fix(f"`ipexctl stop {run}`"))
    others = (*_places(snapshot), *_states_of_silent(snapshot))
    notes = (*_notes(snapshot), *(threads := _ended_threads(snapshot)))
    if threads:
        after = (*after, Fix(f"`ipexctl logs {run} --stderr`"))
    if snapshot.dump_error:
        notes = (f"{snapshot.node0}: where the ranks are could not be read: {snapshot.dump_error}", *notes)
    return Diagnosis(run, status.state, headline, None, cause, others=others, notes=notes, next=after)


def _ended_threads(snapshot: RunSnapshot) -> tuple[str, ...]:
    """Exceptions that ended a thread of a rank, whose main thread may wait for it for ever."""
    by_end = dict[str, list[int]]()
    for output in snapshot.context.outputs:
        lines = [bare(line) for line in output.err]
        for at, line in enumerate(lines):
            if output.rank is not None and (thread := _IN_THREAD.match(line)):
                raised = (text for text in lines[at + 1 :] if text[:1].strip() and not text.startswith(TRACEBACK))
                said = f"thread {thread[1]} ended with {shorten_text(next(raised, 'an exception'), 200)}"
                by_end.setdefault(said, []).append(output.rank)
    return tuple(f"{describe_ranks(sorted({*ranks}))}: {said}" for said, ranks in by_end.items())[:3]


_IN_THREAD: Final = re.compile(r"Exception in thread (.{1,100}?):$")


def _alike(what: What, rows: Sequence[_Row], sentence: str) -> AlikeRanks:
    ranks, hosts = tuple(row.rank for row in rows), tuple(dict.fromkeys(row.host for row in rows))
    return AlikeRanks(what, ranks, hosts, sentence)


def _places(snapshot: RunSnapshot) -> tuple[AlikeRanks, ...]:
    """Places of the ranks in the newest dump, once for all ranks at the same place."""
    dump = snapshot.current_dump
    return tuple(_alike("running", ranks, place) for ranks, place in (place_lines(dump) if dump is not None else ()))


def _last_places(snapshot: RunSnapshot) -> tuple[AlikeRanks, ...]:
    """The last known places of the ranks before the end, and their states."""
    states = _other_ranks(snapshot, None) if snapshot.silent_for is None else _states_of_silent(snapshot)
    return (*_places(snapshot), *states)


def _states_of_silent(snapshot: RunSnapshot) -> tuple[AlikeRanks, ...]:
    """The state of each rank of a silent run, once for all ranks that share it."""
    silent = snapshot.status.silent
    groups = describe_silent(silent) if silent is not None else ()
    return tuple(_alike("running", ranks, sentence) for ranks, sentence in groups)


def last_lines(output: RankOutput) -> tuple[Line, ...]:
    """Lines of stdout, then of stderr; if both have many, two thirds are of stderr."""
    err = _without_blanks(without_own_frames(output.err), LINES)
    out = _without_blanks(output.out, max(LINES - len(err), _OF_STDOUT))
    err = err[max(0, len(err) - (LINES - len(out))) :]
    return (*(Line("stdout", bare(line)) for line in out), *(Line("stderr", bare(line)) for line in err))


def without_own_frames(lines: Sequence[str]) -> list[str]:
    """A traceback without the frames of ipexctl's hooks, and without the source lines below them."""
    kept, is_own = list[str](), False
    for line in lines:
        text = bare(line)
        is_own = OF_HOOKS in text if text.startswith("  File ") else is_own and text.startswith("    ")
        if not is_own:
            kept.append(line)
    return kept


def _without_blanks(lines: Sequence[str], maximum: int) -> list[str]:
    kept = list(lines)
    while kept and not kept[-1].strip():
        kept.pop()
    return kept[-maximum:]


def _other_ranks(snapshot: RunSnapshot, first: Failure | None) -> tuple[AlikeRanks, ...]:
    groups: dict[tuple[What, str], tuple[str, list[RankStatus]]] = {}
    chief = first.rank if first is not None else None
    meant = {chief, *(first.ranks if first is not None else ())}
    own = _exception(snapshot.output_of(chief)) if chief is not None else None
    causes = _OwnCauses(snapshot)
    for row in snapshot.status.ranks:
        if row.rank not in meant or (row.rank != chief and chief is None):
            what, sentence = _state_of(snapshot, row, own, first, causes)
            text = _shown_exception(snapshot.output_of(row.rank))
            alike = what, sentence.replace(text, _FIGURES.sub("N", text)) if text else sentence
            groups.setdefault(alike, (sentence, []))[1].append(row)
    return tuple(_alike(what, rows, f"{name_ranks(rows)} {sentence}") for (what, _), (sentence, rows) in groups.items())


def _shown_exception(output: RankOutput) -> str:
    return shorten_text(": ".join(output.exception), 100) if output.exception else ""


def _exception(output: RankOutput) -> str | None:
    """Its exception without numbers: addresses and ports differ between ranks with the same exception."""
    return None if output.exception is None else _FIGURES.sub("N", ": ".join(output.exception))


class _OwnCauses:
    """What a rank's text alone says about its end. Thousands of ranks print the same."""

    def __init__(self, snapshot: RunSnapshot) -> None:
        self._context = snapshot.context
        self._known: dict[tuple[str, str], Cause | None] = {}

    def __call__(self, printed: RankOutput) -> Cause | None:
        texts = _FIGURES.sub("N", printed.last_text), _FIGURES.sub("N", printed.text)
        if texts not in self._known:
            output = RankOutput(printed.rank, printed.host, printed.out, printed.err)  # a signal would be ipexctl's own
            self._known[texts] = cause_of(output, self._context, known_errors())
        return self._known[texts]


def _state_of(
    snapshot: RunSnapshot, row: RankStatus, own: str | None, first: Failure | None, causes: _OwnCauses
) -> tuple[What, str]:
    output = snapshot.output_of(row.rank)
    if own is not None and _exception(output) == own:
        return "same", "printed the same"
    if first is not None and row.state in ("failed", "stopped") and (lost := _lost_peer(output, row, first, causes)):
        return "lost-peer", lost
    if row.state == "failed":
        how = describe_exit(row.exit_code, row.signal, row.oom)
        reason = f": {_shown_exception(output)}" if output.exception else ""
        return "failed", f"{how}{' after it' if first is not None else ''}{reason}"
    if row.state == "ok":
        return "ok", "succeeded"
    if row.state == "lost":
        return "lost", "disconnected"
    if row.pid is None and row.state in ("starting", "stopped"):
        return "not-begun", "had not begun"
    if row.state == "stopped" and row.exit_code is None and row.signal is None and first is not None:
        return "lost", "sent no exit code: its wrapper process was killed, or its host was cut off"
    if row.state == "stopped" and first is not None and first.rank is not None:
        cause, theirs = causes(output), causes(snapshot.output_of(first.rank))
        if cause is not None and theirs is not None and (cause.id, cause.sentence) == (theirs.id, theirs.sentence):
            return "same", "printed the same"
    if row.state == "stopped" and first is not None and output.exception and output.exception[0] not in OF_STOPPING:
        return "ended", f"raised an exception, too, and was ended by ipexctl: {_shown_exception(output)}"
    if row.state == "stopped":
        return "ended", "ran until ipexctl ended the run" if first is not None else "ran until the run was stopped"
    return "running", f"left as {row.state}"


def _lost_peer(output: RankOutput, row: RankStatus, first: Failure, causes: _OwnCauses) -> str:
    """How a rank ended that lost the rank of the first failure; empty for any other."""
    if output.exception is None or not ((cause := causes(output)) and cause.has_followed):
        return ""
    peer = "a peer" if first.rank is None else describe_ranks(first.ranks or (first.rank,))
    how = signal_name(row.signal) if row.signal else f"exit code {row.exit_code}"
    how = how if row.state == "failed" else f"then {how} by ipexctl"
    return f"failed after it, because {peer} was lost ({how}): {_shown_exception(output)}"


def _notes(snapshot: RunSnapshot, cause: Cause | None = None) -> tuple[str, ...]:
    notes = [snapshot.status.lost_checkpoint] if snapshot.status.lost_checkpoint else []
    status = snapshot.status
    is_explained = any(wrong.kind == "small-groups" for wrong in status.wrong)
    if (text := describe_apart(status.group)) and not is_explained:
        notes.append(text)
    notes.extend(status.training_notes)
    # A live run can be slow because the user turned this one off.
    told_early = () if snapshot.context.plan.uses(HALF_MATH) else (HALF_MATH.name,)
    told = (lever for lever in status.levers if lever.asked or lever.acted)
    notes.extend(lever.sentence for lever in told if status.is_over or lever.name in told_early)
    notes.extend(describe_successes(status.ranks))
    if snapshot.restarts:
        times = "once" if len(snapshot.restarts) == 1 else f"{len(snapshot.restarts)} times"
        reasons = "; ".join(dict.fromkeys(snapshot.restarts))
        notes.append(f"it had been started again {times} before, after: {shorten_text(reasons, 300)}")
    if snapshot.status.has_moved:
        attempts = (
            f"{format_count(attempt.world_size, 'rank')} on {fold(attempt.hosts)}"
            for attempt in snapshot.status.all_attempts
        )
        notes.append(f"its attempts had different hosts: {shorten_text('; '.join(attempts), 300)}")
    if (lost := snapshot.status.output_lost) is not None:
        notes.append(
            f"{lost.bytes:,} bytes of the output of {describe_ranks(lost.ranks)} are not in the record: the disk of "
            f"{lost.host or 'node0'} was full until the end of the run"
        )
    if snapshot.status.unwritten_events:
        notes.append(f"{snapshot.status.unwritten_events} events are missing from node0's record: its disk was full")
    if (notify := snapshot.failed_notify) is not None:
        how = "took too long and was killed" if notify.exit_code is None else f"ended with exit code {notify.exit_code}"
        line = f": {shorten_text(notify.error, 200)}" if notify.error else ""
        notes.append(f"the command of --notify {how} on {snapshot.node0}{line}")
    notes.extend(_crowded(snapshot) if cause is not None else ())
    for row in snapshot.status.ranks:
        if row.disk is not None and cause is not None and (cause.id, cause.source) in _OF_WRITING:
            notes.append(f"a disk of {row.host} was full when rank {row.rank} failed: {describe_full_disk(row.disk)}")
        if len(notes) > 6:
            break
    return (*notes, *describe_mismatches(snapshot.status.ranks))


def _crowded(snapshot: RunSnapshot) -> Iterator[str]:
    """Hosts whose ranks may be scheduled too late to answer in time."""
    for host in snapshot.context.plan.hosts:
        if 0 < host.cores * RANKS_PER_CORE < len(host.ranks):
            yield f"{host.name} has {len(host.ranks)} ranks on {format_count(host.cores, 'core')}: it may be too slow"


def _size(snapshot: RunSnapshot) -> str:
    return f"{format_count(len(snapshot.status.ranks), 'rank')} on {format_count(len(snapshot.context.hosts), 'node')}"
