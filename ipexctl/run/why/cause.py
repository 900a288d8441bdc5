"""Chooses the likely cause of a run's failure, or of its hang, from its snapshot. Pure.

`CAUSE_FINDERS` at the end of the file lists the finders in order; proof docstring names the evidence that the finder
needs. A failure is explained by the last lines of the rank that failed first in the last attempt. Lines of other ranks
count only if that rank lost a peer or no rank is to blame. Stacks explain a hang (`run/hang.py`). Warnings that healthy
runs print too explain nothing. Reports of our own programs are read as fields (`Detail`), never as text.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from ipexctl.hosts.nodeset import fold
from ipexctl.known_errors.error_table import known_errors
from ipexctl.known_errors.match import (
    TRACEBACK,
    Cause,
    PatternMatch,
    RankOutput,
    bare,
    cause_of,
    explain_exception,
    shorten_text,
)
from ipexctl.node.common.files import format_size
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.rank_options import AUTOCAST
from ipexctl.node.common.records import Failure, FullDisk, OutOfMemory, Proof, RankStatus
from ipexctl.node.run.decisions.verdict import format_limit
from ipexctl.run.hang import Hang, explain_hang
from ipexctl.run.ranks import describe_ranks, fold_ranks
from ipexctl.run.why.rank_reports import (
    RankReport,
    find_resumed_apart,
    find_unequal_data,
)
from ipexctl.run.why.read_snapshot import RunSnapshot

_MAX_RANKS: Final = 16


def find_first_failure(snapshot: RunSnapshot) -> Failure | None:
    """Return the failure that ended the run, with its host and the kernel's report on memory; None if no rank
    failed."""
    first = snapshot.status.first_failure
    if first is None:
        return None
    row = snapshot.row(first.rank)
    oom = first.oom or (row.oom if row else None) or (OutOfMemory("") if first.kind == "oom" else None)
    return first._replace(host=first.host or (row.host if row else ""), oom=oom)


_QUIET: Final = 60.0
"""Seconds without output and steps after which ranks that wait for one another no longer look like a training."""
_WAITED: Final = re.compile(r"[Tt]imed out waiting (?P<first>\d{1,12})ms|[Ww]ait timeout after (?P<second>\d{1,12})ms")


def find_hang(snapshot: RunSnapshot, first: Failure | None = None) -> Hang | None:
    """Who waited for whom, from a dump taken while no rank printed anything, or while `first` waited for a peer until
    it timed out. After less silence than --hang-after, only ranks that all wait, in different calls, have hung."""
    dump, silent = snapshot.current_dump, snapshot.status.silent
    if dump is None:
        return None
    if silent is not None and dump.at >= silent.since:
        return explain_hang(dump)
    if is_quiet(snapshot):
        hang = explain_hang(dump)
        return hang if hang is not None and hang.kind == "mismatch" else None
    if first is None or first.at is None or (waited := _waited_by(snapshot, first)) is None:
        return None
    return explain_hang(dump) if first.at - waited <= dump.at <= first.at else None


def is_quiet(snapshot: RunSnapshot) -> bool:
    """True if no rank had printed or trained for a while when the stacks were taken."""
    since, dump = snapshot.printed_at or snapshot.status.started, snapshot.current_dump
    is_training = snapshot.status.state == "running" and snapshot.status.throughput is not None
    return not is_training and dump is not None and since is not None and dump.at - since > _QUIET


def choose_hang_cause(snapshot: RunSnapshot) -> Cause | None:
    """The cause of a hang: what ranks printed about themselves, else the stacks, else an exception that a rank printed,
    else a hint."""
    cause = _of_hanging(snapshot)
    return _dated(snapshot, _with_thread(snapshot, cause)) if cause is not None else None


def _with_thread(snapshot: RunSnapshot, cause: Cause) -> Cause:
    """The cause, with the exception of a thread of that rank that had died before."""
    output = snapshot.output_of(cause.rank) if cause.rank is not None else None
    if output is None or output.dead_thread is None or output.dead_thread[1] in cause.sentence:
        return cause
    return replace(cause, sentence=f"{cause.sentence}; before that, {output.died_thread}")


def _of_hanging(snapshot: RunSnapshot) -> Cause | None:
    if (held := _held(snapshot)) is not None:
        return held
    hang = find_hang(snapshot)
    is_apart = hang is not None and hang.kind in ("mismatch", "ended")
    apart = _resumed_apart(snapshot) or (_unequal_data(snapshot) if is_apart else None)
    if apart is not None:
        return apart
    if hang is not None and hang.kind != "same":
        return (_apart_at_start(snapshot) if is_apart else None) or _of_hang(snapshot, hang)
    hint = _hint(snapshot) if len(snapshot.context.hosts) > 1 else None
    if hang is None and (kept := _kept_by_thread(snapshot)) is not None:
        return kept
    if hang is not None:
        return hint or _of_hang(snapshot, hang)
    if snapshot.current_dump is not None and snapshot.current_dump.is_complete:
        raised = choose_raised(snapshot)  # by a thread: no rank waits for another one
        return raised if raised is not None and snapshot.output_of(raised.rank).raised_by_other else None
    return choose_raised(snapshot) or hint


def _held(snapshot: RunSnapshot) -> Cause | None:
    """Needs a process that is stopped, is in the kernel and gave no stack, or waits for a lock of a file; or a child
    that waits for a lock in own code."""
    dump = snapshot.current_dump
    for rank in dump.ranks if dump is not None else ():
        for process in rank.processes:
            own = next((frame for frame in process.frames if not (frame.is_standard or frame.is_library)), None)
            place = f" at {own.place}:{own.line}" if own is not None else ""
            words = {"pid": f"{process.pid}", "place": place, "wchan": process.wchan}
            kinds = {
                "hang.stopped": process.state in ("T", "t"),
                "hang.in_kernel": process.state == "D" and not process.threads,
                "hang.file_lock": "locks_lock" in process.wchan,
                "hang.child_lock": process is not rank.processes[0]
                and own in process.frames[:1]
                and "futex" in process.wchan,
            }
            for id_ in (name for name, is_so in kinds.items() if is_so):
                return _recorded(snapshot, Failure(rank.rank, rank.host), id_, _stacks(snapshot), rank.host, **words)
    return None


def _kept_by_thread(snapshot: RunSnapshot) -> Cause | None:
    """Needs stacks of ranks that wait in Python's own exit, which waits for threads that are no daemons. A thread that
    is in code of the script is named."""
    dump = snapshot.current_dump
    at_exit = [rank for rank in dump.ranks if rank.frames and rank.frames[0].key[:2] == _AT_EXIT] if dump else []
    if not at_exit:
        return None
    threads = [thread for rank in at_exit if (main := rank.main_process) is not None for thread in main.threads]
    frames = [frame for thread in threads if not thread.is_main for frame in thread.frames]
    own = next((frame for frame in frames if not frame.is_standard and not frame.is_library), None)
    thread = f"its thread in {own.place}:{own.line}" if own is not None else "a thread that it started"
    first, who = Failure(at_exit[0].rank, at_exit[0].host), describe_ranks([rank.rank for rank in at_exit])
    return _recorded(snapshot, first, "hang.at_exit", _stacks(snapshot), hang=who, thread=thread)


_AT_EXIT: Final = ("_shutdown", "threading.py")


def _stacks(snapshot: RunSnapshot) -> Proof:
    dump = snapshot.current_dump
    text = f"the Python stacks of {describe_ranks([rank.rank for rank in dump.ranks])}" if dump else "Python stacks"
    return Proof("stack", text, at=dump.at if dump is not None else None)


OF_STOPPING: Final = ("KeyboardInterrupt", "SystemExit")
"""Exceptions that SIGTERM raises in scripts that handle it."""


def choose_raised(snapshot: RunSnapshot) -> Cause | None:
    """The exception that a rank had printed when the run was ended."""
    cause = _cause_of_others(snapshot, None)
    raised = snapshot.output_of(cause.rank).exception if cause is not None else None
    return cause if raised is not None and raised[0] not in OF_STOPPING else None


def _printed(snapshot: RunSnapshot, rank: int | None, line: str) -> Proof:
    text = shorten_text(line.strip())
    is_named = re.search(rf"\brank\W{{0,3}}{rank}\b", text, re.IGNORECASE) is not None
    return Proof("line", text if is_named else f"rank {rank}: {text}", snapshot.output_of(rank).host)


_MOST_SEEN: Final = 4


def _of_hang(snapshot: RunSnapshot, hang: Hang) -> Cause:
    places = hang.causes or hang.waiting[-1:]
    hosts = fold(host for place in places for host in place.hosts)
    first = Failure(hang.ranks[0], places[0].hosts[0])
    all_receive = not hang.causes and all(place.function in _RECEIVING for place in hang.waiting)
    child, advice = _waits_for_child(snapshot, hang), _SEND_FIRST if all_receive else _EQUAL_SHAPES
    if not hang.causes and all(place.function in ("init_process_group", "new_group") for place in hang.waiting):
        advice = _MEET
    if hang.kind == "elsewhere":
        inner = f"{places[0].function} at {places[0].file}:{places[0].line}"
        see = "" if snapshot.status.is_over else Fix(_GOES_ON, run=snapshot.id)
        advice = _READ_PIPE if child else Fix(_ELSEWHERE, place=inner, see=see)
    words = {"hang": f"{hang.sentence}{child}", "ranks": fold_ranks(hang.ranks), "at_hosts": hosts, "advice": advice}
    cause = _recorded(snapshot, first, f"hang.{hang.kind.replace('-', '_')}", _stacks(snapshot), **words)
    if all_receive:  # nobody sends
        return replace(cause, confidence="certain")
    return cause if hang.is_sure else replace(cause, confidence="possible")


def _waits_for_child(snapshot: RunSnapshot, hang: Hang) -> str:
    """What is known of the child process for which a rank waits that does not arrive; or empty."""
    missing = {rank for place in hang.causes for rank in place.ranks}
    for rank in snapshot.current_dump.ranks if snapshot.current_dump is not None else ():
        if rank.rank not in missing or not rank.processes:
            continue
        main, *children = rank.processes
        is_waiting = bool(main.frames) and main.frames[0].place in _WAITS_FOR_CHILDREN
        full = next((child.pid for child in children if "pipe_write" in child.wchan), None)
        if full is not None and (is_waiting or "pipe_read" in main.wchan):
            return f"; process {full} of rank {rank.rank} waits until somebody reads the full pipe that it writes to"
        if is_waiting and rank.main_process is main:  # else a launcher, whose child is the training
            return f"; rank {rank.rank} waits for a child process"
    return ""


_WAITS_FOR_CHILDREN: Final = ("subprocess.py", "multiprocessing/popen_fork.py")
_READ_PIPE: Final = (
    "if the child's output goes to a pipe, read it while the child runs (communicate()), or send it to a file: a full "
    "pipe stops the child"
)
_ELSEWHERE: Final = "find what {place} waits for, and give that a limit of time after which it raises an error{see}"
_GOES_ON: Final = "; whether it goes on: `ipexctl why {run} --stacks`"
_RECEIVING: Final = frozenset({"recv", "recv_object_list"})
_SEND_FIRST: Final = "every rank receives, none sends: let one of each pair call send first, or use batch_isend_irecv"
_MEET: Final = "leave MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE to ipexctl run, in the script and in -x"
_EQUAL_SHAPES: Final = "print the shape that each rank passes there: it has to be the same on every rank"


class CauseFinder(NamedTuple):
    """One finder of a cause. `place` names where it looks."""

    place: str
    find: Callable[[RunSnapshot, Failure | None], Cause | None]
    """Returns None without the evidence that its docstring names."""


def choose_cause(snapshot: RunSnapshot, first: Failure | None) -> Cause | None:
    """Return the cause of the first finder that has its evidence, or None."""
    causes = (finder.find(snapshot, first) for finder in CAUSE_FINDERS)
    return next((_dated(snapshot, _with_thread(snapshot, cause)) for cause in causes if cause is not None), None)


def _dated(snapshot: RunSnapshot, cause: Cause) -> Cause:
    """The cause, whose evidence has the time at which its rank ended unless it has its own."""
    at = snapshot.ended_at.get(cause.rank) if cause.rank is not None else None
    seen = (proof if proof.at is not None else proof._replace(at=at) for proof in cause.evidence)
    return replace(cause, evidence=tuple(dict.fromkeys(seen)))


def _of_checkpoint(snapshot: RunSnapshot, first: Failure | None) -> Cause | None:
    """Needs a failed exchange of the checkpoint: the output of its ranks is from an earlier attempt."""
    if first is None or first.kind != "checkpoint":
        return None
    return _recorded(snapshot, first, "run.checkpoint", _report(first, snapshot.status.reason))


def _report(first: Failure, text: str) -> Proof:
    """What the supervisor recorded."""
    return Proof("report", text, first.host or "", first.at)


def _of_training(snapshot: RunSnapshot, first: Failure | None) -> Cause | None:
    """Needs a run that was ended for what it trained."""
    if first is None or first.kind not in ("nan", "starts-over"):
        return None
    if first.detail is None:
        return _recorded(snapshot, first, "script.starts_over", _report(first, snapshot.status.reason))
    step = first.detail.fields.get("step", "")
    return _recorded(snapshot, first, "script.nan", _report(first, f"the loss of step {step}, as measured"), step=step)


_OF_BF16: Final = re.compile(r"bfloat16", re.IGNORECASE)
_OF_DTYPES: Final = re.compile(r"dtype|scalar ?type", re.IGNORECASE)
_OTHER_TYPE: Final = re.compile(
    r"\b(?:float|double|half|long|int|bool|short|byte|char)(?:8|16|32|64)?\b", re.IGNORECASE
)
"""What torch says where tensors of two types meet; not always with the names of the types."""
_UNDER_AUTOCAST: Final = "outputs = call(self, *args, **kwargs)"
"""The line of `inrank/fast.py` that calls a model under autocast, in a traceback."""


def _of_autocast(snapshot: RunSnapshot, first: Failure | None) -> Cause | None:
    """Needs an exception about bf16 of a rank where autocast acted; or one about types that it does not name, raised in
    a model under autocast."""
    output = snapshot.output_of(first.rank) if first is not None and first.rank is not None else None
    if first is None or output is None or output.exception is None:
        return None
    kind, words = output.exception
    has_acted = next((lever.acted for lever in snapshot.status.levers if lever.name == "autocast"), None)
    is_of_types = _OF_DTYPES.search(words) and not _OTHER_TYPE.search(words) and _UNDER_AUTOCAST in output.text
    is_on = snapshot.context.plan.uses(AUTOCAST) and has_acted is not False
    if not is_on or not (_OF_BF16.search(words) or is_of_types):
        return None
    raised = f"{kind}: {shorten_text(words)}" + (f" ({output.place})" if output.place else "")
    seen = (_printed(snapshot, first.rank, raised), Proof("plan", "--autocast bf16 was on", output.host))
    return _recorded(snapshot, first, "script.autocast", seen, raised=raised)


def _of_rank_that_left(snapshot: RunSnapshot, first: Failure | None) -> Cause | None:
    """Needs a rank whose script had ended with exit code 0 when another one lost it."""
    if first is None or first.kind != "left" or first.detail is None:
        return None
    return _peer_ended(snapshot, first, _rank_to_read(first), first.detail.fields.get("step", ""))


def _rank_to_read(first: Failure) -> int | None:
    """The rank whose lines say how it failed: of one that left, the rank that lost it."""
    lost = first.detail.fields.get("lost", "") if first.kind == "left" and first.detail is not None else ""
    return int(lost) if lost.isdigit() else first.rank


def _of_oom(snapshot: RunSnapshot, first: Failure | None) -> Cause | None:
    """Needs the kernel's report that it killed the rank: from the cgroup, the kernel log or its counter."""
    if first is None or first.rank is None or first.oom is None:
        return None
    row = snapshot.row(first.rank)
    counted = next((proof for proof in row.evidence if proof.kind == "oom-counted"), None) if row is not None else None
    seen = counted or _report(first, f"the kernel's report ({first.oom.by})" if first.oom.by else "the kernel's report")
    fewer = "a higher limit (MemoryMax=, docker's --memory)" if first.oom.limit else "a host with more memory"
    if sum(row.host == first.host for row in snapshot.status.ranks) > 1:
        fewer = "fewer ranks per node: --ppn"
    return _recorded(snapshot, first, "memory.oom", seen, short=_shortage(first, first.oom), fewer=fewer)


