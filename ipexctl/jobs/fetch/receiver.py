"""Receives the output of `files.file_sender`: the list of entries, then the bytes of the requested files.

The other end is `node/files/file_sender.py`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from ipexctl.jobs.fetch.destination import WriteRefused
from ipexctl.jobs.fetch.manifest import FileFailure, as_it_is_now, read_entry, renamed
from ipexctl.remote.outcome import HostError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ipexctl.jobs.fetch.destination import Destination, Want
    from ipexctl.jobs.fetch.manifest import Entry
    from ipexctl.jobs.fetch.requested import Requested
    from ipexctl.remote.session import Stream
    from ipexctl.remote.stdin_queue import StdinQueue

_LONGEST: Final = 1 << 20
"""Maximum bytes of a line: a name and a few numbers."""
_PIECE: Final = 1 << 24
_STDERR_KEPT: Final = 8192


class Receiver:
    """The output of one call. `land` gives the destination, once it is known whether it is a single file."""

    def __init__(
        self,
        requested: Requested,
        told: StdinQueue,
        land: Callable[[bool], tuple[Destination, str | None]],
        on_bytes: Callable[[str, int, int], None],
    ) -> None:
        self.source = ""
        self.brought: list[str] = []
        self.resumed: list[str] = []
        self.failed: list[FileFailure] = []
        self.left_out: list[FileFailure] = []
        self.unchanged: list[str] = []
        self.size = 0
        self.received = 0
        self.last: dict[str, Any] | None = None
        self.destination: Destination | None = None
        self.told, self._requested, self._land, self._on_bytes = told, requested, land, on_bytes
        self._entries: list[Entry] = []
        self._wants: dict[int, Want] = {}
        self._line = bytearray()
        self._stderr = b""
        self._current: Entry | None = None
        self._piece = -1
        """Remaining bytes of a chunk; negative between chunks."""
        self._here = 0
        self._total = 0

    def sink(self, stream: Stream, data: bytes) -> None:
        """Receive stdout; a HostError raised here ends the call."""
        if stream == "stderr":
            self._stderr = (self._stderr + data)[-_STDERR_KEPT:]
            return
        at = 0
        while at < len(data):
            at = self._in_line(data, at) if self._piece < 0 else self._in_pieces(data, at)

    @property
    def complaint(self) -> str:
        lines = [line for line in self._stderr.decode(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip() if lines else ""

    @property
    def is_waiting(self) -> bool:
        """The host has announced more entries, and not the end of its list."""
        return self.destination is None or bool(self._wants) or self._current is not None

    @property
    def unsent(self) -> list[str]:
        return [want.entry.name for want in self._wants.values()]

    def _in_line(self, data: bytes, at: int) -> int:
        """Receive a line, which may arrive in parts; returns the position after it."""
        end = data.find(b"\n", at)
        if (end if end >= 0 else len(data)) - at + len(self._line) > _LONGEST:
            raise HostError("what it says can't be read")
        if end < 0:
            self._line += data[at:]
            return len(data)
        line = bytes(self._line) + data[at:end]
        self._line.clear()
        try:
            said = json.loads(line)
            event = said["event"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise HostError("what it says can't be read") from None
        self._hear(event, said)
        return end + 1

    def _in_pieces(self, data: bytes, at: int) -> int:
        if self._piece == 0:
            end = at + 4 - len(self._line)
            self._line += data[at:end]
            if len(self._line) == 4:
                self._piece = int.from_bytes(self._line, "big")
                self._line.clear()
                if self._piece > _PIECE:
                    raise HostError("what it says can't be read")
                self._piece = self._piece or -1
            return end
        piece = memoryview(data)[at : at + self._piece]
        assert self.destination is not None
        assert self._current is not None
        self.destination.write(piece)
        self._piece -= len(piece)
        self.received += len(piece)
        self._here += len(piece)
        self._on_bytes(self._current.name, self._here, max(self._total, self._here))
        return at + len(piece)

    def _hear(self, event: object, said: dict[str, Any]) -> None:
        if event == "entry" and self.destination is None:
            self._entries.append(read_entry(said, len(self._entries)))
        elif event == "note":
            notes = self.left_out if said.get("warning") else self.failed
            notes.append(FileFailure(str(said.get("n")), str(said.get("reason"))))
        elif event == "listed" and self.destination is None:
            self._listed(str(said.get("from")), said.get("single") is True)
        elif event == "file" and self._current is None:
            self._begin(said)
        elif event == "whole" and self._current is not None:
            self._finish(said)
        elif event == "lost" and (want := self._wants.pop(_figure(said, "i"), None)) is not None:
            self.failed.append(FileFailure(want.entry.name, str(said.get("reason"))))
        elif event in ("done", "failed"):
            self.last = said
        else:
            raise HostError("what it says can't be read")

    def _listed(self, source: str, single: bool) -> None:
        self.source = source
        accepted = self._requested.accept(self._entries, single=single)
        self._entries = list(accepted.entries)
        self.left_out += accepted.left_out
        self.destination, name = self._land(accepted.single)
        if name is not None:
            self._entries = [renamed(self._entries[0], name)]
        for entry in self._entries:
            try:
                want = self.destination.consider(entry)
            except WriteRefused as error:
                self.failed.append(FileFailure(entry.name, str(error)))
                continue
            if want is not None:
                self._wants[entry.index] = want
            elif entry.kind != "d":
                self.unchanged.append(entry.name)
        self._total = sum(want.entry.size - want.have for want in self._wants.values())
        wants = [[number, want.have, want.known] for number, want in self._wants.items()]
        if wants:
            self.told.send(json.dumps({"wants": wants}).encode() + b"\n")
        self.told.end()

    def _begin(self, said: dict[str, Any]) -> None:
        want = self._wants.pop(_figure(said, "i"), None)
        if want is None:
            raise HostError("it sends a file nobody asked for")
        at, entry = _figure(said, "at"), as_it_is_now(want.entry, said)
        assert self.destination is not None
        self._total += want.have - at
        self._current = entry
        self.destination.begin(entry, at, want)
        if at:
            self.resumed.append(entry.name)
        self._piece = 0

    def _finish(self, said: dict[str, Any]) -> None:
        assert self.destination is not None
        assert self._current is not None
        entry, self._current = self._current, None
        try:
            self.destination.finish(said.get("crc"), changed=bool(said.get("changed")))
        except WriteRefused as error:
            self.failed.append(FileFailure(entry.name, str(error)))
            return
        self.brought.append(entry.name)
        self.size += entry.size


def _figure(said: dict[str, Any], key: str) -> int:
    """A number, or -1 for an invalid one: no valid number is negative."""
    figure = said.get(key)
    return figure if type(figure) is int else -1
