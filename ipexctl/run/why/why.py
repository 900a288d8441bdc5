"""Asks node0 for the record of a run and diagnoses it; without an answer, reads the local copy.

For a running run, stacks are taken again if the newest are older than a minute: taking them stops the ranks for a
moment. The copy counts only if it says how the run ended; otherwise the outcome is unknown (exit code 3 if node0 can't
be reached, else 1). Output that node0's record lacks, because its disk was full, is taken from the copy if that has
more. `cause_from_copy` serves `run` and `attach`, which have just received everything.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Final

from ipexctl.homes.local_copy import read_final_status
from ipexctl.homes.registry import FailedCall, RunRecord
from ipexctl.hosts.host import Host
from ipexctl.hosts.nodeset import fold
from ipexctl.known_errors.error_table import FOUND_NO_GPU
from ipexctl.known_errors.match import Cause, FailureContext
from ipexctl.limits import DUMP_FRESH, PATIENCE
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.frames import Chunk, Frame, FrameError, decode_chunk, decode_json
from ipexctl.node.common.lever_records import measured
from ipexctl.node.common.rank_options import ALLREDUCE
from ipexctl.node.common.records import FINAL, RunStatus
from ipexctl.node.run.meter.rates import waiting_of
from ipexctl.node.run.record.run_document import RunDocument, document_of_run
from ipexctl.node.run.run_replies import SuspectSnapshot
from ipexctl.node.run.run_snapshot import SnapshotRequest
from ipexctl.node.run.slow_rank import SuspectRequest
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.node_call import call
from ipexctl.remote.outcome import Cancelled, HostError, TimedOut, Unreachable
from ipexctl.remote.session import Session
from ipexctl.run.node0 import call_on_node0, open_copy
from ipexctl.run.profile import RunProfile, profile_of
from ipexctl.run.ranks import describe_ranks
from ipexctl.run.stack_dump import Dump, DumpReceiver, ProfileAnswer, dump
from ipexctl.run.unsent import line_that_sends, project_file
from ipexctl.run.why.diagnosis import Diagnosis, diagnose
from ipexctl.run.why.read_snapshot import RunSnapshot, read_snapshot, with_copied_output
from ipexctl.run.why.slow_verdict import RunSetup, SlowFinding, SlowVerdict, find_slow_ranks, needs_snapshot
from ipexctl.run.windows import RunWindows, fetch_windows, read_copied_windows
from ipexctl.text import format_clock

_MAX_OUTPUT: Final = 64 << 20
_NO_WINDOWS: Final = SlowVerdict(unjudged="no-windows")


@dataclass(frozen=True, slots=True)
class WhyResult:
    """The answer of `ipexctl why`."""

    record: RunRecord
    diagnosis: Diagnosis
    exit_code: int = 0
    """3 if node0 can't be reached and the copy doesn't say how the run ended; 1 if node0 doesn't know."""
    failed_call: FailedCall | None = None
    snapshot: RunSnapshot | None = None
    windows: RunWindows | None = None
    slow: SlowVerdict = _NO_WINDOWS
    look_error: str = ""
    """Why the host of a slow rank could not be inspected; begins with the host."""
    error: HostError | None = None
    """Why node0 did not answer."""
    unprofiled: ProfileAnswer = ()
    """After `why --profile`."""

    state = property(attrgetter("diagnosis.state"))
    headline = property(attrgetter("diagnosis.headline"))
    cause = property(attrgetter("diagnosis.cause"))
    hang = property(attrgetter("diagnosis.hang"))
    lines = property(attrgetter("diagnosis.lines"))
    others = property(attrgetter("diagnosis.others"))
    notes = property(attrgetter("diagnosis.notes"))
    next = property(attrgetter("diagnosis.next"))

    @property
    def run(self) -> RunDocument:
        """Return the run as documents show it, in the diagnosed state."""
        status = None if self.snapshot is None else self.snapshot.status
        return document_of_run(self.record.plan, status, self.record.started)._replace(state=self.state)

    @property
    def profile(self) -> RunProfile | None:
        """Return where the ranks spent their time; None without windows."""
        return profile_of(self.windows.profiles, self.record.plan.asked.omp) if self.windows is not None else None

    @property
    def from_copy(self) -> bool:
        """True if the windows are from the copy on the control machine."""
        return self.error is not None and self.windows is not None


