"""Copy a run to the control machine while it is followed, because node0 may later be gone or prune the run.

The files are the same as on node0 (`ranks/NNNN.out`, `output.times`, `status.json` …), so `logs`, `why` and `ps` can
read the copy instead. A copy is complete once it has a final status. Every byte is written at its own offset, so two
followers write the same content. If a copy can't be written, the follower continues without it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ipexctl.node.common.files import (
    disk_usage,
    format_size,
    make_private_directory,
    read_json,
    write_atomically,
    write_json_atomically,
)
from ipexctl.node.common.frames import SUFFIXES, Note, OutputPart, WindowsFile
from ipexctl.node.common.plan import PLAN_FILE
from ipexctl.node.common.records import FINAL, RunStatus, read_status
from ipexctl.node.run.record.output_notes import NotesWriter
from ipexctl.node.run.record.output_times import TimesWriter
from ipexctl.node.run.record.stack_dumps import dump_path

_STATUS_INTERVAL: Final = 5.0
_MAX_OPEN_FILES: Final = 256
MOST_COPIED: Final = 1 << 30


class LocalCopy:
    """Writes a copy. After the first error, which is in `error`, it writes no more."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.error: OSError | None = None
        self._open: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._times: TimesWriter | None = None
        self._notes: NotesWriter | None = None
        self._state = ""
        self._status_at = 0.0

    def write(self, chunk: OutputPart) -> None:
        """Write a piece of output. The pieces of each stream come in order, from its beginning."""
        if self.error is not None:
            return
        name = f"{chunk.rank:04}.{SUFFIXES[chunk.stream]}"
        data, offset = chunk.data, chunk.offset
        try:
            number = self._file(name)
            if offset > self._sizes[name]:
                raise OSError(0, f"{name} has become shorter")
            is_new = chunk.end > self._sizes[name]
            if is_new and isinstance(chunk, Note):
                self._write_note(chunk)
            if sum(self._sizes.values()) > MOST_COPIED:
                raise OSError(0, f"more than {format_size(MOST_COPIED)} of output are not kept here")
            while data and offset + len(data) > self._sizes[name]:
                written = os.pwrite(number, data, offset)
                offset, data = offset + written, data[written:]
                self._sizes[name] = max(self._sizes[name], offset)
            if is_new and chunk.at is not None:
                self._write_time(chunk, chunk.at)
        except OSError as error:
            self._give_up(error)

    def _write_note(self, note: Note) -> None:
        if self._notes is None:
            self._notes = NotesWriter(str(self.directory / "output.notes"))
        self._notes.add(note)

    def _write_time(self, chunk: OutputPart, at: float) -> None:
        if self._times is None:
            self._times = TimesWriter(str(self.directory / "output.times"))
        self._times.add(chunk.rank, chunk.stream, chunk.end)
        self._times.write_all(at)

    def write_status(self, document: Mapping[str, Any]) -> None:
        """Keep the status of a run that is alive: each change of its state, else every 5 s.

        `finish` keeps the last one.
        """
        now = time.monotonic()
        state = str(document.get("state"))
        if state in FINAL or (state == self._state and now - self._status_at < _STATUS_INTERVAL):
            return
        self._state, self._status_at = state, now
        self._save(document)

    def write_dump(self, document: Mapping[str, Any]) -> None:
        """Keep the newest stacks of the ranks."""
        if self.error is not None:
            return
        try:
            make_private_directory(self.directory / "stacks")
            write_json_atomically(dump_path(str(self.directory / "stacks"), "last"), document, durable=False)
        except OSError as error:
            self._give_up(error)

    def write_windows(self, file: WindowsFile) -> None:
        """Keep a file of a rank's rates. Each one replaces the file before it."""
        if self.error is not None:
            return
        try:
            make_private_directory(self.directory / "ranks")
            write_atomically(self.directory / "ranks" / f"{file.rank:04}{file.suffix}", file.data, durable=False)
        except OSError as error:
            self._give_up(error)

    def finish(self, document: Mapping[str, Any]) -> None:
        """Close the files, and then keep a final status: with it the copy counts as complete."""
        self.close()
        if document.get("state") in FINAL:
            self._save(document)

    def close(self) -> None:
        """Close the files. An error that shows only here is in `error`."""
        while self._open:
            try:
                os.close(self._open.popitem()[1])
            except OSError as error:  # NFS may report only here that the disk or the quota is full
                self.error = self.error or error
        if self._times is not None:
            self._times.write_all(time.time())  # what a full disk refused
            self._times.close()
            self._times = None
        if self._notes is not None:
            self._notes.close()
            self._notes = None

    def _file(self, name: str) -> int:
        """Return the open file of a rank's output. If too many are open, the one that was opened first is closed."""
        number = self._open.get(name)
        if number is None:
            if len(self._open) >= _MAX_OPEN_FILES:
                os.close(self._open.pop(next(iter(self._open))))
            ranks = self.directory / "ranks"
            make_private_directory(ranks)
            number = self._open[name] = os.open(ranks / name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._sizes[name] = os.fstat(number).st_size
        return number

    def _save(self, document: Mapping[str, Any]) -> None:
        """Write the status, unless an earlier error ended the copy."""
        if self.error is not None:
            return
        try:
            make_private_directory(self.directory)
            write_json_atomically(self.directory / "status.json", document, durable=False)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.error = error
        self.close()


@dataclass(frozen=True, slots=True)
class ReadCopy:
    status: RunStatus
    seen: float
    """Seconds since the epoch."""

    @property
    def is_complete(self) -> bool:
        """True if the run had ended when it was followed last."""
        return self.status.state in FINAL


def read_copy(directory: Path) -> ReadCopy | None:
    """Return the copy of a run; None if the run was never followed from this machine, or its status is damaged."""
    path = directory / "status.json"
    try:
        seen = path.stat().st_mtime
    except OSError:
        return None
    document = read_json(path)
    return ReadCopy(read_status(document), seen) if document else None


def read_newest_status(directory: Path) -> RunStatus | None:
    """Return the newest status that this machine knows. A run that was never followed has one, too, if a call has seen
    its end."""
    copy = read_copy(directory)
    return read_final_status(directory) or (copy.status if copy is not None else None)


def save_final_status(directory: Path, status: RunStatus) -> None:
    """Save the final status of a run that no call followed to its end. If that fails, the next call asks node0
    again."""
    with contextlib.suppress(OSError):
        make_private_directory(directory)
        write_json_atomically(directory / "ended.json", status.to_json(), durable=False)


def read_final_status(directory: Path) -> RunStatus | None:
    """Return how the run ended, as the copy or a call that saw the end says; None if neither knows."""
    for name in ("status.json", "ended.json"):
        status = read_status(read_json(str(directory / name)))
        if status.state in FINAL:
            return status
    return None


def remove_copy(runs: Path, run: str) -> None:
    """Remove everything of a copy but the plan."""
    with contextlib.suppress(OSError):
        paths = [path for path in (runs / run).iterdir() if path.name != PLAN_FILE]
        # The status goes last, because a copy without one is not known to be ours.
        for path in sorted(paths, key=lambda path: path.name == "status.json"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def copy_size(directory: Path) -> int:
    """Return the size of a copy in bytes, without the plan."""
    plan = directory / PLAN_FILE
    return disk_usage(directory) - (plan.stat().st_blocks * 512 if plan.exists() else 0)