def _shortage(first: Failure, oom: OutOfMemory) -> str:
    if oom.limit:
        text = f"its cgroup reached its memory limit of {format_limit(oom.limit)}"
    elif oom.by == "vmstat":
        text = f"memory ran out on {first.host}, or in a cgroup whose limit it does not show"
    else:
        text = f"memory ran out on {first.host}"
    return text + (f"; its last memory was {format_limit(oom.memory)}" if oom.memory else "")


def _of_different_checkpoints(snapshot: RunSnapshot, first: Failure | None) -> Cause | None:
    """Needs ranks that printed different checkpoints or steps when they resumed, and no better text of the first
    failure."""
    own = _own_text(snapshot, first)
    has_better_text = own is not None and own.is_good and own.id not in _OF_RESUMED_APART
    return None if has_better_text else _resumed_apart(snapshot)


_OF_RESUMED_APART: Final = ("script.raised", "hf.no_checkpoint")
"""Causes whose texts ranks print if the hosts have different checkpoints."""


def _resumed_apart(snapshot: RunSnapshot) -> Cause | None:
    report = find_resumed_apart(snapshot.context.outputs)
    if report is None:
        return None
    apart = snapshot.context.plan.apart
    place = report.place or (apart.place if apart is not None else "") or "PATH"
    return _reported(snapshot, "run.resumed_apart", report, resumed=report.sentence, place=place)


