"""Old runs on this host, taken away: by age and by what they take, never one that goes on, never the newest.

    prune  {home, days, gb, keep, mine: id or null, dry_run}
        → {"event": "done", "pruned": [{"id", "bytes", "why"}, …], "kept": runs, "bytes": of those}

What is known of a run that was pruned stays, a line each, in
`runs/.pruned.jsonl`.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import re
import shutil
import time
from typing import Any, Dict

from ipexctl.node.common.answer import AgentError, answer
from ipexctl.node.common.records import FINAL, read_status

YOUNG = 3600.0
"""Seconds in which a run that has no supervisor yet may be about to get one."""
DAY = 86400.0
SILENT = 30 * DAY
"""Without a word in its status a run whose supervisor is on another machine is given up: it writes every second."""
REMEMBERED = 1000
TOLD = ("schema", "id", "state", "started", "ended", "exit_code", "nodes", "world_size", "script", "env", "reason")
Json = Dict[str, Any]


class Run:
    """One directory of `runs`."""

    def __init__(self, place: str, name: str) -> None:
        self.name = name
        self.path = place + "/" + name
        self.document: Json = {}
        with contextlib.suppress(OSError, ValueError), open(self.path + "/status.json", encoding="utf-8") as file:
            found = json.load(file)
            self.document = found if isinstance(found, dict) else {}
        self.status = read_status(self.document)
        self.at = self.status.ended or newest_below(self.path)
        self.bytes = size_of(self.path)

    def goes_on(self, now: float, living: set[str]) -> bool:
        """Also where it can't be known."""
        if self.name in living:
            return True
        if not self.document:
            # On other nodes than node0 there is no status: processes are all there is to go by, and its job file.
            within = DAY if os.path.exists(self.path + "/job.json") else YOUNG
            return now - self.at < within
        if self.status.supervisor.is_of_this_machine:
            return self.status.supervisor.is_alive
        return not self.status.is_over and now - newest_below(self.path) < SILENT


def newest_below(path: str) -> float:
    """When something was last written there."""
    times = [0.0]
    with contextlib.suppress(OSError):
        times.append(os.lstat(path).st_mtime)
        times += [entry.stat(follow_symlinks=False).st_mtime for entry in os.scandir(path)]
    return max(times)


def size_of(path: str) -> int:
    size = 0
    for where, _, files in os.walk(path):
        for name in files:
            with contextlib.suppress(OSError):
                size += os.lstat(os.path.join(where, name)).st_blocks * 512
    return size


def living_in(place: str) -> set[str]:
    """The runs that some process of ours here has in its command line or its environment."""
    pattern = re.compile(b"(?:" + re.escape(os.fsencode(place)) + rb"/|\0IPEXCTL_RUN=)([^/\0\s:]+)")
    found: set[str] = set()
    for number in os.listdir("/proc"):
        if not number.isdigit() or int(number) == os.getpid():
            continue
        for name in ("cmdline", "environ"):
            with contextlib.suppress(OSError), open(f"/proc/{number}/{name}", "rb") as file:
                found.update(os.fsdecode(each) for each in pattern.findall(b"\0" + file.read()))
    return found


def chosen(runs: list[Run], request: Json, living: set[str], now: float) -> list[tuple[Run, str]]:
    """Which go, and why: the newest stay, and then the oldest go first. No run that goes on is among them."""
    days, most = float(request["days"]), float(request["gb"]) * 1e9
    ordered = sorted(runs, key=lambda run: run.at, reverse=True)
    may_go = [
        run
        for run in ordered[int(request["keep"]) :]
        if run.name != request.get("mine") and not run.goes_on(now, living)
    ]
    total = sum(run.bytes for run in runs)
    gone: list[tuple[Run, str]] = []
    for run in reversed(may_go):
        if now - run.at > days * DAY:
            gone.append((run, f"older than {days:g} days"))
        elif total > most:
            gone.append((run, f"all runs took more than {float(request['gb']):g} GB"))
        else:
            continue
        total -= run.bytes
    return gone


def remove(place: str, run: Run, why: str, now: float) -> bool:
    """First its name, at once, then what is in it."""
    aside = f"{place}/.gone-{run.name}"
    if run.document:
        told = {name: run.document[name] for name in TOLD if name in run.document}
        if told.get("state") not in FINAL:
            told["state"] = "lost"
        line = json.dumps({"id": run.name, "at": round(now), "why": why, "status": told})
        number = os.open(place + "/.pruned.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(line + "\n")
    try:
        os.rename(run.path, aside)
    except OSError:
        return False
    shutil.rmtree(aside, ignore_errors=True)
    for lease in glob.glob(f"{glob.escape(os.path.dirname(place))}/code/*/.ipexctl/leases/{glob.escape(run.name)}"):
        with contextlib.suppress(OSError):
            os.unlink(lease)
    return True


def tidy(place: str) -> None:
    """What an earlier call did not get to the end of, and the list of those that are gone, kept short."""
    for left in glob.glob(glob.escape(place) + "/.gone-*"):
        shutil.rmtree(left, ignore_errors=True)
    path = place + "/.pruned.jsonl"
    with contextlib.suppress(OSError):
        with open(path, encoding="utf-8") as file:
            lines = file.readlines()
        if len(lines) > 2 * REMEMBERED:
            number = os.open(path + ".part", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(number, "w", encoding="utf-8") as file:
                file.writelines(lines[-REMEMBERED:])
            os.replace(path + ".part", path)


def prune(request: Json) -> Json:
    place, now = os.path.join(os.path.expanduser(request["home"]), "runs"), time.time()
    try:
        names = [entry.name for entry in os.scandir(place) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return {"pruned": [], "kept": 0, "bytes": 0}
    lock = os.open(place + "/.prune.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(OSError):
        fcntl.lockf(lock, fcntl.LOCK_EX)
    runs = [Run(place, name) for name in names if not name.startswith(".")]
    going = chosen(runs, request, living_in(place), now)
    if not request.get("dry_run"):
        tidy(place)
        going = [(run, why) for run, why in going if remove(place, run, why, now)]
    gone = {run.name for run, _ in going}
    kept = [run.bytes for run in runs if run.name not in gone]
    said = [{"id": run.name, "bytes": run.bytes, "why": why} for run, why in going]
    return {"pruned": said, "kept": len(kept), "bytes": sum(kept)}


def prune_runs(request: Json, _: object) -> Json:
    try:
        return prune(request)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise AgentError(f"{where}{error.strerror or error}") from None


def main(action: str) -> int:
    return answer({"prune": prune_runs}[action])
