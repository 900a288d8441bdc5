"""Receive what `files.file_sender` sends: the list of entries, then the bytes of requested files.

- The host is not trusted: all its events are checked, and their order, too. The whole list is checked before anything
  is written (`requested.py`).
- This machine asks only for what it lacks, so a transfer resumes where it ended.
- DEST is opened once the list is complete: only then it is known whether DEST is a directory or a single file.
- Files are checked by their CRC. A file that changed on the host meanwhile is a failure of that file alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from ipexctl.files.destination import Destination, MissingPart, is_disk_full
from ipexctl.files.requested import FileFailure, RequestedPath, read_entry, update_entry
from ipexctl.hosts.host import quote
from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.fix import join_fixes
from ipexctl.node.files.file_sender import PART_FIELDS
from ipexctl.node.files.file_stream import FilePart, WantedFile
from ipexctl.node.files.manifest import ManifestEntry
from ipexctl.remote.outcome import HostError
from ipexctl.remote.reply import EventLimits, RawReader, Reply
from ipexctl.remote.session import StdinQueue

LIMITS: Final = EventLimits(1 << 20, 256 << 20, "list of files", "fetch a part of it", events_only=True)
"""A line is a name and a few numbers; the list may have over a million entries."""
_LARGEST_PART: Final = 1 << 24
"""Bytes of a part of a file that may follow one event."""
_APART: Final = "fetch it alone into another directory"


class Receiver:
    """One answer of a host, and what came of it here.

    `open_destination` gets whether the answer is a single file, and returns the destination and the name that the file
    gets there; None for its own name. `on_bytes` is called with the bytes received and the bytes to receive.
    """

    def __init__(
        self,
        requested: RequestedPath,
        stdin: StdinQueue,
        open_destination: Callable[[bool], tuple[Destination, str | None]],
        on_bytes: Callable[[int, int], None],
    ) -> None:
        self.source = ""
        """Path on the host, as it says; empty before its list is complete."""
        self.brought: list[str] = []
        """Paths of files and symlinks that were written."""
        self.resumed: dict[str, int] = {}
        """Path of a file → its bytes that had arrived before."""
        self.failed: list[FileFailure] = []
        self.left_out: list[FileFailure] = []
        """Entries that are not fetched at all, such as a symlink that leads out of the requested directory."""
        self.older: list[str] = []
        """Paths of files that are older than the run."""
        self.unchanged: list[str] = []
        """Paths of files and symlinks that were here already."""
        self.size = 0
        """Bytes of the files in `brought`."""
        self.received = 0
        """Bytes that were transferred."""
        self.destination: Destination | None = None
        """None before the list is complete, and if the host has nothing."""
        self.stdin, self._requested = stdin, requested
        self._open_destination, self._on_bytes = open_destination, on_bytes
        self._entries: list[ManifestEntry] = []
        self._missing: dict[int, MissingPart] = {}
        """Number of an entry → what is requested of it, until it is received."""
        self._current: tuple[int, ManifestEntry] | None = None
        """Number in the list of the file being received, and the file as it was when opened."""
        self._at = 0
        """Bytes of the current file that are here."""
        self._is_skipped = False
        """True if the current file can't be written here; its bytes come all the same."""
        self._total = 0
        """Bytes to receive."""

    @property
    def unsent(self) -> list[str]:
        """Return the paths of files that were requested and did not come."""
        return [missing.entry.path for missing in self._missing.values()]

    def on_event(self, event: Reply) -> RawReader | None:
        """Handle an event of the host; return a reader if bytes follow. Raises a HostError if it is out of order."""
        kind, is_listed = event.get("event"), self.destination is not None
        if kind == "working":
            return None
        if kind == "entries" and not is_listed:
            self._entries += map(read_entry, rows_of(event))
        elif kind == "note" and not is_listed:
            notes = self.left_out if event.get("warning") else self.failed
            notes.append(FileFailure(str(event.get("n")), str(event.get("reason"))))
        elif kind == "listed" and not is_listed:
            self._on_listed(event)
        elif kind == "parts" and is_listed:
            return self._on_parts(event)
        elif kind == "lost" and (missing := self._missing.pop(event.integer("i"), None)) is not None:
            self.failed.append(FileFailure(missing.entry.path, str(event.get("reason"))))
        else:
            raise event.error("an event out of order")
        return None

    def _on_listed(self, event: Reply) -> None:
        """Check the complete list, make directories and symlinks, and ask the host for what is missing.

        An entry that can't be written here fails alone. Raises a HostError if the list is not acceptable, or if the
        disk has too little room.
        """
        self.source, older = event.text("from"), set(event.integers("older"))
        if event.get("missing"):  # nothing is written, and no directory is made
            if self._entries:
                raise event.error("an event out of order")
            self.stdin.end()
            return
        accepted = self._requested.accept(self._entries, single=event.flag("single"))
        entries = dict(accepted.entries)
        self.left_out += accepted.left_out
        self.destination, name = self._open_destination(accepted.single)
        if name is not None:
            entries = {0: entries[0]._replace(path=name)}  # the requested file, under another name
        self.older = [entry.path for number, entry in entries.items() if number in older]
        equal = self.destination.find_equal({number: entry.path for number, entry in entries.items()})
        for number, entry in entries.items():
            try:
                if number in equal:
                    raise AgentError(f"it has the name of {quote(equal[number])} on this file system; {_APART}")
                missing = self.destination.inspect(entry)
            except (AgentError, OSError) as error:
                self._fail(entry, error)
                continue
            if missing is None and entry.kind != "d":
                self.unchanged.append(entry.path)
            elif missing is not None and entry.kind == "l":
                self.brought.append(entry.path)
            elif missing is not None:
                self._missing[number] = missing
        self._total = sum(missing.entry.size - missing.have for missing in self._missing.values())
        self.destination.check_room(self._total)
        wanted = [WantedFile(number, missing.have, missing.known) for number, missing in self._missing.items()]
        if wanted:
            self.stdin.send(json.dumps({"wants": wanted}).encode() + b"\n")
        self.stdin.end()

    def _fail(self, entry: ManifestEntry, error: AgentError | OSError) -> None:
        """Add a failure of one entry; raise a HostError on a full disk, which concerns all."""
        assert self.destination is not None
        if isinstance(error, AgentError):
            reason: str = join_fixes((error.reason, error.fix))
        elif is_disk_full(error):  # no other file could be written either
            raise self.destination.error_of_disk(error)
        else:
            here = self.destination.path_of(entry.path)
            reason = f"{here} on this machine can't be written: {error.strerror or error}; name another DEST"
        self.failed.append(FileFailure(entry.path, reason))

    def _on_parts(self, event: Reply) -> RawReader:
        """Return a reader for the bytes of all parts that an event names, one after the other."""
        rows = iter(rows_of(event))

        def begin_part() -> RawReader | None:
            if (row := next(rows, None)) is None:
                return None
            if not isinstance(row, list) or len(row) != len(PART_FIELDS):
                raise event.error("an event out of order")
            return self._on_part(Reply(zip(PART_FIELDS, row, strict=True)))

        reader = begin_part()

        def receive_parts(data: memoryview) -> int | None:
            nonlocal reader
            at = 0
            while reader is not None:
                used = reader(data[at:])
                if used is None:
                    return None
                at += used
                reader = begin_part()
            return at

        return receive_parts

    def _on_part(self, event: Reply) -> RawReader:
        """Return a reader for the bytes of one part. The first part of a file opens it, the last one finishes it."""
        try:
            part_of_file = FilePart.of(event)
        except AgentError as error:
            raise event.error(error.reason) from None
        left = part_of_file.length
        if self._current is None:
            self._begin(event, part_of_file)
        else:
            number, entry = self._current
            continues = (part_of_file.size, part_of_file.offset) == (entry.size, self._at)
            if number != event.integer("i") or not continues:
                raise event.error("an event out of order")
        if left > _LARGEST_PART:
            raise event.error("an event out of order")

        def receive_part(data: memoryview) -> int | None:
            nonlocal left
            assert self.destination is not None
            own_bytes = data[:left]
            if not self._is_skipped:
                self.destination.write(own_bytes)
            left -= len(own_bytes)
            self._at += len(own_bytes)
            self.received += len(own_bytes)
            if not left and event["crc"] is not None:
                self._finish(event)
            is_last_of_data = len(own_bytes) == len(data) or self.received == self._total
            if own_bytes and is_last_of_data:  # not for each of many small files
                self._on_bytes(self.received, max(self._total, self.received))
            return None if left else len(own_bytes)

        return receive_part

    def _begin(self, event: Reply, first_part: FilePart) -> None:
        """Open a requested file for its first part. If it can't be written here, its bytes are skipped."""
        number = event.integer("i")
        missing = self._missing.pop(number, None)
        if missing is None:
            raise HostError("it sends a file that was not requested")
        entry = update_entry(missing.entry, event)
        assert self.destination is not None
        self._total += missing.have - first_part.offset
        self._current, self._at, self._is_skipped = (number, entry), first_part.offset, False
        try:
            same = entry is missing.entry
            self.destination.begin(missing if same else replace(missing, entry=entry), first_part.offset)
        except (AgentError, OSError) as error:
            self._is_skipped = True
            self._fail(entry, error)
        if first_part.offset:
            self.resumed[entry.path] = first_part.offset

    def _finish(self, event: Reply) -> None:
        """Check the current file and give it its name, after its last part."""
        assert self.destination is not None
        assert self._current is not None
        (_, entry), self._current = self._current, None
        if self._is_skipped:
            return
        may_grow = self._requested.may_grow(entry)
        try:
            self.destination.finish(event["crc"], changed=bool(event["changed"]), may_grow=may_grow)
        except (AgentError, OSError) as error:
            self._fail(entry, error)
            return
        self.brought.append(entry.path)
        self.size += entry.size


def rows_of(event: Reply) -> list[object]:
    """Return the rows of an event. Raises a HostError if it has none."""
    rows = event.get("rows")
    if not isinstance(rows, list) or not rows:
        raise event.error("an event out of order")
    return rows