def _reported(snapshot: RunSnapshot, id_: str, report: RankReport, **words: str) -> Cause:
    first = Failure(report.lines[0][0], snapshot.output_of(report.lines[0][0]).host)
    seen = [_printed(snapshot, rank, line) for rank, line in report.lines]
    return _recorded(snapshot, first, id_, seen[:_MOST_SEEN], **words)


def _of_unequal_data(snapshot: RunSnapshot, first: Failure | None) -> Cause | None:
    """Needs ranks that printed different amounts of data, and a rank that lost a peer or got other data from it."""
    own = _own_text(snapshot, first)
    if own is None or not (own.has_followed or own.id in _OF_OTHER_CALLS):
        return None
    return _unequal_data(snapshot)


_OF_OTHER_CALLS: Final = ("ddp.steps_differ",)


def _unequal_data(snapshot: RunSnapshot) -> Cause | None:
    report = find_unequal_data(snapshot.context.outputs)
    return _reported(snapshot, "run.data_apart", report, said=report.sentence) if report is not None else None


def _of_checkpoints_before_start(snapshot: RunSnapshot, first: Failure | None) -> Cause | None:
    """Needs hosts that had different checkpoints before the start, and a rank that lost a peer or got other data."""
    own = _own_text(snapshot, first)
    if own is None or not (own.has_followed or own.id in _OF_OTHER_CALLS):
        return None
    return _apart_at_start(snapshot)


