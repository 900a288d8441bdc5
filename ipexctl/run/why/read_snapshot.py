"""The snapshot of a run: its record and the last lines of its ranks, in the types that a diagnosis reads.

Read from frames of `node/run/run_snapshot.py`, sent by node0 or made from the local copy. A missing or malformed part
is left out, because a damaged record still explains much. Lines of earlier attempts do not count. All times are of
node0's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple

from ipexctl.known_errors.match import FailureContext, RankOutput
from ipexctl.node.common.frames import SUFFIXES, Chunk
from ipexctl.node.common.plan import read_valid_plan
from ipexctl.node.common.records import (
    OF_GPUS,
    Detail,
    Failure,
    Proof,
    RankStatus,
    RunStatus,
    as_dict,
    as_lines,
    as_list,
    as_number,
    read_status,
    split_details,
)
from ipexctl.node.run.notify import NotifyEnd
from ipexctl.node.run.record.losses import MAX_POINTS, MAX_SERIES
from ipexctl.run.stack_dump import Dump


class PrintedNumber(NamedTuple):
    """A number that a rank printed, such as a loss, and when."""

    at: float
    value: float
    step: float | None = None
    """None if it was not printed."""


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """The record of a run and the last lines of its ranks."""

    status: RunStatus
    context: FailureContext
    node0: str = ""
    now: float | None = None
    """By node0's clock, like all times here."""
    printed_at: float | None = None
    """When any rank printed something last; None if unknown."""
    restarted: bool = False
    """True if node0, or its container, has been started again since the supervisor began."""
    kills: int | None = None
    """Kills for memory that node0's kernel has counted since its boot; None if unknown."""
    ended_at: Mapping[int, float] = field(default_factory=dict, hash=False)
    """Rank → when its script ended, in the last attempt."""
    restarts: tuple[str, ...] = ()
    events: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)
    """Events of all attempts, oldest first; of too many, the first and the last."""
    supervise: tuple[str, ...] = ()
    dump: Dump | None = None
    dump_error: str = ""
    """Why no stacks could be read from a run that continues."""
    failed_notify: NotifyEnd | None = None
    copied: tuple[int, ...] = ()
    """Ranks whose lines are from the local copy, because the record lacks some of their output."""
    losses: tuple[PrintedNumber, ...] = ()
    """If they were asked for."""
    series: Mapping[str, tuple[PrintedNumber, ...]] = field(default_factory=dict, hash=False)
    """What rank 0 printed beside the losses, by its name there."""

    @property
    def current_dump(self) -> Dump | None:
        """Return the stacks if they were taken in the last attempt, else None."""
        begin = max((attempt.ended or 0.0 for attempt in self.status.attempts), default=0.0)
        return self.dump if self.dump is not None and self.dump.at >= begin else None

    @property
    def id(self) -> str:
        """Return the run's id."""
        return self.status.id

    @property
    def took(self) -> float | None:
        """Return the seconds that the run took; None if it goes on."""
        return self.status.took if self.status.ended else None

    @property
    def silent_for(self) -> float | None:
        """Seconds without output of any rank, if that was reported."""
        until = self.status.ended if self.status.is_over else self.now
        if self.status.silent is None or until is None:
            return None
        return max(0.0, until - self.status.silent.since)

    def output_of(self, rank: int | None) -> RankOutput:
        """Return the last lines of a rank; empty for a rank without a record."""
        return self.context.by_rank.get(rank) or RankOutput(rank, "")

    def row(self, rank: int | None) -> RankStatus | None:
        """Return the record of a rank, or None."""
        return next((row for row in self.status.ranks if row.rank == rank), None)


