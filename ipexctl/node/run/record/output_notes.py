"""Notes: lines that ipexctl writes into a rank's output, and the file `output.notes`, which says where they are.

Only an entry in `output.notes` makes a line a note, never its text, so a script can't print one. An entry is written
before its line, and withdrawn if the disk had no room for the line. If a full disk refuses an entry, it is written
later, and until then the line looks like the rank's own.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from ipexctl.node.common.frames import HEAD, FrameError, Note, StreamName, decode_note, encode_note
from ipexctl.node.common.records import RESTART_MARK

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json

READ_SIZE = 1 << 20
_SENTENCES = {
    "restart": "restart {attempt} of {restarts} after: {reason}",
    "checkpoint": "{text}",
    "group": "{text}",
    "job-limit": "Slurm job {job} ends in {seconds} s: ranks that handle SIGUSR1, or else SIGTERM, were sent it",
    "copy-restart": "this copy ended with exit code {code} and is started again ({restarts} of {most})",
    "copy-failed": "{reason}; the other copies go on",
    "gap": "{bytes} bytes are missing here, because the disk of {host} was full",
    "unrecorded": "{host}: {path} can't be written: {reason}; the run goes on",
    "changed-orders": "{host}: somebody on the network changes what it and node0 send each other; it was not obeyed",
    "not-started": "{host}: {reason}",
}
_LINES = {
    "restart": RESTART_MARK + "{attempt} of {restarts} after: {reason}]",
    "not-started": "ipexctl: {host}: {reason}",
}


def note_line(kind: str, fields: Json) -> bytes:
    """Return a note as the line that goes into the output. `kind` is a key of `_SENTENCES`, `fields` what its text
    needs."""
    template = _LINES.get(kind) or "[ipexctl: " + _SENTENCES[kind] + "]"
    return template.format(**fields).encode(errors="replace") + b"\n"


def note_sentence(note: Note) -> str:
    """Return the note's text without the mark; the complete line if a newer version wrote an unknown kind or field."""
    try:
        return _SENTENCES[note.kind].format(**note.fields)
    except (KeyError, IndexError, AttributeError, ValueError):
        return note.data.decode(errors="replace").rstrip("\n")


class NotesWriter:
    """Appends entries; `undo_last_note` removes the last one."""

    def __init__(self, path: str) -> None:
        self._number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._before = 0
        self._refused: list[bytes] = []

    def add(self, note: Note) -> None:
        """Write the entry of a note. Call it before the note's line is written."""
        self._refused.append(encode_note(note)[HEAD.size :] + b"\n")
        self.write_refused()

    def write_refused(self) -> None:
        """Write the entries that a full disk has refused, in order, as far as there is room now."""
        with contextlib.suppress(OSError):
            while self._refused:
                self._before = os.fstat(self._number).st_size
                entry = self._refused[0]
                if os.write(self._number, entry) != len(entry):
                    os.ftruncate(self._number, self._before)
                    return
                self._refused.pop(0)

    def undo_last_note(self) -> None:
        """Withdraw the entry that was added last, because its line could not be written."""
        if self._refused:
            self._refused.pop()
        else:
            with contextlib.suppress(OSError):
                os.ftruncate(self._number, self._before)

    def close(self) -> None:
        """Write what was refused, if there is room now, and close the file. Entries that are left are lost."""
        self.write_refused()
        with contextlib.suppress(OSError):  # NFS may report only here that the disk is full
            os.close(self._number)


class NotesReader:
    def __init__(self, path: str) -> None:
        self._number = -1
        self._offset = 0
        self._notes: dict[tuple[int, StreamName], list[Note]] = {}
        with contextlib.suppress(OSError):
            self._number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def refresh(self) -> None:
        """Read the entries that were added since the last call. A line that is not complete yet is read later."""
        while self._number >= 0:
            data = os.pread(self._number, READ_SIZE, self._offset)
            complete = data[: data.rfind(b"\n") + 1]
            if not complete:
                return
            self._offset += len(complete)
            for entry in complete.splitlines():
                with contextlib.suppress(FrameError):
                    note = decode_note(entry)
                    notes = self._notes.setdefault((note.rank, note.stream), [])
                    notes.append(note)
                    notes.sort(key=_offset_of)  # an entry that was refused at first may come late

    def find_next(self, rank: int, stream: StreamName, offset: int) -> Note | None:
        """Return the next note of a stream that begins at `offset` or after; None if none is known.

        Earlier notes are forgotten, so offsets must not go back.
        """
        notes = self._notes.get((rank, stream))
        while notes and notes[0].offset < offset:
            notes.pop(0)
        return notes[0] if notes else None

    def end_of_last(self, rank: int, stream: StreamName, kind: str) -> int:
        """Return the offset after a file's last note of that kind; 0 without one."""
        return max((note.end for note in self._notes.get((rank, stream), ()) if note.kind == kind), default=0)


def _offset_of(note: Note) -> int:
    return note.offset
