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
        self.last: dict[str, Any] | None = None
        self.destination: Destination | None = None
        self.stdin, self._requested = stdin, requested
        self._open_destination, self._on_bytes = open_destination, on_bytes
        self._entries: list[FetchEntry] = []
        self._missing: dict[int, MissingPart] = {}
        self._line = bytearray()
        self._stderr = b""
        self._current: FetchEntry | None = None
        self._small: dict[str, Any] | None = None
        """The message about a small file, whose bytes follow it."""
        self._chunk_left = -1
        """Remaining bytes of a chunk; negative between chunks."""
        self._listed_bytes = 0
        self._done = 0
        self._total = 0

    def sink(self, stream: Stream, data: bytes) -> None:
        """Receive stdout; a HostError raised here ends the call."""
        if stream == "stderr":
            self._stderr = (self._stderr + data)[-_STDERR_KEPT:]
            return
        at, done = 0, self._done
        while at < len(data):
            at = self._receive_line(data, at) if self._chunk_left < 0 else self._receive_bytes(data, at)
        if self._done != done:
            self._on_bytes(self._done, max(self._total, self._done))

    @property
    def complaint(self) -> str:
        lines = [line for line in self._stderr.decode(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip() if lines else ""

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
            raise HostError("its answer can't be read", "run it again with -vv")
        if end < 0:
            self._line += data[at:]
            return len(data)
        line = bytes(self._line) + data[at:end]
        self._line.clear()
        try:
            message = json.loads(line.decode())  # for bytes, json looks for the encoding first
            event = message["event"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise HostError("its answer can't be read", "run it again with -vv") from None
        if event in ("entry", "note"):
            self._listed_bytes += len(line)
            if self._listed_bytes > _MOST_BYTES:
                raise HostError(f"its list of files takes more than {_MOST_BYTES >> 20} MB", "fetch a part of it")
        self._on_message(event, message)
        return end + 1

    def _receive_bytes(self, data: bytes, at: int) -> int:
        if self._chunk_left == 0 and self._small is None:
            end = at + 4 - len(self._line)
            self._line += data[at:end]
            if len(self._line) == 4:
                self._chunk_left = int.from_bytes(self._line, "big")
                self._line.clear()
                if self._chunk_left > _PIECE:
                    raise HostError("its answer can't be read", "run it again with -vv")
                self._chunk_left = self._chunk_left or -1
            return end
        chunk = memoryview(data)[at : at + self._chunk_left]
        assert self.destination is not None
        assert self._current is not None
        self.destination.write(chunk)
        self._chunk_left -= len(chunk)
        self.received += len(chunk)
        self._done += len(chunk)
        if self._small is not None and self._chunk_left == 0:
            self._finish_small(self._small)
        return at + len(chunk)

    def _on_message(self, event: object, message: dict[str, Any]) -> None:
        if event == "entry" and self.destination is None:
            self._entries.append(read_entry(message, len(self._entries)))
        elif event == "note":
            notes = self.left_out if message.get("warning") else self.failed
            notes.append(FileFailure(str(message.get("n")), str(message.get("reason"))))
        elif event == "listed" and self.destination is None:
            self._listed(str(message.get("from")), message.get("single") is True, _integer(message, "since"))
        elif event == "file" and self._current is None:
            self._begin(message)
        elif event == "whole" and self._current is not None:
            self._finish(message)
        elif event == "lost" and (missing := self._missing.pop(_integer(message, "i"), None)) is not None:
            self.failed.append(FileFailure(missing.entry.name, str(message.get("reason"))))
        elif event in ("done", "failed"):
            self.last = message
        else:
            raise HostError("its answer can't be read", "run it again with -vv")

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
        self._chunk_left = 0
        if "n" not in message:
            return
        size = _integer(message, "n")
        if not 0 <= size <= _PIECE:
            raise HostError("its answer can't be read", "run it again with -vv")
        self._small, self._chunk_left = message, size
        if size == 0:
            self._finish_small(message)

    def _finish_small(self, message: dict[str, Any]) -> None:
        self._small, self._chunk_left = None, -1
        self._finish(message)

    def _finish(self, message: dict[str, Any]) -> None:
        assert self.destination is not None
        assert self._current is not None
        entry, self._current = self._current, None
        try:
            self.destination.finish(message.get("crc"), changed=bool(message.get("changed")))
        except WriteRefused as error:
            self.failed.append(FileFailure(entry.name, str(error)))
            return
        self.brought.append(entry.name)
        self.size += entry.size


def _integer(message: dict[str, Any], key: str) -> int:
    """A number, or -1 for an invalid one: no valid number is negative."""
    number = message.get(key)
    return number if type(number) is int else -1
