"""Prints a run as events for programs: `--events` writes one JSON object per line to stdout, and text to stderr.
docs/events.md lists the fields of each kind. A line is complete, written at once, and ASCII; the last is `end`, unless
the reader left or a second signal came. No event has anything that `run --dry-run` hides: there are no variables.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ipexctl.homes.registry import RunRecord
from ipexctl.node.common.frames import Chunk, Note, StreamName
from ipexctl.node.common.records import Failure, RunStatus
from ipexctl.node.run.record.summary import summary_fields
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.outcome import Notice
from ipexctl.run.follow import RunUpdate
from ipexctl.run.ranks import EVERY_RANK, RankSet
from ipexctl.text import strip_colors
from ipexctl.ui.messages import STOPPING, fit_lines, notice_text, write_to_terminal
from ipexctl.ui.run.end_of_run import end_lines
from ipexctl.ui.run.figures import Figures
from ipexctl.ui.run.plain import ShownNotes
from ipexctl.ui.safe_output import Pipe, PrefixedLines, print_document

SCHEMA: Final = "ipexctl.run-event/1"
_READ_FOR_FIGURES: Final = 50
"""Newest lines that are read for loss and step when figures are printed: to read all would take 20 µs a line."""
_ENCODE: Final = json.JSONEncoder().encode


def event_text(kind: str, fields: Mapping[str, Any], at: float | None) -> str:
    return _ENCODE({"schema": SCHEMA, "kind": kind, "time": _finite_number(at), **fields}) + "\n"


def note_fields(
    note: str,
    text: str,
    *,
    warning: bool,
    rank: int | None = None,
    host: str | None = None,
    stream: str | None = None,
    details: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    place = {"rank": rank, "host": host, "stream": stream}
    return {"note": note, "warning": warning, **place, "details": _finite(details or {}), "text": text}


def failure_fields(
    failure: str, reason: str, *, first: Failure | None = None, attempt: int = 0, fix: str = ""
) -> dict[str, Any]:
    """Fields of a `failure`: what failed first in an attempt, or why nothing was started."""
    return {
        "failure": failure,
        "attempt": attempt,
        "rank": first and first.rank,
        "host": first and first.host,
        "exit_code": first and first.exit_code,
        "signal": first and first.signal,
        "ranks": list(first.ranks) if first is not None else [],
        "reason": reason,
        "fix": fix,
    }


def print_failed_call(reason: str, fix: str, exit_code: int) -> None:
    now = time.time()
    failure = event_text("failure", failure_fields("not-started", reason, fix=fix), now)
    print_document(failure + event_text("end", summary_fields(None, None, exit_code, 0.0), now))


class EventsView:
    """`cancel` is thrown if the output can't be written."""

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
        self._figures = Figures()
        self._notes = ShownNotes()
        self._shown: RunStatus | None = None
        self._attempt = 0
        self._failed: set[int] = set()

    @property
    def broken(self) -> OSError | None:
        return self._events.broken or self._words.broken

    def __enter__(self) -> EventsView:
        record = self.record
        if record is not None:
            plan = {
                "id": record.id,
                "script": record.plan.script,
                "env": record.plan.environment,
                "node0": record.node0.name,
                "world_size": record.plan.world_size,
                "hosts": list(record.hosts),
                "ranks": list(record.plan.rank_hosts),
            }
            self._print("plan", plan, record.started or None)
            self._print("start", {"attempt": 0}, record.started or None)
        return self

    def __exit__(self, *_: object) -> None:
        for lines in self._lines.values():
            self._print_lines(lines, lines.prefixed.flush())
        self._words.finish(1.0 if self.cancel.thrown else None)

    def fail(self, failure: str, reason: str, fix: str = "") -> None:
        self._print("failure", failure_fields(failure, reason, fix=fix))

    def watch(self, update: RunUpdate) -> None:
        if isinstance(update, Chunk):
            self._on_chunk(update)
        elif isinstance(update, RunStatus):
            self._on_status(update)
        elif isinstance(update, Note):
            self._on_note(update)
        elif isinstance(update, Notice):
            self._print("note", note_fields("message", update.text, warning=update.warning))
            if update.warning or not self._quiet:
                self._words.write_lines([notice_text(update)])
        elif update.status is not None:
            if update.status != self._shown:
                self._on_status(update.status)
            if not (self._quiet and update.exit_code == 0):
                self._words.write_lines(fit_lines(end_lines(update.status, update.exit_code)))

    def stopping(self) -> None:
        write_to_terminal(STOPPING)

    def not_stopping(self) -> None:
        """Nothing to do: the warning is an event."""

    def abandon(self) -> None:
        """Nothing to do: complete lines are written at once."""

    def finish(self, exit_code: int, status: RunStatus | None, reason: str = "", fix: str = "") -> None:
        if reason:
            self.fail("not-followed", reason, fix)
        seconds = time.monotonic() - self._began
        self._print(
            "end", summary_fields(None if self.record is None else self.record.plan, status, exit_code, seconds)
        )
        self._events.finish(1.0 if self.cancel.thrown else None)

    def _on_chunk(self, chunk: Chunk) -> None:
        if chunk.rank not in self._ranks:
            return
        key = chunk.rank, chunk.stream
        lines = self._lines.get(key)
        if lines is None:
            lines = self._lines[key] = _RankLines(chunk.rank, self._host(chunk.rank), chunk.stream)
        lines.at = chunk.at
        self._print_lines(lines, lines.prefixed.feed(chunk.data))

    def _print_lines(self, lines: _RankLines, complete: bytes) -> None:
        if not complete:
            return
        texts = complete[:-1].decode(errors="replace").split("\n")
        self._write(lines.events(texts))
        lines.newest.extend(texts[-_READ_FOR_FIGURES:])

    def _on_note(self, note: Note) -> None:
        if (text := self._notes.text_of(note)) is None:
            return
        place: dict[str, Any] = {"rank": note.rank, "host": self._host(note.rank), "stream": note.stream}
        is_warning = note.kind in ("gap", "group", "not-started", "changed-orders")
        self._print("note", note_fields(note.kind, text, warning=is_warning, details=note.fields, **place), note.at)
        self._words.write_lines([text])
        attempt = note.fields.get("attempt")
        if note.kind == "restart" and isinstance(attempt, int):
            self._on_restart(attempt, note.at)

    def _read_figures(self) -> None:
        for lines in self._lines.values():
            for text in lines.newest:
                self._figures.read_line(lines.rank, strip_colors(text))
            lines.newest.clear()
            if bar := lines.prefixed.unfinished.decode(errors="replace"):
                self._figures.read_line(lines.rank, strip_colors(bar), unfinished=True)

    def _on_status(self, status: RunStatus) -> None:
        self._shown = status
        self._read_figures()
        for attempt in status.attempts:
            if attempt.first_failure is None and attempt.reason:  # a job that began again
                continue
            self._on_failure(attempt.attempt, attempt.first_failure, attempt.reason, attempt.ended)
        if status.attempt > self._attempt and (status.state == "running" or status.is_over):
            self._on_restart(status.attempt)
        ranks = [
            {
                "rank": rank.rank,
                "state": rank.state,
                "cpu_percent": rank.figures.cpu,
                "rss_bytes": rank.figures.rss,
                "stdout_lines": rank.figures.out_lines,
                "stderr_lines": rank.figures.err_lines,
            }
            for rank in status.ranks
        ]
        step, steps = self._figures.step or (None, None)
        epoch, epochs = self._figures.epoch or (None, None)
        fields = {
            "state": status.state,
            "attempt": status.attempt,
            "hosts": list(status.hosts),
            "ranks": ranks,
            "loss": self._figures.loss,
            "step": step,
            "steps": steps,
            "epoch": epoch and float(epoch),
            "epochs": epochs and float(epochs),
            "speed": self._figures.speed or None,
            "throughput": status.throughput and status.throughput._asdict(),
            "group": status.group and status.group._asdict(),
        }
        self._print("figures", _finite(fields))
        first = status.first_failure
        if first is not None or status.state in ("failed", "lost"):
            self._on_failure(status.attempt, first, status.reason, first.at if first is not None else status.ended)

    def _on_restart(self, attempt: int, at: float | None = None) -> None:
        if attempt > self._attempt:
            self._attempt = attempt
            self._print("start", {"attempt": attempt}, at)

    def _on_failure(self, attempt: int, first: Failure | None, reason: str, at: float | None) -> None:
        if attempt not in self._failed:
            self._failed.add(attempt)
            failure = (first.kind if first is not None else "") or "lost"
            self._print("failure", failure_fields(failure, reason, first=first, attempt=attempt), at)

    def _host(self, rank: int) -> str:
        if self._shown is not None and self._shown.has_moved:
            return next((row.host for row in self._shown.ranks if row.rank == rank), "")
        hosts: Sequence[str] = self.record.plan.rank_hosts if self.record is not None else ()
        return hosts[rank] if rank < len(hosts) else ""

    def _print(self, kind: str, fields: Mapping[str, Any], at: float | None = None) -> None:
        self._write(event_text(kind, fields, time.time() if at is None else at))

    def _write(self, text: str) -> None:
        self._events.write(text.encode())


class _RankLines:
    """Lines of one rank's stream. The fields that all its events share are encoded once."""

    def __init__(self, rank: int, host: str, stream: StreamName) -> None:
        self.rank = rank
        self.prefixed = PrefixedLines(b"")
        self.at: float | None = None
        self.newest: deque[str] = deque(maxlen=_READ_FOR_FIGURES)
        self._head = f'{{"schema": "{SCHEMA}", "kind": "line", "time": '
        self._fields = f', "rank": {rank}, "host": {_ENCODE(host)}, "stream": "{stream}", "text": '

    def events(self, texts: Sequence[str]) -> str:
        begin = self._head + _ENCODE(_finite_number(self.at)) + self._fields
        return "".join([f"{begin}{_ENCODE(text)}}}\n" for text in texts])


def _finite(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Replace NaN and Infinity, which JSON lacks, by null; a loss may be one."""
    return {name: _finite_number(value) if isinstance(value, float) else value for name, value in fields.items()}


def _finite_number(value: float | None) -> float | None:
    return value if value is None or value - value == 0 else None
