"""Receives the output of `files.file_sender`: the list of entries, then the bytes of the requested files.

The other end is `node/files/file_sender.py`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ipexctl.jobs.fetch.destination import Destination, MissingPart, WriteRefused
from ipexctl.jobs.fetch.manifest import FetchEntry, FileFailure, Requested, read_entry, update_entry
from ipexctl.remote.outcome import HostError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ipexctl.remote.session import StdinQueue, Stream

_LONGEST: Final = 1 << 20
"""Maximum bytes of a line: a name and a few numbers."""
_MOST_BYTES: Final = 256 << 20
"""Bytes of a host's list, with its notes: more than a million entries."""
_PIECE: Final = 1 << 24
_STDERR_KEPT: Final = 8192


class Receiver:
    """The output of one call. `land` gives the destination, once it is known whether it is a single file."""

    def __init__(
        self,
        requested: Requested,
        stdin: StdinQueue,
        open_destination: Callable[[bool], tuple[Destination, str | None]],
        on_bytes: Callable[[int, int], None],
    ) -> None:
        self.source = ""
        self.brought: list[str] = []
        self.resumed: list[str] = []
        self.failed: list[FileFailure] = []
        self.left_out: list[FileFailure] = []
        self.older: list[str] = []
        self.unchanged: list[str] = []
        self.size = 0
        self.received = 0
        self.stderr = b""
        self.last: dict[str, Any] | None = None
        self.destination: Destination | None = None
        self.stdin, self._requested = stdin, requested
        self._open_destination, self._on_bytes = open_destination, on_bytes
        self._entries: list[FetchEntry] = []
        self._missing: dict[int, MissingPart] = {}
        self._line = bytearray()
        self._current: FetchEntry | None = None
        self._piece: dict[str, Any] = {}
        """The message about the piece of the current file whose bytes follow."""
        self._piece_left = 0
        self._listed_bytes = 0
        self._done = 0
        self._total = 0

    def sink(self, stream: Stream, data: bytes) -> None:
        """Receive stdout; a HostError raised here ends the call."""
        if stream == "stderr":
            self.stderr = (self.stderr + data)[-_STDERR_KEPT:]
            return
        at, done = 0, self._done
        while at < len(data):
            at = self._receive_bytes(data, at) if self._piece_left else self._receive_line(data, at)
        if self._done != done:
            self._on_bytes(self._done, max(self._total, self._done))

    @property
    def is_waiting(self) -> bool:
        """The host has announced more entries, and not the end of its list."""
        return self.destination is None or bool(self._missing) or self._current is not None

    @property
    def unsent(self) -> list[str]:
        return [missing.entry.name for missing in self._missing.values()]

    def _receive_line(self, data: bytes, at: int) -> int:
        """Receive a line, which may arrive in parts; returns the position after it."""
        end = data.find(b"\n", at)
        if (end if end >= 0 else len(data)) - at + len(self._line) > _LONGEST:
            raise _unreadable()
        if end < 0:
            self._line += data[at:]
            return len(data)
        line = bytes(self._line) + data[at:end]
        self._line.clear()
        try:
            message = json.loads(line.decode())  # for bytes, json looks for the encoding first
            event = message["event"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise _unreadable() from None
        if event in ("entry", "note"):
            self._listed_bytes += len(line)
            if self._listed_bytes > _MOST_BYTES:
                raise HostError(f"its list of files takes more than {_MOST_BYTES >> 20} MB", "fetch a part of it")
        self._on_message(event, message)
        return end + 1

    def _receive_bytes(self, data: bytes, at: int) -> int:
        piece = memoryview(data)[at : at + self._piece_left]
        assert self.destination is not None
        self.destination.write(piece)
        self._piece_left -= len(piece)
        self.received += len(piece)
        self._done += len(piece)
        if not self._piece_left:
            self._finish_piece()
        return at + len(piece)

    def _on_message(self, event: object, message: dict[str, Any]) -> None:
        if event == "entry" and self.destination is None:
            self._entries.append(read_entry(message, len(self._entries)))
        elif event == "note":
            notes = self.left_out if message.get("warning") else self.failed
            notes.append(FileFailure(str(message.get("n")), str(message.get("reason"))))
        elif event == "listed" and self.destination is None:
            self._listed(str(message.get("from")), message.get("single") is True, _integer(message, "since"))
        elif event == "piece" and (self._current is None or self._current.index == _integer(message, "i")):
            self._on_piece(message)
        elif event == "lost" and (missing := self._missing.pop(_integer(message, "i"), None)) is not None:
            self.failed.append(FileFailure(missing.entry.name, str(message.get("reason"))))
        elif event in ("done", "failed"):
            self.last = message
        else:
            raise _unreadable()

    def _listed(self, source: str, single: bool, since: int) -> None:
        self.source = source
        accepted = self._requested.accept(self._entries, single=single)
        self._entries = list(accepted.entries)
        self.left_out += accepted.left_out
        self.destination, name = self._open_destination(accepted.single)
        if name is not None:
            self._entries = [replace(self._entries[0], parts=(name,))]  # the one requested file, under another name
        if since > 0:
            self.older = [entry.name for entry in self._entries if entry.kind == "f" and entry.mtime < since]
        for entry in self._entries:
            try:
                missing = self.destination.inspect(entry)
            except WriteRefused as error:
                self.failed.append(FileFailure(entry.name, str(error)))
                continue
            if missing is not None:
                self._missing[entry.index] = missing
            elif entry.kind != "d":
                self.unchanged.append(entry.name)
        self._total = sum(missing.entry.size - missing.have for missing in self._missing.values())
        parts = [[number, missing.have, missing.known] for number, missing in self._missing.items()]
        if parts:
            self.stdin.send(json.dumps({"wants": parts}).encode() + b"\n")
        self.stdin.end()

    def _on_piece(self, message: dict[str, Any]) -> None:
        if self._current is None:
            self._begin(message)
        self._piece, self._piece_left = message, _integer(message, "n")
        if not 0 <= self._piece_left <= _PIECE:
            raise _unreadable()
        if not self._piece_left:
            self._finish_piece()

    def _begin(self, message: dict[str, Any]) -> None:
        missing = self._missing.pop(_integer(message, "i"), None)
        if missing is None:
            raise HostError("it sends a file that was not requested")
        at, entry = _integer(message, "at"), update_entry(missing.entry, message)
        assert self.destination is not None
        self._total += missing.have - at
        self._current = entry
        self.destination.begin(entry, at, missing)
        if at:
            self.resumed.append(entry.name)

    def _finish_piece(self) -> None:
        """The file is complete if this was its last piece."""
        if "crc" not in self._piece:
            return
        assert self.destination is not None
        assert self._current is not None
        entry, self._current = self._current, None
        try:
            self.destination.finish(self._piece["crc"], changed=bool(self._piece.get("changed")))
        except WriteRefused as error:
            self.failed.append(FileFailure(entry.name, str(error)))
            return
        self.brought.append(entry.name)
        self.size += entry.size


def _unreadable() -> HostError:
    return HostError("its answer can't be read", "run it again with -vv")


def _integer(message: dict[str, Any], key: str) -> int:
    """A number, or -1 for an invalid one: no valid number is negative."""
    number = message.get(key)
    return number if type(number) is int else -1