def _apart_at_start(snapshot: RunSnapshot) -> Cause | None:
    apart = snapshot.context.plan.apart
    if apart is None:
        return None
    seen = Proof("plan", apart.what, at=snapshot.status.started)
    cause = _recorded(snapshot, Failure(None, ""), "run.resumed_apart", seen, resumed=apart.what, place=apart.place)
    return replace(cause, confidence="possible")


_OF_FULL_DISKS: Final = ("disk.full", "disk.write_failed")
_SHARED_MEMORY: Final = re.compile(r"/dev/shm|/torch_")  # noqa: S108  # a text of torch


def _of_full_disk(snapshot: RunSnapshot, first: Failure | None) -> Cause | None:
    """Needs a line of that rank about a failed write, and the free space that its wrapper reported."""
    row = snapshot.row(first.rank) if first is not None else None
    if first is None or row is None or row.disk is None:
        return None
    own = _own_text(snapshot, first)
    if own is None or own.id not in _OF_FULL_DISKS:
        return None
    if _SHARED_MEMORY.search(snapshot.output_of(row.rank).last_text):
        return None
    full = describe_full_disk(row.disk)
    seen = Proof("disk-full", full, row.host, snapshot.ended_at.get(row.rank))
    words = {"disk": full, "path": shlex.quote(row.disk.path), "shows": "-i" if row.disk.lacks_files else "-h"}
    return _recorded(snapshot, first, "disk.full", seen, **words)


