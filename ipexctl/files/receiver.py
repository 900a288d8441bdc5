"""The output of `files.file_sender` as it comes: the list of entries, then the bytes of the requested files.

In come events and raw bytes of one call; out go files in the destination, and what is still unsent when the connection
ends. The destination is opened once it is known whether there is a single file. The control machine chooses from the
list what it lacks and asks for that alone, so a transfer goes on where it ended. A piece is checked by its sum and a
file that has changed meanwhile is said to have. The other end is `node/files/file_sender.py`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ipexctl.files.destination import Destination, MissingPart, WriteRefused
from ipexctl.files.requested import FetchEntry, FileFailure, Requested, read_entry, update_entry
from ipexctl.remote.event_reader import EventLimits
from ipexctl.remote.outcome import HostError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ipexctl.remote.event_reader import RawReader
    from ipexctl.remote.reply import Reply
    from ipexctl.remote.session import StdinQueue

LIMITS: Final = EventLimits(1 << 20, 256 << 20, "list of files", "fetch a part of it", events_only=True)
"""A line is a name and a few numbers; the list may have more than a million entries."""
_PIECE: Final = 1 << 24


class Receiver:
    """The events of one call. `open_destination` is called once it is known whether it is a single file."""

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
        self.destination: Destination | None = None
        self.stdin, self._requested = stdin, requested
        self._open_destination, self._on_bytes = open_destination, on_bytes
        self._entries: list[FetchEntry] = []
        self._missing: dict[int, MissingPart] = {}
        self._current: FetchEntry | None = None
        self._done = 0
        self._total = 0

    @property
    def unsent(self) -> list[str]:
        return [missing.entry.name for missing in self._missing.values()]

    def on_event(self, event: Reply) -> RawReader | None:
        """Receive an event of the host, which may announce bytes; a HostError raised here ends the call."""
        kind, is_listed = event.get("event"), self.destination is not None
        if kind == "entry" and not is_listed:
            self._entries.append(read_entry(event, len(self._entries)))
        elif kind == "note" and not is_listed:
            notes = self.left_out if event.get("warning") else self.failed
            notes.append(FileFailure(str(event.get("n")), str(event.get("reason"))))
        elif kind == "listed" and not is_listed:
            self._on_listed(event)
        elif kind == "piece" and is_listed:
            return self._on_piece(event)
        elif kind == "lost" and (missing := self._missing.pop(event.integer("i"), None)) is not None:
            self.failed.append(FileFailure(missing.entry.name, str(event.get("reason"))))
        else:
            raise event.error("an event out of order")
        return None

    def _on_listed(self, event: Reply) -> None:
        self.source, since = event.text("from"), event.integer("since")
        accepted = self._requested.accept(self._entries, single=event.flag("single"))
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

    def _on_piece(self, event: Reply) -> RawReader:
        """The reader for its bytes."""
        left = event.integer("n")
        if self._current is None:
            self._begin(event)
        elif self._current.index != event.integer("i"):
            raise event.error("an event out of order")
        if not 0 <= left <= _PIECE:
            raise event.error("an event out of order")

        def receive_part(data: memoryview) -> int | None:
            nonlocal left
            assert self.destination is not None
            part = data[:left]
            self.destination.write(part)
            left -= len(part)
            self.received += len(part)
            self._done += len(part)
            if not left and "crc" in event:
                self._finish(event)
            if part and (len(part) == len(data) or self._done == self._total):  # not for each of many small files
                self._on_bytes(self._done, max(self._total, self._done))
            return None if left else len(part)

        return receive_part

    def _begin(self, event: Reply) -> None:
        missing = self._missing.pop(event.integer("i"), None)
        if missing is None:
            raise HostError("it sends a file that was not requested")
        at, entry = event.integer("at"), update_entry(missing.entry, event)
        assert self.destination is not None
        self._total += missing.have - at
        self._current = entry
        self.destination.begin(entry, at, missing)
        if at:
            self.resumed.append(entry.name)

    def _finish(self, event: Reply) -> None:
        """That was the last piece of the file."""
        assert self.destination is not None
        assert self._current is not None
        entry, self._current = self._current, None
        try:
            self.destination.finish(event["crc"], changed=bool(event.get("changed")))
        except WriteRefused as error:
            self.failed.append(FileFailure(entry.name, str(error)))
            return
        self.brought.append(entry.name)
        self.size += entry.size
