"""Notes: lines that ipexctl puts into a rank's output, and the file `output.notes`, which says where they are.

A note is a line in the rank's file, so that a reader of the file sees a restart where it happened. Only its entry in
`output.notes` makes it a note, never its text: whatever a script prints stays the script's line. An entry is the JSON
of a note's frame: rank, stream, offset, line, kind and the kind's fields. It is written before its line, and withdrawn
if there was no room for the line; a follower reads the entries after it has seen a file's length. If a full disk
refuses an entry, it is written later, and until then the line looks like the rank's own. The kinds:

restart      attempt, restarts, reason    begins the next attempt: in all files with output, and in rank 0's stderr
checkpoint   text                         what an exchange of checkpoints does, in rank 0's stderr
job-limit    job, seconds                 the job's time limit is near, in rank 0's stderr
gap          bytes, host                  output is missing: the host's disk had no room
not-started  host, reason                 the command could not be started, in its rank's stderr
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
    "job-limit": "Slurm job {job} ends in {seconds} s: ranks that handle SIGUSR1, else SIGTERM, have got that signal",
    "gap": "{bytes} bytes are missing here: there was no room for them on {host}",
    "not-started": "{host}: {reason}",
}
_LINES = {
    "restart": RESTART_MARK + "{attempt} of {restarts} after: {reason}]",
    "not-started": "ipexctl: {host}: {reason}",
}


def note_line(kind: str, fields: Json) -> bytes:
    template = _LINES.get(kind) or "[ipexctl: " + _SENTENCES[kind] + "]"
    return template.format(**fields).encode(errors="replace") + b"\n"


def note_sentence(note: Note) -> str:
    """The note's text without a mark; for an unknown kind or fields, as of a newer version, its line."""
    try:
        return _SENTENCES[note.kind].format(**note.fields)
    except (KeyError, IndexError, AttributeError, ValueError):
        return note.data.decode(errors="replace").rstrip("\n")


class NotesWriter:
    """Appends entries. `withdraw` takes back the last one."""

    def __init__(self, path: str) -> None:
        self._number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._before = 0
        self._refused: list[bytes] = []

    def add(self, note: Note) -> None:
        self._refused.append(encode_note(note)[HEAD.size :] + b"\n")
        self.write_refused()

    def write_refused(self) -> None:
        with contextlib.suppress(OSError):
            while self._refused:
                self._before = os.fstat(self._number).st_size
                entry = self._refused[0]
                if os.write(self._number, entry) != len(entry):
                    os.ftruncate(self._number, self._before)
                    return
                self._refused.pop(0)

    def withdraw(self) -> None:
        if self._refused:
            self._refused.pop()
        else:
            with contextlib.suppress(OSError):
                os.ftruncate(self._number, self._before)

    def close(self) -> None:
        self.write_refused()
        with contextlib.suppress(OSError):  # NFS may report only here that the disk is full
            os.close(self._number)


class NotesReader:
    """Knows the notes of a run; `refresh` reads entries added since."""

    def __init__(self, path: str) -> None:
        self._number = -1
        self._offset = 0
        self._notes: dict[tuple[int, StreamName], list[Note]] = {}
        with contextlib.suppress(OSError):
            self._number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def refresh(self) -> None:
        while self._number >= 0:
            data = os.pread(self._number, READ_SIZE, self._offset)
            whole = data[: data.rfind(b"\n") + 1]
            if not whole:
                return
            self._offset += len(whole)
            for entry in whole.splitlines():
                with contextlib.suppress(FrameError):
                    note = decode_note(entry)
                    notes = self._notes.setdefault((note.rank, note.stream), [])
                    notes.append(note)
                    notes.sort(key=_offset_of)  # an entry that was refused at first comes late

    def find_next(self, rank: int, stream: StreamName, offset: int) -> Note | None:
        notes = self._notes.get((rank, stream))
        while notes and notes[0].offset < offset:
            notes.pop(0)
        return notes[0] if notes else None

    def end_of_last(self, rank: int, stream: StreamName, kind: str) -> int:
        """End of the last note of that kind in a file; 0 without one."""
        return max((note.end for note in self._notes.get((rank, stream), ()) if note.kind == kind), default=0)


def _offset_of(note: Note) -> int:
    return note.offset
