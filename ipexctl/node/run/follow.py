"""What a run says, as it says it: its output by offset and its status, as lines of JSON, until it has ended.

    follow  {home, id, offsets: {"0.out": N, …} or null, from: "start" | "end", ranks: [N, …] or null, streams, follow,
             figures: seconds between two statuses where only figures change}
        → {"event": "packed", "data": base64 of the next piece of one zlib stream, of lines of JSON}, in which there are
            {"event": "chunk", "rank", "stream", "offset", "data": its bytes as latin-1}
            {"event": "status", "status"}, {"event": "tick"}
        → {"event": "done", "status"}

It reads the run's directory and nothing else: the run doesn't know who follows.
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

LOOK = 0.03
"""Seconds between two looks while output comes, or the first is waited for."""
LOOK_SELDOM = 0.08
TICK = 10.0
PIECE = 48 << 10
ROUND = 16
"""Pieces of one file until the others have their turn, where somebody watches."""
STATUS = 2.0
"""Seconds between two looks whether the supervisor lives."""
PACK = 1 << 18
"""Characters that are packed at once."""
Json = Dict[str, Any]


class File:
    """One stream of one rank."""

    def __init__(self, path: str, rank: int, stream: str, offset: int) -> None:
        self.rank, self.stream, self.offset = rank, stream, offset
        self._path = path
        self._number = -1

    def pieces(self, most: int) -> Iterator[bytes]:
        """What has come since, in pieces."""
        if self._number < 0:
            try:
                self._number = os.open(self._path, os.O_RDONLY)
            except FileNotFoundError:
                return
            except OSError as error:
                raise AgentError(f"{self._path} can't be read: {error.strerror}") from None
        while most > 0 and os.fstat(self._number).st_size > self.offset:
            most -= 1
            data = os.pread(self._number, PIECE, self.offset)
            if not data:
                return
            yield data
            self.offset += len(data)


class Packer:
    """What is said, many words at a time: lines of ranks are much alike, and the link to who follows may be slow."""

    def __init__(self) -> None:
        self._zlib = zlib.compressobj(1)
        self._waiting: list[str] = []
        self._size = 0

    def say(self, **fields: Any) -> None:
        line = json.dumps(fields) + "\n"
        self._waiting.append(line)
        self._size += len(line)
        if self._size >= PACK:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            data = self._zlib.compress("".join(self._waiting).encode()) + self._zlib.flush(zlib.Z_SYNC_FLUSH)
            self._waiting, self._size = [], 0
            emit("packed", data=base64.b64encode(data).decode())


def files_of(request: Json, rundir: str, world_size: int) -> list[File]:
    offsets = request.get("offsets") or {}
    ranks = request.get("ranks")
    found = []
    for rank in range(world_size) if ranks is None else ranks:
        for stream in request.get("streams") or ("out", "err"):
            path = os.path.join(rundir, "ranks", f"{rank:04}.{stream}")
            offset = offsets.get(f"{rank}.{stream}")
            if offset is None:
                offset = 0
                if request.get("from") == "end" and os.path.exists(path):
                    offset = os.stat(path).st_size
            found.append(File(path, rank, stream, offset))
    return found


def forward(files: list[File], packer: Packer, most: int = 1 << 60) -> bool:
    moved = False
    for file in files:
        for data in file.pieces(most):
            packer.say(
                event="chunk", rank=file.rank, stream=file.stream, offset=file.offset, data=data.decode("latin-1")
            )
            moved = True
    return moved


class Statuses:
    """The status as it changes: at once where the run or a rank did, now and then where only figures did."""

    def __init__(self, rundir: str, every: float) -> None:
        self._rundir, self._every = rundir, every
        self._path = os.path.join(rundir, "status.json")
        self._looked_at = self._said_at = 0.0
        self._seen = 0
        self._states: list[object] = []
        self._stored: StoredStatus | None = None

    def look(self, now: float) -> tuple[StoredStatus, bool]:
        """The status, and whether it is to be sent."""
        try:
            changed = os.stat(self._path).st_mtime_ns
        except OSError:
            changed = self._seen
        if self._stored is not None and changed == self._seen and now - self._looked_at <= STATUS:
            return self._stored, False
        is_new = changed != self._seen
        self._seen, self._looked_at = changed, now
        stored = self._stored = read_status_file(self._rundir)
        status = stored.status
        since = status.silent.since if status.silent is not None else None
        states: list[object] = [status.state, since, *(rank.state for rank in status.ranks)]
        if states == self._states and not (is_new and now - self._said_at >= self._every):
            return stored, False
        self._states, self._said_at = states, now
        return stored, True


def follow(request: Json, _: object = None) -> Json:
    allow_many_files()
    rundir = os.path.join(os.path.expanduser(request["home"]), "runs", request["id"])
    statuses = Statuses(rundir, float(request.get("figures") or 0.0))
    packer = Packer()
    files: list[File] | None = None
    parent, said_at = os.getppid(), time.monotonic()
    while True:
        now = time.monotonic()
        # The status first and the files after it: what a final status stands for is in the files by then.
        (status, document), is_news = statuses.look(now)
        if is_news:
            packer.say(event="status", status=document)
        if files is None:
            files = files_of(request, rundir, status.world_size)
        if not request.get("follow", True):
            forward(files, packer)
            packer.flush()
            return {"status": document}
        moved = forward(files, packer, ROUND)
        if status.is_over:
            while forward(files, packer, ROUND):
                packer.flush()
            packer.flush()
            return {"status": document}
        if moved:
            said_at = now
        elif now - said_at > TICK:
            said_at = now
            packer.say(event="tick")  # who has left is noticed by writing
        packer.flush()
        if os.getppid() != parent:
            raise AgentError("who followed is gone")
        time.sleep(LOOK if moved or status.state == "starting" else LOOK_SELDOM)


def allow_many_files() -> None:
    """Two files a rank."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main(action: str) -> int:
    try:
        return answer({"follow": follow}[action])
    except BrokenPipeError:
        return 0