def why(
    record: RunRecord,
    open_session: Callable[[Host], Session],
    runs: Path,
    cancel: Cancel,
    *,
    has_losses: bool = False,
) -> WhyResult:
    """Query node0; if it can't be reached or has no record, read the copy in `runs`, the registry's directory.

    `has_losses`: the snapshot has the losses that rank 0 printed.
    """
    try:
        session = open_session(record.node0)
        snapshot = _read_snapshot(session, record, losses=has_losses)
        if snapshot.status.state == "running":
            snapshot = _with_fresh_dump(snapshot, session, record)
        windows = _read_windows(session, record)
    except Cancelled:
        raise
    except HostError as error:
        return _with_call_options(_from_copy(record, runs, error, cancel, losses=has_losses))
    diagnosis = _diagnose_with_copy(snapshot, record, runs, cancel)
    answer = WhyResult(record, diagnosis, snapshot=snapshot)
    return _with_call_options(_with_suspect(_with_windows(answer, windows), open_session))


def _read_windows(session: Session, record: RunRecord) -> RunWindows | None:
    try:
        return fetch_windows(session, record)
    except Cancelled:
        raise
    except HostError:
        return None


def _with_windows(answer: WhyResult, windows: RunWindows | None) -> WhyResult:
    if windows is None or answer.snapshot is None:
        return answer
    return replace(answer, windows=windows, slow=_judge_windows(windows, answer.snapshot))


def _with_suspect(answer: WhyResult, open_session: Callable[[Host], Session]) -> WhyResult:
    """Inspect the host of the worst rank that is slow now, if that can tell more and the run is alive."""
    snapshot, windows = answer.snapshot, answer.windows
    suspect = _suspect_of(answer.slow)
    if snapshot is None or windows is None or suspect is None or snapshot.status.state != "running":
        return answer
    try:
        seen = _inspect_suspect(answer.record, snapshot.status, suspect, open_session)
    except Cancelled:
        raise
    except HostError as error:
        return replace(answer, look_error=f"{suspect.host}: {error.reason}")
    return replace(answer, slow=_judge_windows(windows, snapshot, {suspect.rank: seen}))


def _judge_windows(
    windows: RunWindows, snapshot: RunSnapshot, looks: Mapping[int, SuspectSnapshot] | None = None
) -> SlowVerdict:
    """`looks`: rank → what runs beside it now."""
    status, plan = snapshot.status, snapshot.context.plan
    hosts = {row.rank: row.host for row in status.ranks}
    waiting = waiting_of(plan.backend, plan.choice(ALLREDUCE).mode, len(set(hosts.values())))
    setup = RunSetup(hosts, waiting, status.network, measured(status.levers), status.amx_idle)
    return find_slow_ranks(windows, setup, looks)


def _suspect_of(verdict: SlowVerdict) -> SlowFinding | None:
    """The worst rank that is slow now, if inspecting its host can tell more."""
    current = (finding for finding in verdict.findings if finding.is_current)
    return next((finding for finding in current if needs_snapshot(finding.cause)), None)


def _inspect_suspect(
    record: RunRecord,
    status: RunStatus,
    suspect: SlowFinding,
    open_session: Callable[[Host], Session],
) -> SuspectSnapshot:
    """Look at the suspect's host for a second. Raises a HostError if that is impossible."""
    host = next((host for host in record.nodes if host.name == suspect.host), None)
    pid = next((row.pid for row in status.ranks if row.rank == suspect.rank), None)
    if host is None or pid is None:
        raise HostError("the run's record does not say how to reach it")
    request: SuspectRequest = {"home": record.home, "id": record.id, "pid": pid}
    reply = call(
        open_session(host),
        "run.slow_rank",
        "inspect",
        request,
        record.agent if host == record.node0 else record.agent._replace(python=""),
        label="look at the slow rank",
        silence=PATIENCE,
    )
    return reply.decode(SuspectSnapshot)


