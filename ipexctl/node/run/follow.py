"""Follows a run until it ends: sends its output in order of time, and its status.

The answer is frames: chunks of output, notes, {"status"}, {"at": time of the output that follows}, the dump of
--on-hang, {"starters"} that are lost and to be begun again, and {}, a heartbeat; at the end the windows of ranks and
hosts, then {"event": "done", "status"}. After a reconnect the caller gives its offsets, so each byte is sent once.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import signal
import time
from typing import TYPE_CHECKING, BinaryIO, Iterable, Iterator, Mapping, Sequence

from ipexctl.node.common.answer import AgentError, Json, answer
from ipexctl.node.common.files import RunReference, read_json
from ipexctl.node.common.frames import (
    SUFFIXES,
    Chunk,
    CompressedFrameWriter,
    Note,
    OutputPart,
    StreamName,
    emit_frames,
    encode_chunk,
    encode_json,
    encode_note,
    encode_windows,
)
from ipexctl.node.common.home import rundir_of
from ipexctl.node.common.job import STARTERS_FILE
from ipexctl.node.common.processes import allow_many_files
from ipexctl.node.run.meter.window_file import windows_of
from ipexctl.node.run.output_filter import OutputFilter, start_of_last_lines
from ipexctl.node.run.record.file_owner import read_status_now
from ipexctl.node.run.record.output_notes import NotesReader
from ipexctl.node.run.record.output_times import OutputKey, TimesReader
from ipexctl.node.run.record.stack_dumps import encode_dump
from ipexctl.node.run.record.unstored_output import UnstoredReader

if TYPE_CHECKING:
    from ipexctl.node.run.record.stored_status import StoredStatus

READ_INTERVAL = 0.03
"""Seconds between reads while output is frequent, or before the first output."""
OFTEN = 0.2
"""Output is frequent if the last one came within this many seconds."""
IDLE_INTERVAL = 0.08
LONGEST_INTERVAL = 0.25
"""Seconds between reads after ten seconds without output or a new status."""
NOTIFIED_INTERVAL = 1.0
"""Seconds between reads if the kernel reports file changes. These reads notice that the caller has exited."""
SETTLE_TIME = 0.002
"""Seconds to collect changes that belong together. A new status makes two changes."""
TICK_INTERVAL = 5.0
"""Seconds between heartbeats. The caller gives up after 30 seconds without a frame."""
CHUNK_SIZE = 48 << 10
MAX_BYTES = 1 << 20
LISTING_INTERVAL = 0.002
"""Seconds per file between two checks of all files. `output.times` names a growing file within 0.1 seconds."""
STATUS_INTERVAL = 2.0
"""Seconds between checks that the supervisor is alive."""
RANK_INTERVAL = 0.005
"""Seconds per rank between statuses in which only ranks' states changed. Each status lists all ranks."""
LONGEST_RANK_INTERVAL = 1.0


class FollowRequest(RunReference):
    copy: bool
    offsets: Mapping[str, int]
    """`0.out` → bytes that the caller already has."""
    ranks: Sequence[int] | None
    """None for all."""
    streams: Sequence[str]
    follow: bool
    tail: int | None
    """Send only this many last lines; None for all."""
    grep: str
    exact: bool
    figures: float
    """Seconds between two statuses in which only figures changed."""
    windows: bool


