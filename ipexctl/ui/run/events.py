"""Print a run as events for programs: `--events` writes one JSON object per line to stdout, and text to stderr.

docs/events.md lists the fields of each kind. A line is complete, written at once, and ASCII. The last one is `end`,
unless the reader left or a second signal came. No event has anything that `run --dry-run` hides: there are no
variables.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from ipexctl.homes.registry import RunRecord
from ipexctl.node.common.answer import Json
from ipexctl.node.common.frames import Chunk, Note, StreamName
from ipexctl.node.common.json_records import document_from, encode
from ipexctl.node.common.records import Failure, RunStatus, State, Throughput, TrainingGroup, TrainingProgress
from ipexctl.node.run.record.run_document import CallDocument, RankDocument, RunDocument, document_of_run, rank_document
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.outcome import Notice
from ipexctl.run.follow_run import RunUpdate
from ipexctl.run.ranks import EVERY_RANK, RankSet
from ipexctl.ui.message_output import STOPPING, fit_lines, notice_text, write_to_terminal
from ipexctl.ui.run.end_of_run import end_lines
from ipexctl.ui.run.plain import NoteFilter
from ipexctl.ui.safe_output import Pipe, PrefixedLines, print_document

SCHEMA: Final = "ipexctl.run-event/1"
_ENCODE: Final = json.JSONEncoder().encode


class PlanEvent(NamedTuple):
    """First, when the run starts."""

    id: str
    script: str
    env: str
    node0: str
    world_size: int
    hosts: tuple[str, ...]
    rank_hosts: tuple[str, ...]
    """The host of each rank."""


class StartEvent(NamedTuple):
    """An attempt begins."""

    attempt: int
    """0, then one more for each restart."""


class LineEvent(NamedTuple):
    """A rank printed a line; `time` is when node0 received it."""

    rank: int
    host: str
    stream: StreamName
    text: str


class FiguresEvent(NamedTuple):
    """A state changed, or two seconds have passed."""

    state: State
    attempt: int
    hosts: tuple[str, ...]
    """Of the attempt."""
    ranks: tuple[RankDocument, ...]
    loss: float | None
    step: int | None
    steps: int | None
    step_age: float | None
    epoch: float | None
    epochs: float | None
    speed: str | None
    throughput: Throughput | None
    group: TrainingGroup | None


class NoteEvent(NamedTuple):
    """ipexctl reports something about the run."""

    note: str
    warning: bool
    rank: int | None
    host: str | None
    stream: str | None
    details: Json
    text: str


class FailureEvent(NamedTuple):
    """An attempt failed, or nothing was started."""

    failure: str
    attempt: int
    rank: int | None
    host: str | None
    exit_code: int | None
    signal: int | None
    ranks: tuple[int, ...]
    reason: str
    fix: str

    @classmethod
    def of(
        cls, failure: str, reason: str, *, first: Failure | None = None, attempt: int = 0, fix: str = ""
    ) -> FailureEvent:
        """Return the event.

        `first`: the first failure of the attempt; None if it is not known, or nothing was started.
        """
        first = first or Failure(None, None)
        where = (first.rank, first.host, first.exit_code, first.signal, first.ranks)
        return cls(failure, attempt, *where, reason, fix)


Event: TypeAlias = PlanEvent | StartEvent | LineEvent | FiguresEvent | NoteEvent | FailureEvent | RunDocument
KINDS: Final[Mapping[type[Event], str]] = {
    PlanEvent: "plan",
    StartEvent: "start",
    LineEvent: "line",
    FiguresEvent: "figures",
    NoteEvent: "note",
    FailureEvent: "failure",
    RunDocument: "end",
}
"""Type of an event → its `kind`."""


def event_text(event: Event, at: float | None) -> str:
    """Return the line of an event. `at`: seconds since the epoch; None if unknown."""
    fields = _finite(encode(event))
    return _ENCODE({"schema": SCHEMA, "kind": KINDS[type(event)], "time": _finite_number(at), **fields}) + "\n"


def print_failed_call(reason: str, fix: str, exit_code: int) -> None:
    """Print the events of a call that failed before a view was open."""
    now = time.time()
    failure = event_text(FailureEvent.of("not-started", reason, fix=fix), now)
    print_document(failure + event_text(RunDocument(call=CallDocument(exit_code, 0.0)), now))


class EventsView:
    """The view of --events. `cancel` is thrown if the output cannot be written."""

    figures_interval: Final = 2.0
    drops_output: Final = True

    def __init__(self, cancel: Cancel, *, ranks: RankSet = EVERY_RANK, quiet: bool = False) -> None:
        self.cancel = cancel
        self._ranks = ranks
        self._quiet = quiet
        self._began = time.monotonic()
        self._events = Pipe(sys.stdout, cancel)
        self._words = Pipe(sys.stderr, cancel)
        self.record: RunRecord | None = None
        self._lines: dict[tuple[int, StreamName], _RankLines] = {}
        self._notes = NoteFilter()
        self._shown: RunStatus | None = None
        """The last status; None before the first."""
        self._attempt = 0
        """The attempt whose start was printed last."""
        self._failed: set[int] = set()
        """Attempts whose failure was printed."""

    @property
    def broken(self) -> OSError | None:
        """The error of the first output that could not be written; None without one."""
        return self._events.broken or self._words.broken

    def __enter__(self) -> EventsView:
        record = self.record
        if record is not None:
            plan, at = record.plan, record.started or None
            names = (record.id, plan.script, plan.environment, record.node0.name)
            self._print(PlanEvent(*names, plan.world_size, record.hosts, plan.rank_hosts), at)
            self._print(StartEvent(0), at)
        return self

    def __exit__(self, *_: object) -> None:
        for lines in self._lines.values():
            self._print_lines(lines, lines.prefixed.flush())
        self._words.finish()

    def fail(self, failure: str, reason: str, fix: str = "") -> None:
        """Print that nothing was started, or that the run could not be followed."""
        self._print(FailureEvent.of(failure, reason, fix=fix))

    def watch(self, update: RunUpdate) -> None:
        """Print an update of the run."""
        if isinstance(update, Chunk):
            self._on_chunk(update)
        elif isinstance(update, RunStatus):
            self._on_status(update)
        elif isinstance(update, Note):
            self._on_note(update)
        elif isinstance(update, Notice):
            self._print(NoteEvent("message", update.warning, None, None, None, {}, update.text))
            if update.warning or not self._quiet:
                self._words.write_lines([notice_text(update)])
        elif update.status is not None:
            if update.status != self._shown:
                self._on_status(update.status)
            if not (self._quiet and update.exit_code == 0):
                self._words.write_lines(fit_lines(end_lines(update.status, update.exit_code)))

    def stopping(self) -> None:
        """Say on stderr that the run is being stopped."""
        write_to_terminal(STOPPING)

    def not_stopping(self) -> None:
        """Do nothing: the warning is an event."""

    def abandon(self) -> None:
        """Do nothing: complete lines are written at once."""

    def finish(self, exit_code: int, status: RunStatus | None, reason: str = "", fix: str = "") -> None:
        """Print the last event, `end`. `reason`: why the run was not followed to its end; empty if it was."""
        if reason:
            self.fail("not-followed", reason, fix)
        record, call = self.record, CallDocument(exit_code, round(time.monotonic() - self._began, 3))
        run = RunDocument() if record is None else document_of_run(record.plan, status, record.started)
        self._print(run._replace(call=call))
        self._events.finish()

    def _on_chunk(self, chunk: Chunk) -> None:
        """Print the lines that a rank's output completes."""
        if chunk.rank not in self._ranks:
            return
        key = chunk.rank, chunk.stream
        lines = self._lines.get(key)
        if lines is None:
            lines = self._lines[key] = _RankLines(chunk.rank, self._host(chunk.rank), chunk.stream)
        lines.at = chunk.at
        self._print_lines(lines, lines.prefixed.feed(chunk.data))

    def _print_lines(self, lines: _RankLines, complete: bytes) -> None:
        """Print complete lines as events."""
        if not complete:
            return
        texts = complete[:-1].decode(errors="replace").split("\n")
        self._write(lines.events(texts))

    def _on_note(self, note: Note) -> None:
        """Print a note of node0; a restart also begins an attempt."""
        if (text := self._notes.text_of(note)) is None:
            return
        is_warning = note.kind in ("gap", "group", "not-started", "changed-orders")
        where = (note.rank, self._host(note.rank), note.stream)
        self._print(NoteEvent(note.kind, is_warning, *where, _finite(note.fields), text), note.at)
        self._words.write_lines([text])
        attempt = note.fields.get("attempt")
        if note.kind == "restart" and isinstance(attempt, int):
            self._on_restart(attempt, note.at)

    def _on_status(self, status: RunStatus) -> None:
        """Print the figures, and failures and restarts that this status is the first to show."""
        self._shown = status
        for attempt in status.attempts:
            if attempt.first_failure is None and attempt.reason:  # a job that began again
                continue
            self._on_failure(attempt.attempt, attempt.first_failure, attempt.reason, attempt.ended)
        if status.attempt > self._attempt and (status.state == "running" or status.is_over):
            self._on_restart(status.attempt)
        progress = status.progress or TrainingProgress()
        ranks, speed = tuple(map(rank_document, status.ranks)), progress.speed or None
        self._print(document_from(FiguresEvent, status, progress, ranks=ranks, step_age=progress.age, speed=speed))
        first = status.first_failure
        if first is not None or status.state in ("failed", "lost"):
            self._on_failure(status.attempt, first, status.reason, first.at if first is not None else status.ended)

    def _on_restart(self, attempt: int, at: float | None = None) -> None:
        """Print that an attempt begins, once for each attempt."""
        if attempt > self._attempt:
            self._attempt = attempt
            self._print(StartEvent(attempt), at)

    def _on_failure(self, attempt: int, first: Failure | None, reason: str, at: float | None) -> None:
        """Print that an attempt failed, once for each attempt."""
        if attempt not in self._failed:
            self._failed.add(attempt)
            failure = (first.kind if first is not None else "") or "lost"
            self._print(FailureEvent.of(failure, reason, first=first, attempt=attempt), at)

    def _host(self, rank: int) -> str:
        """Return the host of a rank; empty if it is not known."""
        if self._shown is not None and self._shown.has_moved:
            return next((row.host for row in self._shown.ranks if row.rank == rank), "")
        hosts: Sequence[str] = self.record.plan.rank_hosts if self.record is not None else ()
        return hosts[rank] if rank < len(hosts) else ""

    def _print(self, event: Event, at: float | None = None) -> None:
        self._write(event_text(event, time.time() if at is None else at))

    def _write(self, text: str) -> None:
        self._events.write(text.encode())


class _RankLines:
    """Lines of one rank's stream. The fields that all its events share are encoded once."""

    def __init__(self, rank: int, host: str, stream: StreamName) -> None:
        self.rank = rank
        self.prefixed = PrefixedLines(b"")
        self.at: float | None = None
        """When node0 received the last data."""
        self._head = f'{{"schema": "{SCHEMA}", "kind": "line", "time": '
        self._fields = f', "rank": {rank}, "host": {_ENCODE(host)}, "stream": "{stream}", "text": '

    def events(self, texts: Sequence[str]) -> str:
        """Return the events of these lines."""
        begin = self._head + _ENCODE(_finite_number(self.at)) + self._fields
        return "".join([f"{begin}{_ENCODE(text)}}}\n" for text in texts])


def _finite(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Replace NaN and Infinity, which JSON lacks, by null; a loss may be one."""
    return {name: _finite_number(value) if isinstance(value, float) else value for name, value in fields.items()}


def _finite_number(value: float | None) -> float | None:
    """Return the number; None for NaN and Infinity."""
    return value if value is None or value - value == 0 else None