def describe_full_disk(disk: FullDisk) -> str:
    """`the disk of /home/me on it has 0 bytes of 16.0 GB free`."""
    path = disk.path
    if disk.lacks_files:
        return f"{path} has no room for more files, though {format_size(disk.free)} are free"
    return f"{path} has {format_size(disk.free)} of {format_size(disk.size)} free"


def _own_text(snapshot: RunSnapshot, first: Failure | None) -> Cause | None:
    """The best match in the lines of the rank that failed first. An exception beats a line that many causes print."""
    if first is None or first.rank is None:
        return None
    output = snapshot.output_of(_rank_to_read(first))
    own = cause_of(output, snapshot.context, known_errors()) or explain_exception(output, snapshot.context)
    return own if own is None or not own.is_vague else explain_exception(output, snapshot.context) or own


def _of_first_rank(snapshot: RunSnapshot, first: Failure | None) -> Cause | None:
    """Needs a line of that rank that is not a consequence of another rank's end."""
    own = _own_text(snapshot, first)
    return own if own is not None and own.is_good else None


def _of_launcher_log(snapshot: RunSnapshot, first: Failure | None) -> Cause | None:
    """Needs a run that no rank's exit code or signal ended, and a known line or detail in mpirun's log; once a host was
    lost, the end of mpirun follows from that."""
    if first is not None and (first.exit_code is not None or first.signal is not None):
        return None
    cause = cause_of(snapshot.context.launcher_output, snapshot.context, known_errors())
    if cause is None or not cause.is_good or (cause.is_vague and first is not None and first.kind == "lost"):
        return None
    return cause