class FollowedFile:
    def __init__(self, path: str, rank: int, stream: StreamName, offset: int, notes: NotesReader | None = None) -> None:
        """`notes` must be refreshed after the output's end is known; otherwise a new note looks like output."""
        self.path = path
        self.offset = offset
        self._notes = notes
        self._rank, self._stream = rank, stream
        self._number = -1

    def chunks(self, end: int, at: float | None) -> Iterator[OutputPart]:
        """Yield output up to the offset `end`, or to the end of the file. `at`: the time that it gets.

        A note is yielded only once its whole line is written.
        """
        while self.offset < end and self._is_open():
            stop, note = end, self._next_note()
            if note is not None and note.offset == self.offset:
                if note.end > end:  # still being written
                    return
                self.offset = note.end
                yield note._replace(at=at)
                continue
            if note is not None:
                stop = min(end, note.offset)
            data = os.pread(self._number, min(CHUNK_SIZE, stop - self.offset), self.offset)
            if not data:
                return
            self.offset += len(data)
            yield Chunk(self._rank, self._stream, data, self.offset - len(data), at)

    def pass_on(self, chunk: Chunk, at: float) -> Iterator[OutputPart]:
        """Yield the unsent part of a chunk that the disk had no room for. All before it must be sent already."""
        new = chunk.data[self.offset - chunk.offset :]
        note = self._next_note()
        if new and note is not None and (note.offset, note.end) == (self.offset, chunk.end):
            self.offset = note.end
            yield note._replace(at=at)
        elif new:
            self.offset += len(new)
            yield Chunk(self._rank, self._stream, new, self.offset - len(new), at)

    def new_chunks(self, at: float | None) -> Iterator[OutputPart]:
        """Yield what the file has beyond what was yielded. `at`: the time that it gets, or None if unknown.

        A file that does not exist yet has nothing. Raises an AgentError if it can't be opened.
        """
        if self._is_open():
            size = os.fstat(self._number).st_size
            if self._notes is not None and size > self.offset:
                self._notes.refresh()
            yield from self.chunks(size, at)

    def _next_note(self) -> Note | None:
        return None if self._notes is None else self._notes.find_next(self._rank, self._stream, self.offset)

    def _is_open(self) -> bool:
        if self._number < 0:
            try:
                self._number = os.open(self.path, os.O_RDONLY)
            except FileNotFoundError:
                return False
            except OSError as error:
                raise AgentError(f"{self.path} can't be read: {error.strerror}") from None
        return True


class OutputReader:
    def __init__(
        self,
        files: dict[OutputKey, FollowedFile],
        times: TimesReader,
        unstored: UnstoredReader,
        notes: NotesReader | None = None,
        *,
        is_live: bool,
    ) -> None:
        self.files = files
        self._notes = notes
        self.is_live = is_live
        self._unstored = unstored
        self._times = times
        self._looked_at = 0.0

    def new_chunks(self) -> Iterator[OutputPart]:
        """Yield new output in order of time: of the files as `output.times` names them, then what the disk has no room
        for, then the rest of all files.

        Of a live run, all files are looked at only now and then: with many ranks that takes long.
        """
        for at, key, end in self._times.entries():
            file = self.files.get(key)
            if file is not None and file.offset < end:
                yield from file.chunks(end, at)
        yield from self._unstored_chunks()
        now = time.monotonic()
        if self.is_live and self._times.exists and now - self._looked_at < LISTING_INTERVAL * len(self.files):
            return
        self._looked_at = now
        latest = None if not self._times.exists else time.time() if self.is_live else self._times.last
        for file in self.files.values():
            yield from file.new_chunks(latest)

    def _unstored_chunks(self) -> Iterator[OutputPart]:
        """Yield output that the disk has no room for. It comes after the output in the files, so it waits until all of
        that is read."""
        for chunk in self._unstored.new_chunks():
            file = self.files.get((chunk.rank, chunk.stream))
            if file is None:
                continue
            if self._notes is not None:
                self._notes.refresh()
            now = time.time()
            yield from file.chunks(chunk.offset, now)
            if file.offset < chunk.offset:  # still being written to the file
                return
            yield from file.pass_on(chunk, now)


def files_of(request: FollowRequest, rundir: str, world_size: int, notes: NotesReader) -> dict[OutputKey, FollowedFile]:
    """Return the files to follow, each from where the caller has it, else from its begin or its last lines.

    With `grep`, last lines are counted after the search, so files are read from their begin.
    """
    ranks = request["ranks"]
    tail = None if request["grep"] else request["tail"]
    files: dict[OutputKey, FollowedFile] = {}
    for rank in range(world_size) if ranks is None else ranks:
        for stream, suffix in SUFFIXES.items():
            if suffix not in request["streams"]:
                continue
            path = os.path.join(rundir, "ranks", f"{rank:04}.{suffix}")
            offset = request["offsets"].get(f"{rank}.{suffix}")
            if offset is None:
                offset = 0 if tail is None else start_of_last_lines(path, tail)
            files[rank, stream] = FollowedFile(path, rank, stream, offset, notes)
    return files


