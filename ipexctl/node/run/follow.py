"""Follows a run until it has ended: its output by offset and its status, as lines of JSON.

    follow  {home, id, offsets: {"0.out": N, …} or null, from: "start" | "end", ranks: [N, …] or null, streams, follow,
             figures: seconds between two statuses where only figures change}
        → {"event": "packed", "data": base64 of the next chunk of one zlib stream of JSON lines, which are
            {"event": "chunk", "rank", "stream", "offset", "data": its bytes as latin-1}
            {"event": "status", "status"}, {"event": "tick"}
        → {"event": "done", "status"}

It only reads the run's directory: the run does not know its followers.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import resource
import time
import zlib
from typing import TYPE_CHECKING, Any, Dict, Iterator

from ipexctl.node.common.answer import AgentError, answer, emit
from ipexctl.node.run.status_file import read_status_file

if TYPE_CHECKING:
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
PACK_SIZE = 1 << 18
"""Characters that are compressed together."""
Json = Dict[str, Any]


class FollowedFile:
    """One stream of one rank."""

    def __init__(self, path: str, rank: int, stream: str, offset: int) -> None:
        self.rank, self.stream, self.offset = rank, stream, offset
        self._path = path
        self._number = -1

    def chunks(self, limit: int) -> Iterator[bytes]:
        """New output, in chunks."""
        if self._number < 0:
            try:
                self._number = os.open(self._path, os.O_RDONLY)
            except FileNotFoundError:
                return
            except OSError as error:
                raise AgentError(f"{self._path} can't be read: {error.strerror}") from None
        while limit > 0 and os.fstat(self._number).st_size > self.offset:
            limit -= 1
            data = os.pread(self._number, CHUNK_SIZE, self.offset)
            if not data:
                return
            yield data
            self.offset += len(data)


class Packer:
    """Compresses many events together: lines of ranks are alike, and the link to the follower may be slow."""

    def __init__(self) -> None:
        self._zlib = zlib.compressobj(1)
        self._lines: list[str] = []
        self._size = 0

    def emit(self, **fields: Any) -> None:
        line = json.dumps(fields) + "\n"
        self._lines.append(line)
        self._size += len(line)
        if self._size >= PACK_SIZE:
            self.flush()

    def flush(self) -> None:
        if self._lines:
            data = self._zlib.compress("".join(self._lines).encode()) + self._zlib.flush(zlib.Z_SYNC_FLUSH)
            self._lines, self._size = [], 0
            emit("packed", data=base64.b64encode(data).decode())


def files_of(request: Json, rundir: str, world_size: int) -> list[FollowedFile]:
    offsets = request.get("offsets") or {}
    ranks = request.get("ranks")
    output_files = []
    for rank in range(world_size) if ranks is None else ranks:
        for stream in request.get("streams") or ("out", "err"):
            path = os.path.join(rundir, "ranks", f"{rank:04}.{stream}")
            offset = offsets.get(f"{rank}.{stream}")
            if offset is None:
                offset = 0
                if request.get("from") == "end" and os.path.exists(path):
                    offset = os.stat(path).st_size
            output_files.append(FollowedFile(path, rank, stream, offset))
    return output_files


def forward(files: list[FollowedFile], packer: Packer, limit: int = 1 << 60) -> bool:
    has_output = False
    for file in files:
        for data in file.chunks(limit):
            packer.emit(
                event="chunk", rank=file.rank, stream=file.stream, offset=file.offset, data=data.decode("latin-1")
            )
            has_output = True
    return has_output


class StatusWatcher:
    """Changes of the status: a new state of the run or a rank at once, new figures only at an interval."""

    def __init__(self, rundir: str, interval: float) -> None:
        self._rundir, self._interval = rundir, interval
        self._path = os.path.join(rundir, "status.json")
        self._checked_at = self._sent_at = 0.0
        self._modified = 0
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
        self._modified, self._checked_at = changed, now
        stored = self._stored = read_status_file(self._rundir)
        status = stored.status
        since = status.silent.since if status.silent is not None else None
        states: list[object] = [status.state, since, *(rank.state for rank in status.ranks)]
        if states == self._states and not (is_new and now - self._sent_at >= self._interval):
            return stored, False
        self._states, self._sent_at = states, now
        return stored, True


def follow(request: Json, _: object = None) -> Json:
    allow_many_files()
    rundir = os.path.join(os.path.expanduser(request["home"]), "runs", request["id"])
    statuses = StatusWatcher(rundir, float(request.get("figures") or 0.0))
    packer = Packer()
    files: list[FollowedFile] | None = None
    parent, sent_at = os.getppid(), time.monotonic()
    while True:
        now = time.monotonic()
        # The status is read before the files, so that with a final status all output is in the files.
        (status, document), is_changed = statuses.poll(now)
        if is_changed:
            packer.emit(event="status", status=document)
        if files is None:
            files = files_of(request, rundir, status.world_size)
        if not request.get("follow", True):
            forward(files, packer)
            packer.flush()
            return {"status": document}
        has_output = forward(files, packer, MAX_CHUNKS)
        if status.is_over:
            while forward(files, packer, MAX_CHUNKS):
                packer.flush()
            packer.flush()
            return {"status": document}
        if has_output:
            sent_at = now
        elif now - sent_at > TICK_INTERVAL:
            sent_at = now
            packer.emit(event="tick")  # only a write shows that the follower is gone
        packer.flush()
        if os.getppid() != parent:
            raise AgentError("who followed is gone")
        time.sleep(READ_INTERVAL if has_output or status.state == "starting" else IDLE_INTERVAL)


def allow_many_files() -> None:
    """Each rank has two files."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main(action: str) -> int:
    try:
        return answer({"follow": follow}[action])
    except BrokenPipeError:
        return 0