def _of_other_ranks(snapshot: RunSnapshot, first: Failure | None) -> Cause | None:
    """Needs a run without a rank to blame, or a rank whose own lines say that it lost a peer."""
    if first is None or first.rank is None:
        return _cause_of_others(snapshot, first)
    own = _own_text(snapshot, first)
    return _loss(snapshot, first) if own is not None and own.has_followed else None


def _of_record(snapshot: RunSnapshot, first: Failure | None) -> Cause | None:
    """Needs only the record, which has how the rank ended."""
    return _end_without_text(snapshot, first) if first is not None else None


def _loss(snapshot: RunSnapshot, first: Failure) -> Cause | None:
    """Why the first failure lost a peer, or waited for it in vain."""
    if (better := _cause_of_others(snapshot, first) or _peer_that_ended(snapshot, first)) is not None:
        return better
    hang = find_hang(snapshot, first)
    return _of_hang(snapshot, hang) if hang is not None and hang.causes else _peers_that_ran(snapshot, first)


def _peers_that_ran(snapshot: RunSnapshot, first: Failure) -> Cause | None:
    """The first failure waited until its timeout, and no other rank had ended by then."""
    waited = _waited_by(snapshot, first)
    others = [row for row in snapshot.status.ranks if row.rank != first.rank]
    if waited is None or not others or any(row.state != "stopped" for row in others):
        return None
    ranks = [row.rank for row in others]
    said = _last_line(snapshot.output_of(ranks[0])) if len(ranks) == 1 else ""
    words = {"seconds": f"{waited:g}", "running": describe_ranks(ranks), "ranks": fold_ranks(ranks), "said": said}
    words["called"] = _place_of(snapshot, first.rank)
    seen = _printed(snapshot, first.rank, _last_line(snapshot.output_of(first.rank)).removeprefix(_LAST_LINE))
    return _recorded(snapshot, first, "peer.timeout", seen, **words)


def _waited_by(snapshot: RunSnapshot, first: Failure) -> float | None:
    match = _WAITED.search(snapshot.output_of(first.rank).last_text)
    return int(match["first"] or match["second"]) / 1000 if match is not None else None


