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
from typing import Any, Dict, Iterator

from ipexctl.node.common.answer import AgentError, answer, emit

LOOK = 0.03
"""Seconds between two looks while output comes, or the first is waited for."""
LOOK_SELDOM = 0.08
TICK = 10.0
PIECE = 48 << 10
ROUND = 16
"""Pieces of one file until the others have their turn, where somebody watches."""
STATUS = 2.0
"""Seconds between two looks whether the supervisor lives."""
UNHEARD = 120.0
"""Seconds without a new status until a supervisor on another machine with this home is taken for dead: where that
machine can't be asked for its processes, its file is all there is, and is written every second or two."""
PACK = 1 << 18
"""Characters that are packed at once."""
FINAL = ("ok", "failed", "stopped", "lost")
Json = Dict[str, Any]


class NoRecord(AgentError):
    """There is nothing of the run, or no more."""


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


def read_status(rundir: str) -> Json:
    """The run's own word, but for a run whose supervisor is gone: that one was lost."""
    path = os.path.join(rundir, "status.json")
    status = written_in(path)
    if status["state"] in FINAL or is_alive(status["supervisor"]):
        return status
    is_ours = status["supervisor"].get("machine") in (None, os.uname().nodename)
    if not is_ours and time.time() - os.stat(path).st_mtime < UNHEARD:
        return status
    status = written_in(path)  # its last word may have come between the two looks
    if status["state"] not in FINAL:
        status.update(state="lost", reason="its supervisor on node0 has died", ended=os.stat(path).st_mtime)
        for row in status["ranks"]:
            if row["state"] not in FINAL:
                row["state"] = "lost"
        if is_ours:
            keep(path, status)
    return status


def written_in(path: str) -> Json:
    try:
        with open(path, encoding="utf-8") as file:
            status: Json = json.load(file)
    except FileNotFoundError:
        raise no_record(os.path.dirname(path)) from None
    except (OSError, ValueError) as error:
        raise AgentError(f"{path} can't be read: {getattr(error, 'strerror', None) or error}") from None
    kinds = {"state": str, "supervisor": dict, "ranks": list}
    if not isinstance(status, dict) or not all(isinstance(status.get(name), kinds[name]) for name in kinds):
        raise AgentError(f"{path} can't be read: it is not the record of a run")
    return status


def pruned_in(place: str) -> dict[str, Json]:
    """Runs that were taken away there, each with when and why, and how it had ended."""
    found: dict[str, Json] = {}
    try:
        with open(os.path.join(place, ".pruned.jsonl"), encoding="utf-8") as file:
            for line in file:
                row = json.loads(line)
                found[row["id"]] = row
    except (OSError, ValueError, KeyError, TypeError):
        pass  # none, or a line that is cut short at the end
    return found


def no_record(rundir: str) -> NoRecord:
    place, run = os.path.split(rundir)
    row = pruned_in(place).get(run)
    if row is None:
        return NoRecord("there is no record of this run there (any more)", "ipexctl ps shows those there are")
    day = time.strftime("%Y-%m-%d", time.localtime(row["at"]))
    return NoRecord(
        f"its logs were pruned on {day}: {row['why']}",
        "IPEXCTL_KEEP_DAYS and IPEXCTL_KEEP_GB say, where ipexctl run is called, how long they are kept",
    )


def keep(path: str, status: Json) -> None:
    """Note it down: whoever looks at the file itself would take the run for one that goes on."""
    aside = f"{path}.{os.getpid()}.part"
    try:
        number = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(number, "w", encoding="utf-8") as file:
            json.dump(status, file)
        os.replace(aside, path)
    except OSError:
        return


def is_alive(supervisor: Json) -> bool:
    """By its number and when it began: numbers come back."""
    try:
        with open(f"/proc/{supervisor['pid']}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return False
    return fields[0] not in (b"Z", b"X") and int(fields[19]) == supervisor["start"]


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


def hand_on(files: list[File], packer: Packer, most: int = 1 << 60) -> bool:
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
        self._states: list[str] = []
        self.now: Json = {}

    def look(self, now: float) -> bool:
        """True where it is to be said."""
        try:
            changed = os.stat(self._path).st_mtime_ns
        except OSError:
            changed = self._seen
        if self.now and changed == self._seen and now - self._looked_at <= STATUS:
            return False
        is_new = changed != self._seen
        self._seen, self._looked_at = changed, now
        self.now = read_status(self._rundir)
        since = (self.now.get("silent") or {}).get("since")
        states = [self.now["state"], str(since), *(row["state"] for row in self.now["ranks"])]
        if states == self._states and not (is_new and now - self._said_at >= self._every):
            return False
        self._states, self._said_at = states, now
        return True


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
        if statuses.look(now):
            packer.say(event="status", status=statuses.now)
        if files is None:
            files = files_of(request, rundir, statuses.now["world_size"])
        if not request.get("follow", True):
            hand_on(files, packer)
            packer.flush()
            return {"status": statuses.now}
        moved = hand_on(files, packer, ROUND)
        if statuses.now["state"] in FINAL:
            while hand_on(files, packer, ROUND):
                packer.flush()
            packer.flush()
            return {"status": statuses.now}
        if moved:
            said_at = now
        elif now - said_at > TICK:
            said_at = now
            packer.say(event="tick")  # who has left is noticed by writing
        packer.flush()
        if os.getppid() != parent:
            raise AgentError("who followed is gone")
        time.sleep(LOOK if moved or statuses.now["state"] == "starting" else LOOK_SELDOM)


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
