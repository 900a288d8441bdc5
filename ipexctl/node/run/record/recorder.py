"""Writes the record of a run on node0: output, its times and notes, windows, status.json and events.jsonl.

Output is written once and in order, even if it is sent again. If the disk is full, output is held in memory for
followers and written later; if memory is full too, it stays with the ranks.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Iterator, Mapping

from ipexctl.node.common.files import last_lines, open_private, remove_file, write_json_atomically
from ipexctl.node.common.frames import SUFFIXES, Note, last_state
from ipexctl.node.common.job import Master
from ipexctl.node.common.json_records import encode
from ipexctl.node.common.processes import own_identity
from ipexctl.node.common.records import RunStatus
from ipexctl.node.run.meter.rank_profile import SUFFIX, RankProfile
from ipexctl.node.run.meter.rates import HostRates, RankRates
from ipexctl.node.run.meter.window_file import HOST_SUFFIX, RANK_SUFFIX, WindowWriter
from ipexctl.node.run.record.losses import plain_text
from ipexctl.node.run.record.output_notes import NotesWriter, note_line
from ipexctl.node.run.record.output_times import TimesWriter
from ipexctl.node.run.record.stored_status import SPARE_FILE
from ipexctl.node.run.record.unstored_output import Held, UnstoredOutput

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json
    from ipexctl.node.common.plan import Plan
    from ipexctl.node.run.record.output_times import OutputKey

SAVE = 2.0
"""Seconds between two writes of the status if only figures changed."""
EVENTS = 4096
SPARE, SPARE_OF_RANK = 1 << 15, 1 << 10
"""Bytes reserved on disk for the last status, and for each rank in it."""
NEWEST = 1 << 16
"""Bytes of a rank's new output that are read for its loss and step when the status is written."""
PROBE = 1 << 18
"""Bytes that must be free before output is written to a disk that was full."""


def first_status(plan: Plan, now: float) -> RunStatus:
    """Return the status of a run whose ranks are not started yet. `now`: seconds since the epoch."""
    hosts = tuple(host.name for host in plan.hosts)
    return RunStatus(
        plan.id,
        "starting",
        plan.script,
        plan.environment,
        len(hosts),
        plan.world_size,
        started=now,
        restarts=plan.asked.max_restarts,
        hosts=hosts,
        supervisor=own_identity(),
        node0=plan.node0,
        master=Master(plan.master_addr, plan.master_port),
    )


