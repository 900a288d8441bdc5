"""Plain output of a run for pipes, logs and dumb terminals: `[RANK] line`, or one JSON document for `logs --json`.

Messages and notes of ipexctl go to stderr without a prefix, so no line of a script can be taken for one.
"""

from __future__ import annotations

import json
import os
import re
import sys
from datetime import datetime
from typing import Final, Protocol

from ipexctl.errors import UserError
from ipexctl.homes.registry import RunRecord
from ipexctl.node.common.frames import Chunk, Note, StreamName
from ipexctl.node.common.records import RunStatus
from ipexctl.node.run.record.output_notes import note_sentence
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.outcome import Notice
from ipexctl.run.follow_run import RunEnded, RunUpdate
from ipexctl.run.ranks import EVERY_RANK, RankSet
from ipexctl.ui.message_output import STOPPING, fit_lines, notice_text, print_message, write_to_terminal
from ipexctl.ui.run.end_of_run import end_lines
from ipexctl.ui.safe_output import OutputPipes, PrefixedLines

_OF_TORCH: Final = rb"(?:\[rank\d+\]:(?: |$))?"
"""What torch.distributed puts before the lines of a traceback."""
_BEGIN: Final = (
    rb"^(?:%b\n%b(?:During handling of|The above exception was) .*\n%b\n)?%bTraceback \(most recent call last\):\n"
    % ((_OF_TORCH,) * 4)
) + rb"(?:%b[ \t].*\n)*" % _OF_TORCH
_COMPLETE: Final = re.compile(_BEGIN + _OF_TORCH + rb"(?P<last>\S.*)\n", re.MULTILINE)
"""A traceback with its exception."""
_UNFINISHED: Final = re.compile(_BEGIN + rb"\Z", re.MULTILINE)
"""The beginning of a traceback whose exception has not come yet."""
_MOST: Final = 1 << 20
"""Bytes of a traceback that wait for its exception."""


class RunView(Protocol):
    """Shows a run that `commands/watch.py` follows.

    Updates come from one thread, notices from any. A view may block `watch`, as a blocked reader does; the follower
    then waits, but never the run.
    """

    @property
    def figures_interval(self) -> float:
        """Seconds between updates in which only rank figures differ."""

    @property
    def drops_output(self) -> bool:
        """True if unread output is dropped once the call is cancelled."""

    @property
    def broken(self) -> OSError | None:
        """Why the output can't be written any more, as with `| head`."""

    def __enter__(self) -> object: ...

    def __exit__(self, kind: object, *rest: object) -> None: ...

    def watch(self, update: RunUpdate) -> None:
        """Show an update."""

    def stopping(self) -> None:
        """Show that the first signal stops the run. Called in a signal handler."""

    def not_stopping(self) -> None:
        """Show that the run could not be stopped, and goes on."""

    def abandon(self) -> None:
        """Get ready for the second signal, which ends the process at once. Called in a signal handler."""

    def finish(self, exit_code: int, status: RunStatus | None, reason: str = "", fix: str = "") -> None:
        """Show the end of the call.

        `status`: the final one; None if it is not known. `reason`: why the run was not followed to its end; empty if it
        was.
        """


_OF_THE_RUN: Final = ("restart", "checkpoint", "group", "job-limit", "changed-orders")
"""Kinds of notes that are in the output of every rank."""


class NoteFilter:
    """Shows each note once: a restart is in the output of every rank."""

    def __init__(self) -> None:
        self._shown: set[tuple[str, str]] = set()

    def text_of(self, note: Note) -> str | None:
        """Return the text of the note; None if it was shown for another rank."""
        text = note_sentence(note)
        if note.kind not in _OF_THE_RUN:
            return f"rank {note.rank}, {note.stream}: {text}"
        key = note.kind, text
        if key in self._shown:
            return None
        self._shown.add(key)
        return text


