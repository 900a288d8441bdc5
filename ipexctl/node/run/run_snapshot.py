"""What a run's directory on node0 tells of how it ended: status, events, the last lines of every rank and of mpirun.

    read  {home, id, copy} → {"event": "done", "status", "now", "boot", "plan": {…}, "mpirun": [line, …],
                              "supervise": [line, …], "events": [{…}, …], "texts": {key: base64 of zlib},
                              "ranks": {"0": {"out": key, "err": key}, …}}

With `copy` the directory is what
was brought from node0 earlier: its status is taken as it stands, and `now` is when it was written. What several ranks
have printed alike crosses the wire once. A line is as a terminal would end up showing it, and cut where it is endless.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
import zlib
from typing import TYPE_CHECKING, Any, Dict

from ipexctl.node.common.answer import answer
from ipexctl.node.run.status_file import read_document, read_status_file

if TYPE_CHECKING:
    from ipexctl.node.common.records import RunStatus
    from ipexctl.node.run.status_file import StoredStatus

MUCH = 8 << 20
"""Bytes read back of a rank that failed: one line may be a megabyte."""
SOME = 256 << 10
"""The same of any other rank, where they are few."""
ALL = 32 << 20
"""The same of all others together."""
LEAST = 4 << 10
LINES, FEW_LINES = 400, 120
LONGEST = 2000
"""Bytes of a line that are kept."""
EVENTS = 400
KEPT = ("backend", "flavor", "python", "command", "cwd", "env", "dtype_hint", "install")
FINAL_BADLY = ("failed", "lost")
Json = Dict[str, Any]


def last_state(line: bytes) -> bytes:
    """What a terminal would show of a line that `\\r` took back to its beginning."""
    bare = line.rstrip(b"\r")
    return bare[bare.rfind(b"\r") + 1 :]


def clipped(line: bytes, longest: int = LONGEST) -> bytes:
    if len(line) <= longest:
        return line
    half = longest // 2
    return line[:half] + b" [... %d bytes ...] " % (len(line) - 2 * half) + line[-half:]


def tail(path: str, most: int, lines: int) -> list[bytes]:
    """The last lines of a file; none where it isn't there."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = max(0, size - most)
            file.seek(start)
            data = file.read(most)
    except OSError:
        return []
    found = data.split(b"\n")
    if not found[-1]:
        found.pop()
    if start and len(found) > 1:  # the first may have begun before
        found = found[1:]
    return [clipped(last_state(line)) for line in found[-lines:]]


def text_lines(path: str, lines: int = 80) -> list[str]:
    return [line.decode(errors="replace") for line in tail(path, SOME, lines)]


def events_of(path: str) -> list[Json]:
    """What has happened, the oldest first; where there is too much of it, both ends."""
    found = []
    for line in tail(path, MUCH, 100000):
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            found.append(event)
    half = EVENTS // 2
    return found if len(found) <= EVENTS else found[:half] + found[-half:]


def plan_of(path: str) -> Json:
    try:
        with open(path, encoding="utf-8") as file:
            plan = json.load(file)
        tiers = {host["name"]: host.get("tier") for host in plan.get("hosts") or ()}
        return {"tiers": tiers, **{name: plan.get(name) for name in KEPT}}
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return {}


def boot_time() -> float | None:
    """When this machine was started, in seconds since the epoch."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            return next((float(line.split()[1]) for line in file if line.startswith("btime ")), None)
    except (OSError, ValueError, IndexError):
        return None


def read_copy(path: str) -> tuple[StoredStatus, float]:
    """The status as it was last seen, and when: whether its run lives can't be known on this machine."""
    stored = read_document(path)
    return stored, os.stat(path).st_mtime


def suspects(status: RunStatus) -> list[int]:
    """The ranks whose output may say why the run ended; more of it is read."""
    first = status.first_failure.rank if status.first_failure is not None else None
    ranks = [row.rank for row in status.ranks if row.state in FINAL_BADLY]
    return sorted(ranks, key=lambda rank: rank != first)[:16]


def read(request: Json, _: object = None) -> Json:
    rundir = os.path.join(os.path.expanduser(request["home"]), "runs", request["id"])
    now = time.time()
    if request.get("copy"):
        (status, document), now = read_copy(os.path.join(rundir, "status.json"))
    else:
        status, document = read_status_file(rundir)
    ranks = [row.rank for row in status.ranks]
    chief = set(suspects(status))
    each = max(LEAST, min(SOME, ALL // max(1, 2 * len(ranks))))
    texts: dict[str, str] = {}
    found: Json = {}
    for rank in ranks:
        most, lines = (MUCH, LINES) if rank in chief else (each, FEW_LINES)
        found[str(rank)] = {}
        for name in ("out", "err"):
            said = b"\n".join(tail(os.path.join(rundir, "ranks", f"{rank:04}.{name}"), most, lines))
            key = hashlib.sha256(said).hexdigest()[:16]
            if key not in texts:
                texts[key] = base64.b64encode(zlib.compress(said)).decode()
            found[str(rank)][name] = key
    return {
        "status": document,
        "now": now,
        "boot": None if request.get("copy") else boot_time(),
        "plan": plan_of(os.path.join(rundir, "plan.json")),
        "mpirun": text_lines(os.path.join(rundir, "mpirun.log")),
        "supervise": text_lines(os.path.join(rundir, "supervise.log"), 30),
        "events": events_of(os.path.join(rundir, "events.jsonl")),
        "texts": texts,
        "ranks": found,
    }


def main(action: str) -> int:
    return answer({"read": read}[action])