def read_snapshot(
    document: Mapping[str, Any], output: Iterable[Chunk], node0: str, dump: Dump | None = None
) -> RunSnapshot:
    """`document` is the last event of the call."""
    status = read_status(document.get("status"))
    events = [as_dict(entry) for entry in as_list(document.get("events"))]
    series = as_dict(document.get("series"))
    return RunSnapshot(
        status=status,
        context=_failure_context(document, output, status, node0),
        node0=node0,
        now=as_number(document.get("now")),
        printed_at=as_number(document.get("printed")),
        restarted=document.get("restarted") is True,
        kills=None if (kills := as_number(document.get("kills"))) is None else int(kills),
        ended_at={row.rank: row.ended_at for row in status.ranks if row.ended_at is not None},
        restarts=tuple(attempt.reason for attempt in status.attempts),
        events=tuple(events),
        supervise=as_lines(document.get("supervise")),
        dump=dump,
        failed_notify=_failed_notify(document.get("notify")),
        losses=tuple(_numbers(document.get("losses"))),
        series={name[:80]: tuple(_numbers(rows)) for name, rows in islice(series.items(), MAX_SERIES)},
    )


def _numbers(document: object) -> Iterator[PrintedNumber]:
    for row in as_list(document)[:MAX_POINTS]:
        at, value, step = (as_number(figure) for figure in (*as_list(row), None, None, None)[:3])
        if at is not None and value is not None:
            yield PrintedNumber(at, value, step)


def _failed_notify(document: object) -> NotifyEnd | None:
    if not isinstance(document, dict):
        return None
    code = as_number(document.get("exit_code"))
    line = document.get("error") or document.get("line")
    return NotifyEnd(None if code is None else int(code), line if isinstance(line, str) else "")


def with_copied_output(snapshot: RunSnapshot, copied: RunSnapshot) -> RunSnapshot:
    """Replace lines by those of a complete local copy, for ranks whose output the record lacks in part.

    The record has the beginning of a stream and the copy no less of it, so differing lines mean more lines.
    """
    lost = snapshot.status.output_lost
    outputs, better = list(snapshot.context.outputs), []
    for place, own in enumerate(outputs):
        other = copied.output_of(own.rank)
        if lost is None or own.rank not in lost.ranks or (other.out, other.err) in (((), ()), (own.out, own.err)):
            continue
        outputs[place] = other
        better.append(own.rank)
    return replace(snapshot, context=replace(snapshot.context, outputs=tuple(outputs)), copied=tuple(better))


def _failure_context(
    document: Mapping[str, Any], output: Iterable[Chunk], status: RunStatus, node0: str
) -> FailureContext:
    texts = {
        (str(chunk.rank), SUFFIXES[chunk.stream]): tuple(chunk.data.decode(errors="replace").split("\n"))
        for chunk in output
        if chunk.data
    }
    sent_as = as_dict(document.get("ranks"))
    first = status.first_failure
    outputs = []
    plan = read_valid_plan(document.get("plan"))
    is_python = bool(plan.asked.argv) and plan.asked.kind != "command" and not plan.asked.in_front
    for row in status.ranks:
        own = as_dict(sent_as.get(str(row.rank)))
        out, err = (texts.get((str(own.get(suffix)), suffix), ()) for suffix in ("out", "err"))
        ended = first if first is not None and first.rank == row.rank else row
        kind = ended.kind if isinstance(ended, Failure) else ""
        details: tuple[Detail, ...] = (row.problem,) if row.problem is not None else ()
        evidence = row.evidence
        details += tuple(Detail(proof.kind, {"what": proof.text}) for proof in evidence if proof.kind in OF_GPUS)
        if row.disk is not None:
            evidence += (Proof("disk-full", f"{row.disk.path} was full", row.host),)
        printed = RankOutput(
            row.rank, row.host, out, err, ended.exit_code, ended.signal, kind, row.state, details, evidence
        )
        outputs.append(replace(printed, is_python=is_python))
    log, reported = split_details(as_lines(document.get("mpirun")) or status.mpirun.tail)
    known = reported
    if first is not None and first.detail is not None:
        known = (*known, first.detail)
    numpy = plan.versions.get("numpy", "")
    of_numpy = Proof(f"numpy-{numpy.partition('.')[0]}", f"NumPy {numpy} is installed")
    return FailureContext(
        run=status.id,
        evidence=(of_numpy,) if numpy else (),
        outputs=tuple(outputs),
        launcher_output=RankOutput(None, node0, (), (*log, status.reason), details=known),
        plan=plan,
        master=status.master,
    )