class OutputFile:
    def __init__(
        self,
        path: str,
        host: str,
        on_grown: Callable[[int], None],
        hold: Callable[[int, bytes], Held | None],
        announce: Callable[[Note], None],
        undo_last_note: Callable[[], None],
        key: OutputKey,
    ) -> None:
        """`on_grown` gets the file's size after each write, `announce` each note before its line is written. `hold`
        keeps data that the disk has no room for."""
        self._key = key
        self._announce = announce
        self._undo_last_note = undo_last_note
        self.have = 0
        """The offset up to which output is written, held in memory, or known to be lost."""
        self.lines = 0
        self.lost = 0
        self.full = False
        self.held: deque[Held] = deque()
        self._size = self._seen = 0
        """Size of the file together with held data, and how much of it `new_lines` has read."""
        self._ends_line = True
        self.host = host
        self._on_grown = on_grown
        self._hold = hold
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_TRUNC
        self._number = os.open(path, flags, 0o600)

    def take(self, offset: int, data: bytes) -> bool:
        """Write a chunk; returns False if there is no room and the chunk must be sent again."""
        if offset < self.have:
            data = data[self.have - offset :]
            offset = self.have
        if not data:
            return True
        if self.full:
            return False
        if offset > self.have and not self._write_gap(offset):
            self.full = True
            return False
        if not self._write(data):
            self.full = True
            return False
        self.lines += data.count(b"\n")
        self.have = offset + len(data)
        return True

    def end(self, offset: int) -> None:
        """End the stream. Output missing before the offset counts as lost."""
        if offset > self.have and not self._write_gap(offset):
            self.lost += offset - self.have
            self.have = offset

    def note(self, kind: str, fields: Json, *, is_first: bool = False) -> bool:
        """Write a note; with `is_first`, even if there is no output. Returns False without room."""
        if not self._size and not is_first:
            return True
        if not self._ends_line and not self._write(b"\n"):
            return False
        line = note_line(kind, fields)
        self._announce(Note(*self._key, line, self._size, None, kind, fields))
        if self._write(line):
            return True
        self._undo_last_note()
        return False

    def _write_gap(self, offset: int) -> bool:
        """Count missing output as lost, and note that; returns False without room for the note."""
        size = offset - self.have
        if not self.note("gap", {"bytes": size, "host": self.host}, is_first=True):
            return False
        self.lost += size
        self.have = offset
        return True

    def _write(self, data: bytes) -> bool:
        if self.held or not self._store(data, self._size):
            held = self._hold(self._size, data)
            if held is None:
                return False
            self.held.append(held)
        if data:
            self._size += len(data)
            self._ends_line = data.endswith(b"\n")
            self._on_grown(self._size)
        return True

    def _store(self, data: bytes, at: int) -> bool:
        written = 0
        try:
            while written < len(data):
                written += os.pwrite(self._number, data[written : written + (1 << 20)], at + written)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._number, at)
            return False
        return True

    def store_held(self, memory: UnstoredOutput) -> bool:
        """Write held output; returns False without room for all of it."""
        while self.held:
            first = self.held[0]
            if not self._store(memory.get(first), self._size - sum(held.size for held in self.held)):
                return False
            self.held.popleft()
            memory.drop()
        return True

    def give_up_held(self, memory: UnstoredOutput) -> None:
        """Count the output that waits in memory as lost."""
        while self.held:
            self.lost += self.held.popleft().size
            memory.drop()

    def new_lines(self) -> Iterator[tuple[str, bool]]:
        """Yield the newest lines since the last call, and whether each is an unfinished progress bar. Of more than
        NEWEST bytes, the first are skipped."""
        begin = max(self._seen, self._size - NEWEST)
        try:
            data = os.pread(self._number, NEWEST, begin)
        except OSError:  # it is closed
            return
        *lines, rest = re.split(rb"[\r\n]+", data)
        for line in lines[begin > self._seen :]:
            yield plain_text(line), False
        self._seen = begin + len(data) - len(rest)
        if b"%|" in rest:
            yield plain_text(rest), True

    def close(self) -> None:
        """Close the file. Raises an OSError if the filesystem lost output that it had accepted."""
        number, self._number = self._number, -1
        os.close(number)


class WindowFiles:
    def __init__(self, path: str) -> None:
        self._profile = f"{path}{SUFFIX}"
        self.of_rank = WindowWriter(f"{path}{RANK_SUFFIX}", RankRates)
        self.of_host = WindowWriter(f"{path}{HOST_SUFFIX}", HostRates)

    def write_profile(self, profile: RankProfile) -> None:
        """Keep a rank's profile in place of the one before. If a profile that a user asked for could not be made, only
        that user is told why, and nothing is kept."""
        if profile.note and profile.request:  # only the user who asked is told why there is none
            return
        with contextlib.suppress(OSError):  # a full disk: the run continues without it
            write_json_atomically(self._profile, encode(profile), durable=False)

    def begin_attempt(self) -> None:
        """Let the windows of the next attempt, whose numbers begin at 0 again, follow those that are written."""
        self.of_rank.begin_attempt()
        self.of_host.begin_attempt()

    def close(self) -> None:
        """Close both files."""
        self.of_rank.close()
        self.of_host.close()