def _last_line(output: RankOutput) -> str:
    lines = [line for line in map(bare, output.out or output.err) if line.strip() and not line.startswith("ipexctl: ")]
    return f"{_LAST_LINE}{shorten_text(lines[-1].strip())}" if lines else ""


_LAST_LINE: Final = "; its last line: "


def _peer_that_ended(snapshot: RunSnapshot, first: Failure) -> Cause | None:
    """The first rank that ended successfully before the first failure lost a connection, if only the text says so."""
    until = first.at if first.at is not None else float("inf")
    ended = [row for row in snapshot.status.ranks if row.state == "ok" and (row.ended_at or until) <= until]
    if not ended:
        return None
    row = min(ended, key=lambda row: (row.ended_at or until, row.rank))
    return _peer_ended(snapshot, Failure(row.rank, row.host), first.rank)


def _peer_ended(snapshot: RunSnapshot, left: Failure, lost: int | None, step: str = "") -> Cause:
    row, said = snapshot.row(left.rank), _last_line(snapshot.output_of(left.rank))
    at = row.ended_at if row is not None else None
    seen = Proof("exit", f"the script of rank {left.rank} ended with exit code 0", left.host or "", at)
    words = {"lost": f"{lost}", "called": _place_of(snapshot, lost), "said": said, "step": step}
    return _recorded(snapshot, left, "peer.ended", seen, **words)


def _place_of(snapshot: RunSnapshot, rank: int | None) -> str:
    place = snapshot.output_of(rank).place
    return f" ({place})" if place else ""


def _has_killed_wrapper(first: Failure) -> bool:
    """True if the rank's wrapper was killed. A rank that does not respond has another detail."""
    return first.detail is not None and first.detail.kind == "wrapper-killed"


_REPORT: Final = re.compile(r"\b(?:ERROR|CRITICAL|FATAL|[Ee]rror:|[Ff]ailed|[A-Z]\w*(?:Error|Exception)\b)")
_OF_REPORTS: Final = 10
"""Number of last lines on stderr: one of them that reports an error is shown in place of the last one."""


def _end_without_text(snapshot: RunSnapshot, first: Failure) -> Cause | None:
    if first.kind == "lost":
        id_ = "node.wrapper_killed" if _has_killed_wrapper(first) else "node.lost"
        id_ = "node.cut_off" if first.rank is None else id_
        return _recorded(snapshot, first, id_, _report(first, snapshot.status.reason), node0=snapshot.node0)
    if first.kind == "changed-orders":
        seen = _report(first, snapshot.status.reason)
        return _recorded(snapshot, first, "node.orders_changed", seen, node0=snapshot.node0)
    if first.exit_code is not None and not first.signal:
        lost = snapshot.status.output_lost
        if lost is not None and first.rank in lost.ranks and first.rank not in snapshot.copied:
            host = lost.host or snapshot.node0
            seen = _report(first, f"{lost.bytes:,} bytes of output that the disk of {host} had no room for")
            return _recorded(snapshot, first, "run.output_lost", seen, code=first.exit_code, node0=host)
        output = snapshot.output_of(first.rank)
        errors = [line for line in map(bare, output.lines_after_caught or output.err) if line.strip()]
        if raised := snapshot.status.raised:
            is_shown = any(raised.partition(":")[0] in line for line in errors)
            seen = _report(first, "the exception, as the rank's Python reported it")
            said = "" if is_shown else ", and its stderr has no line of it: the script closed or replaced it"
            said = f" ({output.place})" * bool(output.place) + said
            return _recorded(snapshot, first, "script.raised", seen, raised=shorten_text(raised), said=said)
        line = next(filter(_REPORT.search, reversed(errors[-_OF_REPORTS:-1])), "")
        said = f"; it printed on stderr: {shorten_text(line.strip())}" if line else ""
        said += _last_line(replace(output, out=()) if errors else output)
        has_traceback = any(line.endswith(TRACEBACK) for line in errors)  # a carriage return hid the line after it
        printed = "a traceback whose exception can't be read" if has_traceback else "no exception"
        printed = f"{output.caught}, and went on" if output.caught else printed
        children = [f"; before that, {proof.text}" for proof in output.evidence if proof.kind == "child"]
        words = {"printed": printed, "said": said + "".join(children[:1])}
        seen = Proof("exit", f"exit code {first.exit_code} of rank {first.rank}", first.host or "", first.at)
        words["where"] = f" ({output.place})" if output.place else ""
        return _recorded(snapshot, first, "script.exited", seen, code=first.exit_code, **words)
    return None


