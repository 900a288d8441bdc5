"""Follows a run until it has ended: its output by offset and its status.

    follow  {home, id, offsets: {"0.out": N, …} or null, from: "start" | "end", ranks: [N, …] or null, streams, follow,
             figures: seconds between two statuses where only figures change}
        → frames: chunks of output, and the messages {"status"} and {}, which only shows that the run is still followed
        → {"event": "done", "status"}

It only reads the run's directory: the run does not know its followers.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Iterator

from ipexctl.node.common.answer import AgentError, answer, emit_frames
from ipexctl.node.common.files import rundir_of
from ipexctl.node.common.frames import SUFFIXES, Chunk, encode_chunk, encode_json
from ipexctl.node.common.processes import allow_many_files
from ipexctl.node.run.status_file import read_status_file

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json
    from ipexctl.node.common.frames import CompressedFrameWriter, Stream
    from ipexctl.node.run.status_file import StoredStatus

READ_INTERVAL = 0.03
"""Seconds between two reads while output arrives, or before the first output."""
IDLE_INTERVAL = 0.08
TICK_INTERVAL = 10.0
CHUNK_SIZE = 48 << 10
MAX_CHUNKS = 16
"""Chunks of one file before the other files are read."""
STATUS_INTERVAL = 2.0
"""Seconds between two checks that the supervisor lives."""


class FollowedFile:
    """One stream of one rank."""

    def __init__(self, path: str, rank: int, stream: Stream, offset: int) -> None:
        self._rank, self._stream, self._offset = rank, stream, offset
        self._path = path
        self._number = -1

    def chunks(self, limit: int) -> Iterator[Chunk]:
        """New output, in chunks."""
        if self._number < 0:
            try:
                self._number = os.open(self._path, os.O_RDONLY)
            except FileNotFoundError:
                return
            except OSError as error:
                raise AgentError(f"{self._path} can't be read: {error.strerror}") from None
        while limit > 0 and os.fstat(self._number).st_size > self._offset:
            limit -= 1
            data = os.pread(self._number, CHUNK_SIZE, self._offset)
            if not data:
                return
            yield Chunk(self._rank, self._stream, data, self._offset)
            self._offset += len(data)


def files_of(request: Json, rundir: str, world_size: int) -> list[FollowedFile]:
    offsets = request.get("offsets") or {}
    ranks = request.get("ranks")
    output_files = []
    for rank in range(world_size) if ranks is None else ranks:
        for stream, suffix in SUFFIXES.items():
            if suffix not in (request.get("streams") or SUFFIXES.values()):
                continue
            path = os.path.join(rundir, "ranks", f"{rank:04}.{suffix}")
            offset = offsets.get(f"{rank}.{suffix}")
            if offset is None:
                offset = 0
                if request.get("from") == "end" and os.path.exists(path):
                    offset = os.stat(path).st_size
            output_files.append(FollowedFile(path, rank, stream, offset))
    return output_files


def forward(files: list[FollowedFile], writer: CompressedFrameWriter, limit: int = 1 << 60) -> bool:
    has_output = False
    for file in files:
        for chunk in file.chunks(limit):
            writer.send(encode_chunk(chunk))
            has_output = True
    return has_output


class StatusWatcher:
    """Changes of the status: a new state of the run or a rank at once, new figures only at an interval."""

    def __init__(self, rundir: str, interval: float) -> None:
        self._rundir, self._interval = rundir, interval
        self._path = os.path.join(rundir, "status.json")
        self._checked_at = self._sent_at = 0.0
        self._modified, self._modified_at = 0, 0.0
        self._states: list[object] = []
        self._stored: StoredStatus | None = None

    def poll(self, now: float) -> tuple[StoredStatus, bool]:
        """The status, and whether it is to be sent."""
        try:
            changed = os.stat(self._path).st_mtime_ns
        except OSError:
            changed = self._modified
        if self._stored is not None and changed == self._modified and now - self._checked_at <= STATUS_INTERVAL:
            return self._stored, False
        is_new = changed != self._modified
        if is_new:
            self._modified, self._modified_at = changed, now
        self._checked_at = now
        stored = self._stored = read_status_file(self._rundir, unchanged_for=now - self._modified_at)
        status = stored.status
        since = status.silent.since if status.silent is not None else None
        states: list[object] = [status.state, since, *(rank.state for rank in status.ranks)]
        if states == self._states and not (is_new and now - self._sent_at >= self._interval):
            return stored, False
        self._states, self._sent_at = states, now
        return stored, True


def follow(request: Json, _: object = None) -> Json:
    allow_many_files()  # each rank has two files
    rundir = rundir_of(request)
    files = files_of(request, rundir, read_status_file(rundir).status.world_size)
    statuses = StatusWatcher(rundir, float(request.get("figures") or 0.0))
    with emit_frames() as writer:
        return {"status": forward_run(files, statuses, writer, to_the_end=request.get("follow", True))}


def forward_run(
    files: list[FollowedFile], statuses: StatusWatcher, writer: CompressedFrameWriter, *, to_the_end: bool
) -> Json:
    """Send output and status, until the run has ended or once; returns the last status."""
    parent, sent_at = os.getppid(), time.monotonic()
    while True:
        now = time.monotonic()
        # The status is read before the files, so that with a final status all output is in the files.
        (status, document), is_changed = statuses.poll(now)
        if is_changed:
            writer.send(encode_json({"status": document}))
        if not to_the_end:
            forward(files, writer)
            return document
        has_output = forward(files, writer, MAX_CHUNKS)
        if status.is_over:
            while forward(files, writer, MAX_CHUNKS):
                writer.flush()
            return document
        if has_output:
            sent_at = now
        elif now - sent_at > TICK_INTERVAL:
            sent_at = now
            writer.send(encode_json({}))  # only a write shows that the caller has exited
        writer.flush()
        if os.getppid() != parent:
            raise AgentError("the caller has exited")
        time.sleep(READ_INTERVAL if has_output or status.state == "starting" else IDLE_INTERVAL)


def main(action: str) -> int:
    try:
        return answer({"follow": follow}[action])
    except BrokenPipeError:
        return 0