class Recorder:
    def __init__(self, rundir: str, status: RunStatus) -> None:
        self.rundir = rundir
        self.status = status
        self.complete: Callable[[RunStatus], RunStatus] = lambda status: status
        self.is_unsaved = True
        self._saved_at = 0.0
        self._unwritten: list[bytes] = []
        self._events = os.open(self.path("events.jsonl"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.first_write = os.fstat(self._events)
        """Its mtime is the begin of the run by the clock of the record's file system."""
        os.makedirs(self.path("ranks"), mode=0o700, exist_ok=True)
        self.times = TimesWriter(self.path("output.times"))
        self.notes = NotesWriter(self.path("output.notes"))
        self.unstored = UnstoredOutput()
        self._unwritten_count: int | None = None
        """None if the disk never refused an event."""
        self.files: list[OutputFile] = []
        self.problem = ""
        """Why the status could not be written, unless the disk was full."""
        # Reserve room for the last status: by then the disk may be full, or no file can be opened for writing.
        self._spare = -1
        with contextlib.suppress(OSError):
            self._spare = os.open(self.path(SPARE_FILE), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.write(self._spare, b" " * (SPARE + SPARE_OF_RANK * status.world_size))

    def path(self, *names: str) -> str:
        """Return the path of a file in the run's directory."""
        return os.path.join(self.rundir, *names)

    def sinks(self, rank: int, host: str) -> dict[str, OutputFile]:
        """Create the output files of a rank. Returns suffix of the stream, `out` or `err` → file. Raises an OSError."""
        sinks = {
            suffix: OutputFile(
                self.path("ranks", f"{rank:04}.{suffix}"),
                host,
                partial(self.times.add, rank, stream),
                partial(self.unstored.put, rank, stream),
                self.notes.add,
                self.notes.undo_last_note,
                (rank, stream),
            )
            for stream, suffix in SUFFIXES.items()
        }
        self.files += sinks.values()
        return sinks

    def windows(self, rank: int) -> WindowFiles:
        """Return the files of windows of a rank and its host. They are created with the first window."""
        return WindowFiles(self.path("ranks", f"{rank:04}"))

    @property
    def holds_output(self) -> bool:
        """True if output waits in memory, because the disk was full."""
        return any(file.held for file in self.files)

    def store_held(self) -> bool:
        """Write held output if the disk has room; returns True if all is written."""
        self.notes.write_refused()
        return all(file.store_held(self.unstored) for file in self.files if file.held)

    def give_up_held(self) -> None:
        """Count all output that waits in memory as lost."""
        for file in self.files:
            file.give_up_held(self.unstored)

    def event(self, at: float, name: str, fields: Mapping[str, Any]) -> None:
        """Record an event; the next `save` then writes the status at once."""
        line = json.dumps({"at": round(at, 3), "event": name, **fields}) + "\n"
        self._unwritten = [*self._unwritten, line.encode()][-EVENTS:]
        self._write_events()
        self.is_unsaved = True
        self._saved_at = 0.0

    def _write_events(self) -> None:
        while self._unwritten:
            try:
                written = os.write(self._events, self._unwritten[0])
            except OSError:
                return
            self._unwritten[0] = self._unwritten[0][written:]
            if not self._unwritten[0]:
                self._unwritten.pop(0)

    def save(self, now: float) -> None:
        """Write the status, unless nothing has changed or SAVE seconds have not passed. `now`: the monotonic clock.

        If the disk is full, it is tried again by a later call. The last status then goes into the room reserved for it.
        """
        if not self.is_unsaved or now - self._saved_at < SAVE:
            return
        self._saved_at = now
        self._write_events()
        temporary, spare = self.path("status.json.part"), self.path(SPARE_FILE)
        is_last = self.status.ended is not None
        data = json.dumps(self.full_status().to_json()).encode()
        if self._put(temporary, data):
            self.is_unsaved = False
            if is_last:
                remove_file(spare)
        elif is_last:
            remove_file(temporary)
            self.is_unsaved = not self._put_last(data)

    def full_status(self) -> RunStatus:
        """Return the status as it is written: with figures, the number of events that are not written yet, and where
        followers find output that is not stored."""
        if self._unwritten or self._unwritten_count is not None:
            self._unwritten_count = len(self._unwritten)
        return self.complete(self.status)._replace(
            unwritten_events=self._unwritten_count, unstored_output=self.unstored.number
        )

    def _put(self, path: str, data: bytes) -> bool:
        try:
            with open(path, "wb", opener=open_private) as file:
                file.write(data)
            os.replace(path, self.path("status.json"))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                self.problem = error.strerror or str(error)
            return False
        return True

    def _put_last(self, data: bytes) -> bool:
        """Write the last status into its reserved room, where `stored_status.py` finds it if it can't be renamed."""
        with contextlib.suppress(OSError):
            os.pwrite(self._spare, data, 0)
            os.ftruncate(self._spare, len(data))
            with contextlib.suppress(OSError):
                os.replace(self.path(SPARE_FILE), self.path("status.json"))
            return True
        return False

    def has_room(self) -> bool:
        """Return True if PROBE bytes can be written to the disk."""
        path = self.path("ranks", "room.part")
        try:
            with open(path, "wb", opener=open_private) as file:
                file.write(b"\0" * PROBE)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            return False
        finally:
            remove_file(path)
        return True

    def tail(self, name: str, lines: int = 20, begin: int = 0) -> list[str]:
        """Return the last lines of a file, as a terminal finally shows them; empty if it can't be read. `begin`: offset
        before which nothing is read."""
        last = last_lines(self.path(name), 16384, lines, begin)
        return [last_state(line).decode(errors="replace").rstrip() for line in last]