def _with_fresh_dump(snapshot: RunSnapshot, session: Session, record: RunRecord) -> RunSnapshot:
    """Take a stack dump, if the newest one is old."""
    if snapshot.dump is not None and 0 <= (snapshot.now or 0.0) - snapshot.dump.at < DUMP_FRESH:
        return snapshot
    try:
        taken = dump(session, record, None)
    except Cancelled:
        raise
    except HostError as error:
        return replace(snapshot, dump_error="; ".join(filter(None, (error.reason, error.advice))))
    if isinstance(taken, RunStatus):
        return replace(_read_snapshot(session, record), losses=snapshot.losses, series=snapshot.series)
    return replace(snapshot, dump=taken)


def mention_failed_call(answer: WhyResult, failed: FailedCall) -> WhyResult:
    """Add the last call of `ipexctl run` that began no run, if it was made after this run."""
    record = answer.record
    if failed.sequence < record.sequence or (not record.sequence and failed.at <= record.started):
        return answer
    return replace(answer, failed_call=failed)


def is_for_want_of_gpu(cause: Cause | None) -> bool:
    """Return True if the script ended because PyTorch found no GPU."""
    return cause is not None and cause.id == FOUND_NO_GPU


def mention_page(answer: WhyResult) -> WhyResult:
    """Add the command that shows the run on one page, if there is a record to show; a cause has its own next step."""
    if answer.snapshot is None or answer.diagnosis.cause is not None:
        return answer
    command = answer.record.call_options.apply(Fix(f"`ipexctl report {answer.record.id}`"))
    return replace(answer, diagnosis=replace(answer.diagnosis, next=(*answer.diagnosis.next, command)))


def _with_call_options(answer: WhyResult) -> WhyResult:
    diagnosis, options = answer.diagnosis, answer.record.call_options
    cause = diagnosis.cause and replace(diagnosis.cause, fix=options.apply(diagnosis.cause.fix))
    steps = diagnosis.next if answer.record.is_own else (step for step in diagnosis.next if not _stops(step))
    after = tuple(map(options.apply, steps))
    if diagnosis.state == "lost" or (diagnosis.state == "unknown" and not (answer.error and answer.error.has_answered)):
        after += tuple(filter(None, (answer.record.resume_command,)))
    elif diagnosis.state in ("failed", "stopped") and answer.snapshot and answer.snapshot.status.fetch_line:
        after += tuple(filter(None, (answer.record.continue_command,)))
    elif answer.snapshot and answer.snapshot.status.lacks_gpu:
        after += (answer.record.gpu_command,)
    notes, lost = diagnosis.notes, options.lost_hostfile
    if lost and any(lost in text for text in (*after, cause.fix if cause else "")):
        notes = (*notes, f"{lost}, which the commands below name, is no longer there: put it back, or type --hosts")
    return replace(answer, diagnosis=replace(diagnosis, cause=cause, next=after, notes=notes))


def _stops(step: str) -> bool:
    return isinstance(step, Fix) and any(command.verb == "stop" for command in step.commands)


def _read_snapshot(session: Session, record: RunRecord, *, copy: bool = False, losses: bool = False) -> RunSnapshot:
    output: list[Chunk] = []
    received = 0
    receiver = DumpReceiver(record.plan.world_size)
    newest_dump: Dump | None = None

    def on_frame(frame: Frame) -> None:
        nonlocal received, newest_dump
        kind, payload = frame
        received += len(payload)
        if received > _MAX_OUTPUT:
            raise FrameError("more output than was requested")
        if kind == b"J":
            newest_dump = receiver.add(decode_json(payload)) or newest_dump
        else:
            output.append(decode_chunk(kind, payload))

    request: SnapshotRequest = {"home": record.home, "id": record.id, "copy": copy, "losses": losses}
    reply = call_on_node0(session, record, "run.run_snapshot", "read", request, on_frame=on_frame)
    node0 = record.node0.name
    snapshot = read_snapshot(reply, output, node0, newest_dump)
    context = replace(
        snapshot.context,
        line_that_sends=partial(line_that_sends, record),
        project_file=partial(project_file, record),
        is_set_here=os.environ.__contains__,
    )
    return replace(snapshot, context=context)