def wants_live(*, plain: bool) -> bool:
    """True if stdout is a capable terminal, and --plain is not given."""
    return sys.stdout.isatty() and not plain and os.environ.get("TERM", "dumb") not in {"", "dumb"}


def check_terminal() -> None:
    """Refuse --live if stdout is no terminal."""
    if not sys.stdout.isatty():
        raise UserError("--live needs a terminal, and stdout is not one", fix="remove --live, or use --plain")


def format_time(at: float | None) -> str:
    """Return `2026-11-21T12:46:23.123+01:00`, in the zone of the control machine; `-` if the time is unknown."""
    if at is None:
        return "-"
    try:
        return datetime.fromtimestamp(at).astimezone().isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return "-"


class PlainRun(OutputPipes):
    """The plain view of a run.

    A blocked reader of stdout blocks `watch`, and so the follower, but never the run. After `cancel` is thrown, output
    that does not fit is dropped. If an output cannot be written, `cancel` is thrown and `broken` is the error. `folds`:
    show a traceback that several ranks print only once.
    """

    figures_interval: Final = 10.0
    drops_output: Final = True

    def __init__(
        self,
        cancel: Cancel,
        *,
        ranks: RankSet = EVERY_RANK,
        quiet: bool = False,
        timestamps: bool = False,
        folds: bool = False,
    ) -> None:
        super().__init__(cancel)
        self._ranks = ranks
        self._quiet = quiet
        self._timestamps = timestamps
        self.lines: dict[tuple[int, StreamName], PrefixedLines] = {}
        """(rank, stream) → its lines; empty if neither output nor a note of a shown rank came."""
        self._notes = NoteFilter()
        self._tracebacks = Tracebacks() if folds else None

    def __enter__(self) -> PlainRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stopping(self) -> None:
        """Say on stderr that the run is being stopped."""
        write_to_terminal(STOPPING)

    def not_stopping(self) -> None:
        """Do nothing: the lines go on."""

    def abandon(self) -> None:
        """Do nothing: the terminal is as it was."""

    def finish(self, exit_code: int, status: RunStatus | None, reason: str = "", fix: str = "") -> None:
        """Do nothing: everything is printed."""

    def watch(self, event: RunUpdate) -> None:
        """Print an update."""
        if isinstance(event, Chunk):
            if event.rank in self._ranks:
                key = event.rank, event.stream
                if key not in self.lines:
                    self.lines[key] = PrefixedLines(self._prefix(*key))
                lines = self.lines[key]
                if self._timestamps and event.data:
                    lines.prefix = self._prefix(*key) + f"{format_time(event.at)} ".encode()
                self._write_lines(*key, lines.feed(event.data))
        elif isinstance(event, Note):
            self._on_note(event)
        elif isinstance(event, Notice):
            if event.warning or not self._quiet:
                self.print(notice_text(event))
        elif isinstance(event, RunEnded):
            self._flush()
            if event.status is not None and not (self._quiet and event.exit_code == 0):
                self.print(*fit_lines(end_lines(event.status, event.exit_code)))

    def _on_note(self, note: Note) -> None:
        """Print a note of node0."""
        if note.rank in self._ranks:
            self.lines.setdefault((note.rank, note.stream), PrefixedLines(self._prefix(note.rank, note.stream)))
            if text := self._notes.text_of(note):
                self.print(text)

    def close(self) -> None:
        """Print unfinished lines and wait until everything is written; only briefly after a cancellation."""
        self._flush()
        super().close()

    def _flush(self) -> None:
        """Print unfinished lines."""
        for key, lines in sorted(self.lines.items()):
            self._write_lines(*key, lines.flush(), is_over=True)

    def _write_lines(self, rank: int, stream: StreamName, lines: bytes, *, is_over: bool = False) -> None:
        """Print complete lines. `is_over`: True if no more lines follow, so no traceback waits for its exception."""
        if self._tracebacks is not None and stream == "stderr":
            lines = self._tracebacks.feed(rank, self.lines[rank, stream].prefix, lines, is_over=is_over)
        self.write(stream, lines)

    def _prefix(self, rank: int, stream: StreamName) -> bytes:
        """Return what is put in front of a rank's line."""
        return self.prefix(stream, f"[{rank}]")