class ChangeSignal:
    """Waits for changes in the run's directory, or just sleeps if the kernel does not report changes there."""

    def __init__(self, rundir: str, *, is_local: bool) -> None:
        self.is_sent = False
        if not is_local or not os.path.exists(os.path.join(rundir, "output.times")):
            return
        signal.signal(signal.SIGIO, signal.SIG_IGN)  # for threads started earlier
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGIO})
        with contextlib.suppress(OSError):
            directory = os.open(rundir, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.fcntl(directory, fcntl.F_NOTIFY, fcntl.DN_MODIFY | fcntl.DN_RENAME | fcntl.DN_MULTISHOT)
            self.is_sent = True

    def wait(self, seconds: float, held: float) -> None:
        """Wait for a change in the run's directory, at most `held` seconds. Where the kernel reports none, sleep for
        `seconds`."""
        if not self.is_sent:
            time.sleep(seconds)
            return
        began = time.monotonic()
        signal.sigtimedwait({signal.SIGIO}, min(NOTIFIED_INTERVAL, held))
        if time.monotonic() - began < SETTLE_TIME:
            time.sleep(SETTLE_TIME)


class StatusWatcher:
    """Reports a new state of the run at once, new states of ranks soon, and new figures at an interval."""

    def __init__(self, rundir: str, interval: float) -> None:
        self.stacks_directory = os.path.join(rundir, "stacks")
        self._rundir, self._interval = rundir, interval
        self._path = os.path.join(rundir, "status.json")
        self._checked_at = self._sent_at = 0.0
        self._modified, self._modified_at = 0, 0.0
        self._stored: StoredStatus | None = None
        self._is_new = False
        self._sent: tuple[object, object] = (None, None)
        self.due_at = math.inf

    def poll(self, now: float) -> tuple[StoredStatus, bool]:
        """Return the status, and whether it is to be sent now. `now`: the monotonic clock.

        `due_at` then says when a status that is held back is due; infinite if none is.
        """
        try:
            changed = os.stat(self._path).st_mtime_ns
        except OSError:
            changed = self._modified
        if self._stored is None or changed != self._modified or now - self._checked_at > STATUS_INTERVAL:
            if changed != self._modified:
                self._modified, self._modified_at, self._is_new = changed, now, True
            self._checked_at = now
            self._stored = read_status_now(self._rundir, unchanged_for=now - self._modified_at)
        elif not self._is_new:
            return self._stored, False
        status = self._stored.status
        stall = None if status.silent is None else (status.silent.since, status.silent.dump)
        states = ((status.state, status.reason, stall), [rank.state for rank in status.ranks])
        self.due_at = self._sent_at + self._interval if self._is_new else math.inf
        if states != self._sent:
            interval = min(LONGEST_RANK_INTERVAL, RANK_INTERVAL * len(status.ranks))
            self.due_at = min(self.due_at, self._sent_at + interval)
        if states[0] == self._sent[0] and now < self.due_at:
            return self._stored, False
        self._sent, self._sent_at, self._is_new, self.due_at = states, now, False, math.inf
        return self._stored, True


class StartersWatcher:
    """Reports lost host starters each time the supervisor asks for them."""

    def __init__(self, rundir: str) -> None:
        self._path = os.path.join(rundir, STARTERS_FILE)
        self._written = 0

    def poll(self) -> Json:
        """Return what the supervisor has written since the last call; empty if nothing."""
        try:
            written = os.stat(self._path).st_mtime_ns
        except OSError:
            return {}
        if written == self._written:
            return {}
        self._written = written
        return read_json(self._path)


class OutputSender:
    def __init__(self, output: OutputReader, chosen: OutputFilter, writer: CompressedFrameWriter) -> None:
        self.is_caught_up = False
        self._output, self._chosen, self._writer = output, chosen, writer
        self._chunks = output.new_chunks()
        self._is_resumed = False
        """True if `_chunks` continues an earlier check. Files may have grown since."""
        self._at: float | None = None
        self._ticked_at = time.monotonic()

    def send_some(self) -> bool:
        """Send some new output; returns False if there was none."""
        size = 0
        for chunk in self._chunks:
            size += len(chunk.data)
            self._send(self._chosen.feed(chunk))
            self.tick(time.monotonic())
            if size >= MAX_BYTES:
                self.is_caught_up, self._is_resumed = False, True
                return True
        was_resumed, self._is_resumed = self._is_resumed, False
        self._chunks = self._output.new_chunks()
        self.is_caught_up = True
        return size > 0 or was_resumed

    def send_all(self, *, is_final: bool) -> None:
        """Send all output that there is now. `is_final`: no more follows, so unfinished lines go too."""
        while not self.is_caught_up:
            self.send_some()
        self.send_last_lines(is_final=is_final)

    def send_last_lines(self, *, is_final: bool) -> None:
        """Send what the filter still holds, once all output is sent."""
        self._send(self._chosen.caught_up(is_final=is_final))
        if not is_final:  # after a reconnect, the caller continues from these offsets
            for key, file in self._output.files.items():
                self._send([Chunk(*key, b"", self._chosen.offset_of(key, file.offset))])

    def tick(self, now: float) -> None:
        """Send heartbeats, which fail once the caller has exited."""
        if now - self._ticked_at >= TICK_INTERVAL:
            self._ticked_at = now
            self._writer.send(encode_json({}))
            self._writer.flush()

    def _send(self, parts: Iterable[OutputPart]) -> None:
        for part in parts:
            if part.data and part.at != self._at:
                self._at = part.at
                self._writer.send(encode_json({"at": part.at}))
            self._writer.send(encode_note(part) if isinstance(part, Note) else encode_chunk(part))


def follow(request: FollowRequest, _: object) -> Json:
    """Send the output and status of a run until it ends, and return its last status.

    Of a copy, or without `follow`, send what there is and return.
    """
    allow_many_files()  # each rank has two files
    rundir, is_copy = rundir_of(request), request["copy"]
    first = read_status_now(rundir, is_copy=is_copy)
    notes = NotesReader(os.path.join(rundir, "output.notes"))
    files = files_of(request, rundir, first.status.world_size, notes)
    path = os.path.join(rundir, "output.times")
    times = TimesReader(path, len(files), exact=request["exact"], on_read=notes.refresh)
    is_here = first.status.supervisor.is_of_this_machine and not (is_copy or first.status.is_over)
    unstored = UnstoredReader(first.status.supervisor.pid, first.status.unstored_output if is_here else None)
    output = OutputReader(files, times, unstored, notes, is_live=not (is_copy or first.status.is_over))
    chosen = OutputFilter(request["grep"], request["tail"])
    with emit_frames() as writer:
        sender = OutputSender(output, chosen, writer)
        if is_copy or not request["follow"]:
            writer.send(encode_json({"status": first.document}))
            sender.send_all(is_final=True)
            return {"status": first.document}
        if request["tail"] is not None:
            writer.send(encode_json({"status": first.document}))  # the caller needs its field `notes`
            sender.send_all(is_final=False)
        statuses = StatusWatcher(rundir, request["figures"])
        changes = ChangeSignal(rundir, is_local=first.status.supervisor.is_of_this_machine)
        last = forward_run(output, sender, statuses, changes, StartersWatcher(rundir), writer)
        for file in windows_of(rundir) if request["windows"] else ():
            writer.send(encode_windows(file))
            sender.tick(time.monotonic())
        return {"status": last}


def forward_run(
    output: OutputReader,
    sender: OutputSender,
    statuses: StatusWatcher,
    changes: ChangeSignal,
    starters: StartersWatcher,
    writer: CompressedFrameWriter,
) -> Json:
    """Send what is new in a loop until the run is over, and return its last status. Raises a BrokenPipeError if the
    caller has exited."""
    parent, sent_at, sent_dump = os.getppid(), time.monotonic(), ""
    while True:
        now = time.monotonic()
        # Read the status before the files: after a final status, the files have all output.
        (status, document, _), is_changed = statuses.poll(now)
        if is_changed:
            writer.send(encode_json({"status": document}))
        if status.silent is not None and status.silent.dump not in ("", sent_dump):
            sent_dump = status.silent.dump
            for frame in encode_dump(statuses.stacks_directory, sent_dump):
                writer.send(frame)
        if lost := starters.poll():
            writer.send(encode_json({"starters": lost}))
        output.is_live = not status.is_over
        has_output = sender.send_some()
        is_frequent = has_output and now - sent_at < OFTEN
        if status.is_over:
            while sender.send_some():
                writer.flush()
            sender.send_last_lines(is_final=True)
            return document
        if has_output:
            sent_at = now
        sender.tick(now)
        writer.flush()
        if os.getppid() != parent:  # end as if writing failed; a caller that lost only its shell follows again
            raise BrokenPipeError(errno.EPIPE, "the caller has exited")
        if sender.is_caught_up:
            idle = min(LONGEST_INTERVAL, max(IDLE_INTERVAL, LONGEST_INTERVAL / 10 * (now - sent_at)))
            if is_frequent:
                time.sleep(READ_INTERVAL)
            else:
                held = max(0.0, statuses.due_at - time.monotonic())
                changes.wait(min(held, READ_INTERVAL if has_output or status.state == "starting" else idle), held)


def main(action: str, stdin: BinaryIO | None = None) -> int:
    """Answer the agent's call, and return its exit code; 0 also if the caller has left. `stdin`: where the request is,
    if not on descriptor 0."""
    try:
        return answer({"follow": follow}[action], stdin)
    except BrokenPipeError:
        return 0