def _diagnose_with_copy(snapshot: RunSnapshot, record: RunRecord, runs: Path, cancel: Cancel) -> Diagnosis:
    """The diagnosis; ranks' output missing in the record is read from the copy, if that is complete."""
    if snapshot.status.output_lost is None:
        return diagnose(snapshot)
    try:
        copied = _copied_snapshot(record, runs, cancel)
    except Cancelled:
        raise
    except HostError:
        copied = None
    if copied is None or copied.status.state not in FINAL:
        return diagnose(snapshot)
    snapshot = with_copied_output(snapshot, copied)
    diagnosis = diagnose(snapshot)
    if not snapshot.copied:
        return diagnosis
    directory = runs / record.id / "ranks"
    note = f"the lines of {describe_ranks(snapshot.copied)} are from the copy on the control machine: {directory}"
    return replace(diagnosis, notes=(*diagnosis.notes, note))


def cause_from_copy(record: RunRecord, runs: Path) -> Cause | None:
    """The cause for a run that was just followed to its end, without another call to node0."""
    try:
        snapshot = _copied_snapshot(record, runs, Cancel(), timeout=10.0)
    except HostError:
        return None
    return diagnose(snapshot).cause if snapshot is not None else None


def _copied_snapshot(
    record: RunRecord, runs: Path, cancel: Cancel, *, timeout: float | None = None, losses: bool = False
) -> RunSnapshot | None:
    """None without a local copy. Raises a HostError if it can't be read."""
    if not (runs / record.id / "status.json").exists():
        return None
    local, session = open_copy(record, runs, cancel)
    session.timeout = timeout
    return _read_snapshot(session, local, copy=True, losses=losses)


def _from_copy(record: RunRecord, runs: Path, error: HostError, cancel: Cancel, *, losses: bool) -> WhyResult:
    """The copy of a run is complete, or has its beginning."""
    is_away = isinstance(error, Unreachable | TimedOut)
    what = "" if error.has_answered or not is_away else " can't be reached"
    away = f"node0 ({record.node0.name}){what}: {error.reason}"
    try:
        snapshot = _copied_snapshot(record, runs, cancel, losses=losses)
    except HostError:
        snapshot = None
    is_cut = snapshot is None or snapshot.status.state not in FINAL
    if is_cut and (ended := read_final_status(runs / record.id)) is not None:  # what `ps` says
        snapshot = replace(snapshot or RunSnapshot(ended, FailureContext(record.id, plan=record.plan)), status=ended)
    if snapshot is not None and snapshot.status.state in FINAL:
        diagnosis = diagnose(snapshot)
        notes = (*diagnosis.notes, f"{away}; this is from the copy on the control machine")
        answer = WhyResult(record, replace(diagnosis, notes=notes), snapshot=snapshot, error=error)
        return _with_windows(answer, read_copied_windows(runs / record.id))
    unknown = _unknown(record, snapshot, away, error.advice)
    return WhyResult(record, unknown, 3 if is_away else 1, snapshot=snapshot, error=error)


def _unknown(record: RunRecord, snapshot: RunSnapshot | None, away: str, fix: str) -> Diagnosis:
    notes = []
    if record.started:
        began = format_clock(record.started, "%Y-%m-%d %H:%M:%S")
        size = f"{record.plan.world_size} rank{'s' * (record.plan.world_size != 1)}"
        notes.append(f"it was started at {began}: {record.plan.script}, {size} on {fold(record.hosts)}")
    if snapshot is not None:
        notes.append(f"at the last contact it was {snapshot.status.state}")
    if fix:
        notes.append(fix)
    headline = f"it is not known whether run {record.id} continues: {away}"
    after = Fix(f"`ipexctl logs {record.id}`") if snapshot is not None else Fix("`ipexctl ps`")
    return Diagnosis(record.id, "unknown", headline, notes=tuple(notes), next=(after,))