class JsonLog(OutputPipes):
    """The document of `logs --json`, written while lines arrive. `reason` says why lines may be missing."""

    def __init__(self, record: RunRecord, cancel: Cancel) -> None:
        super().__init__(cancel)
        self.reason = ""
        self._hosts = record.plan.rank_hosts
        self.lines: dict[tuple[int, StreamName], tuple[PrefixedLines, float | None]] = {}
        self._separator = "\n    "
        self._write(f'{{\n  "schema": "ipexctl.logs/1",\n  "id": {json.dumps(record.id)},\n  "lines": [')

    def __enter__(self) -> JsonLog:
        return self

    def __exit__(self, *_: object) -> None:
        for (rank, stream), (lines, at) in sorted(self.lines.items(), key=lambda item: item[0]):
            self._write_lines(rank, stream, at, lines.flush())
        self._write(f'\n  ],\n  "reason": {json.dumps(self.reason)}\n}}\n')
        self.close()

    def watch(self, event: RunUpdate) -> None:
        """Write the lines that an update completes."""
        if isinstance(event, Note):
            self.lines.setdefault((event.rank, event.stream), (PrefixedLines(b""), event.at))
            self._write_lines(event.rank, event.stream, event.at, event.data, note=event.kind)
        elif isinstance(event, Chunk):
            lines, _ = self.lines.get((event.rank, event.stream)) or (PrefixedLines(b""), None)
            self.lines[event.rank, event.stream] = lines, event.at
            self._write_lines(event.rank, event.stream, event.at, lines.feed(event.data))
        elif isinstance(event, Notice):
            print_message(event.text)

    def _write_lines(
        self, rank: int, stream: StreamName, at: float | None, lines: bytes, *, note: str | None = None
    ) -> None:
        """Write lines. `note`: kind of the note that they are; None for output."""
        host = self._hosts[rank] if rank < len(self._hosts) else ""
        for line in lines.removesuffix(b"\n").split(b"\n") if lines else ():
            text = line.decode(errors="replace")
            document = {"rank": rank, "host": host, "stream": stream, "at": at, "text": text}
            if note is not None:
                document["note"] = note
            self._write(self._separator + json.dumps(document))
            self._separator = ",\n    "

    def _write(self, text: str) -> None:
        self.write("stdout", text.encode())


class Tracebacks:
    """Folds a traceback that another rank has already printed into one line.

    The record of the run keeps the lines of each rank.
    """

    def __init__(self) -> None:
        self._first: dict[bytes, int] = {}
        self._held: dict[int, bytes] = {}

    def feed(self, rank: int, prefix: bytes, lines: bytes, *, is_over: bool) -> bytes:
        """Return what to show of complete lines, each behind `prefix`.

        The lines of a traceback wait for its exception.
        """
        text = self._held.pop(rank, b"") + (b"\n" + lines).replace(b"\n" + prefix, b"\n")[1:]
        text = _COMPLETE.sub(lambda match: self._fold(rank, match), text)
        if not is_over and len(text) < _MOST and (unfinished := _UNFINISHED.search(text)):
            self._held[rank] = unfinished[0]
            text = text[: unfinished.start()]
        return re.sub(rb"(?m)^(?!\Z)", lambda _: prefix, text)

    def _fold(self, rank: int, traceback: re.Match[bytes]) -> bytes:
        """Return the traceback, or the line that names the rank which has printed the same."""
        if len(self._first) > 100:
            self._first.clear()
        text = re.sub(rb"(?m)^" + _OF_TORCH, b"", traceback[0])
        first = self._first.setdefault(text[text.index(b"Traceback") :], rank)
        return traceback[0] if first == rank else b"the same traceback as rank %d: %b\n" % (first, traceback["last"])