def _recorded(
    snapshot: RunSnapshot,
    first: Failure,
    id_: str,
    evidence: Proof | Sequence[Proof],
    host: str | None = None,
    **words: object,
) -> Cause:
    """A cause that the run's record shows. `words`: values for the text of its row in the table."""
    output = RankOutput(first.rank, first.host or "" if host is None else host)
    known = next(known for known in known_errors("recorded") if known.id == id_)
    match = PatternMatch(output, snapshot.context, {name: str(word) for name, word in words.items()})
    seen = (evidence,) if isinstance(evidence, Proof) else tuple(evidence)
    return Cause(id_, *known.texts(match), known.confidence, output.rank, output.host, source="record", evidence=seen)


def _cause_of_others(snapshot: RunSnapshot, first: Failure | None) -> Cause | None:
    """The best cause in other ranks' output: first those that failed, by time, then those that ipexctl ended."""
    rows = [row for row in snapshot.status.ranks if first is None or row.rank != first.rank]
    rows = [row for row in rows if row.state != "ok"]
    rows.sort(
        key=lambda row: (row.state not in ("failed", "lost"), snapshot.ended_at.get(row.rank, float("inf")), row.rank)
    )
    best: Cause | None = None
    for row in _distinct(rows, snapshot)[:_MAX_RANKS]:
        output = snapshot.output_of(row.rank)
        if row.state not in ("failed", "lost"):  # ipexctl ended it, by a signal
            output = RankOutput(output.rank, output.host, output.out, output.err, details=output.details)
        cause = cause_of(output, snapshot.context, known_errors())
        if cause is None or not cause.is_good:
            cause = explain_exception(output, snapshot.context) if cause is None else None
        if cause is not None and cause.confidence == "possible" and row.state not in ("failed", "lost"):
            cause = None  # it did not fail by itself
        if cause is not None and (best is None or cause.order < best.order):
            best = cause
    return best


def _distinct(rows: Iterable[RankStatus], snapshot: RunSnapshot) -> list[RankStatus]:
    """One of all ranks that printed the same lines."""
    by_output: dict[object, RankStatus] = {}
    for row in rows:
        output = snapshot.output_of(row.rank)
        by_output.setdefault((output.out, output.err, row.state), row)
    return list(by_output.values())


def _hint(snapshot: RunSnapshot) -> Cause | None:
    """A line of oneCCL or torch about how ranks look for one another."""
    for row in _distinct(snapshot.status.ranks, snapshot)[:_MAX_RANKS]:
        hint = cause_of(snapshot.output_of(row.rank), snapshot.context, known_errors("hang"))
        if hint is not None:
            return hint
    return None


CAUSE_FINDERS: Final = (
    CauseFinder("the exchange of the checkpoint", _of_checkpoint),
    CauseFinder("the loss", _of_training),
    CauseFinder("the kernel's report on memory", _of_oom),
    CauseFinder("a disk that was full when the rank could not write", _of_full_disk),
    CauseFinder("the checkpoints from which the ranks said that they resumed", _of_different_checkpoints),
    CauseFinder("the amounts of data that the ranks printed", _of_unequal_data),
    CauseFinder("the checkpoints of the hosts before the start", _of_checkpoints_before_start),
    CauseFinder("a rank that ended before one that needed it", _of_rank_that_left),
    CauseFinder("autocast, and an exception about types", _of_autocast),
    CauseFinder("the text of the rank that failed first", _of_first_rank),
    CauseFinder("mpirun's log", _of_launcher_log),
    CauseFinder("the other ranks", _of_other_ranks),
    CauseFinder("the rank's own text, though it follows from another end", _own_text),
    CauseFinder("the record", _of_record),
)
"""In the order of the search: what the supervisor or the kernel measured, what the ranks printed about themselves, what
was noted before the start, then general texts; causes before consequences."""
