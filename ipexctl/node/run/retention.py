"""Removes old runs of this host by age, but never a run that is or may be in progress, or the newest ones.

Ages are those of `run_times.py`. A run without a record of its end may be in progress for as long as RETENTION_LIMITS
say, without a sign of life.

A run is renamed before its files are deleted, so that an interrupted removal leaves no incomplete run; its summary
stays in `runs/.pruned.jsonl`. Copies of its checkpoints that were kept for a resume go with it. Job files of finished
runs contain tokens and secrets, and are removed at once. Ranks can change a run's directory, so everything is reached
from the descriptor of `runs`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import time
from typing import Collection, Mapping

from ipexctl.node.common.answer import AgentError, answer
from ipexctl.node.common.clock import read_clocks
from ipexctl.node.common.files import disk_usage, read_json, write_atomically
from ipexctl.node.common.guarded_directory import GuardedDirectory
from ipexctl.node.common.home import check_home, home_of, open_home
from ipexctl.node.common.home_entries import (
    REMOVED_RUN,
    drop_kept_copies,
    is_run,
    kept_copies,
    list_names,
    release_trees,
)
from ipexctl.node.common.liveness import DAY, RESERVED_FILE, RETENTION_LIMITS, liveness_of
from ipexctl.node.common.node_limits import LOCK_WAIT
from ipexctl.node.common.owners import RemovalRequest, find_foreign
from ipexctl.node.common.plan import PLAN_FILE
from ipexctl.node.common.processes import boot_id, command_lines
from ipexctl.node.common.records import FINAL, read_status
from ipexctl.node.common.store_lock import store_lock
from ipexctl.node.run.run_replies import PrunedRun, PruneReply
from ipexctl.node.run.run_times import read_times, write_times

PRUNED = b".pruned.jsonl"
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
REMEMBERED = 1000
MAX_NAME = 256
SUMMARY_FIELDS = (
    "schema",
    "id",
    "state",
    "started",
    "ended",
    "exit_code",
    "nodes",
    "world_size",
    "script",
    "env",
    "reason",
)


class PruneRunsRequest(RemovalRequest):
    home: str
    days: float
    keep: int
    mine: str | None
    dry_run: bool


class StoredRun:
    def __init__(self, runs_directory: str, name: str) -> None:
        self.name = name
        self.path = runs_directory + "/" + name
        self.document = read_json(self.path + "/status.json")
        self.status = read_status(self.document)
        self.at = self.status.ended or last_write_in(self.path)
        self.bytes = disk_usage(self.path) + disk_usage(kept_copies(self.path))
        self.machine = ""
        """Host that received the job; empty for runs of older versions."""
        with contextlib.suppress(OSError), open(self.path + "/machine", errors="replace") as file:
            self.machine = file.readline(MAX_NAME).strip()

    def may_be_in_progress(self, now: float, active: set[str], age: float) -> bool:
        """Return True if the run is in progress, or may be: it shows no end, for as long as RETENTION_LIMITS say.
        `age`: seconds since it was first seen."""
        if self.name in active or self.status.supervisor.is_alive:  # after its last status, it closes files
            return True
        is_elsewhere = self.machine not in ("", os.uname().nodename)
        liveness = liveness_of(
            self.status if self.document else None,
            min(age, now - last_write_in(self.path)),
            RETENTION_LIMITS,
            has_job=os.path.exists(self.path + "/job.json"),
            is_elsewhere=is_elsewhere or os.path.exists(f"{self.path}/{RESERVED_FILE}"),
        )
        return liveness in ("live", "starting")


def last_write_in(path: str) -> float:
    """Return when the directory, or an entry directly in it, last changed, in seconds since the epoch; 0 if it can't be
    read."""
    times = [0.0]
    with contextlib.suppress(OSError):
        times.append(os.lstat(path).st_mtime)
        times += [entry.stat(follow_symlinks=False).st_mtime for entry in os.scandir(path)]
    return max(times)


def runs_with_processes(runs_directory: str) -> set[str]:
    """Return the runs that the command line or environment of one of this account's processes names."""
    pattern = re.compile(b"(?:" + re.escape(os.fsencode(runs_directory)) + rb"/|\0IPEXCTL_RUN=)([^/\0\s:]+)")
    runs_of_processes = (pattern.findall(b"\0" + text) for _, text in command_lines("environ"))
    return {os.fsdecode(run) for runs in runs_of_processes for run in runs}


def choose_runs(
    runs: list[StoredRun], request: PruneRunsRequest, active: Collection[str], ages: Mapping[str, float]
) -> list[tuple[StoredRun, str]]:
    """Return the runs to remove, oldest first, with reasons. `ages`: run → seconds, in the order in which the runs
    began."""
    days = request["days"]
    order = {name: number for number, name in enumerate(ages)}
    ordered = sorted(runs, key=lambda run: (ages[run.name], -order[run.name]))
    removable = [run for run in ordered[request["keep"] :] if run.name != request["mine"] and run.name not in active]
    return [(run, f"older than {days:g} days") for run in reversed(removable) if ages[run.name] >= days * DAY]


def remove(runs_directory: GuardedDirectory, run: StoredRun, reason: str, now: float) -> bool:
    """Rename the run, then delete its files. If the disk is full, the summary is written after that."""
    name, removed, line = os.fsencode(run.name), os.fsencode(f".gone-{run.name}"), ""
    if run.document:
        summary = {name: run.document[name] for name in SUMMARY_FIELDS if name in run.document}
        if summary.get("state") not in FINAL:
            summary["state"] = "lost"
        line = json.dumps({"id": run.name, "at": round(now), "why": reason, "status": summary})
    is_noted = not line or append_line(runs_directory, line)
    try:
        runs_directory.rename(runs_directory.number, name, removed)
    except OSError:
        return False
    runs_directory.remove_tree(removed, ignore_errors=True)
    if not is_noted:
        append_line(runs_directory, line)
    drop_kept_copies(run.path)
    release_trees(run.path)
    return True


def append_line(runs_directory: GuardedDirectory, line: str) -> bool:
    """Append a line. Return False if the disk or the quota is full.

    A newline goes first, because a full disk may have cut off the line before.
    """
    data = f"\n{line}\n".encode()
    try:
        number = os.open(PRUNED, _APPEND, 0o600, dir_fd=runs_directory.number)
        with open(number, "ab", buffering=0) as file:
            return file.write(data) == len(data)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return False


def clean_up(runs_directory: GuardedDirectory) -> None:
    """Finish removals that were interrupted, and shorten the list of removed runs once it is longer than twice
    REMEMBERED."""
    for name in runs_directory.names():
        if REMOVED_RUN.fullmatch(os.fsdecode(name)):
            runs_directory.remove_tree(name, ignore_errors=True)
    with contextlib.suppress(OSError):
        with open(runs_directory.open_to_read(PRUNED), "rb") as file:
            lines = [line for line in file if line.strip()]
        if len(lines) > 2 * REMEMBERED:
            path = f"{runs_directory.anchor}/{os.fsdecode(PRUNED)}"
            write_atomically(path, b"".join(lines[-REMEMBERED:]), durable=False)


_JOB_FILE = re.compile(r"job(\.\d+)?\.json(\.part)?")


def remove_job_files(runs_directory: GuardedDirectory, runs: list[StoredRun], active: Collection[str]) -> None:
    """Remove the job files of finished runs, which a killed call or killed ranks may have left."""
    for run in runs:
        names = [name for name in list_names(run.path) if _JOB_FILE.fullmatch(name)]
        if names and run.name not in active:
            with contextlib.suppress(OSError, AgentError), runs_directory.enter(os.fsencode(run.name)) as directory:
                for name in names:
                    directory.unlink(os.fsencode(name))


def prune(request: PruneRunsRequest) -> PruneReply:
    """Remove old runs, and return which, and which stay. With `dry_run`, only say which would go.

    Runs that others began go only with `force`. Without a home, the reply is empty.
    """
    home, now = home_of(request, "runs"), time.time()
    exists = check_home(home) if request["dry_run"] else open_home(home)
    runs_directory = os.path.join(home, "runs")
    if not exists or not os.path.isdir(runs_directory):
        return PruneReply((), 0, 0)
    with store_lock(runs_directory + "/.prune.lock", lambda seconds: seconds < LOCK_WAIT):
        names = list_names(runs_directory)
        runs = [StoredRun(runs_directory, name) for name in names if is_run(f"{runs_directory}/{name}")]
        times = read_times(runs_directory).look(
            read_clocks(boot_id() or ""), [run.name for run in sorted(runs, key=lambda run: run.at)]
        )
        living = runs_with_processes(runs_directory)
        active = {run.name for run in runs if run.may_be_in_progress(now, living, times.ages[run.name])}
        plans = {run.name: read_json(f"{run.path}/{PLAN_FILE}") for run in runs}
        owners = {run.name: run.by for run in find_foreign("run", plans, request)}
        own = [run for run in runs if run.name not in owners]
        to_remove = choose_runs(own, request, active, times.ages)
        newest = len(choose_runs(own, {**request, "keep": 0}, active, times.ages)) - len(to_remove)
        of_others = choose_runs([run for run in runs if run.name in owners], request, active, times.ages)
        if request["force"]:
            to_remove, of_others = to_remove + of_others, []
        if not request["dry_run"]:
            with GuardedDirectory.open(os.path.realpath(runs_directory)) as opened:
                clean_up(opened)
                write_times(runs_directory, times.renew(active))
                remove_job_files(opened, runs, active)
                to_remove = [(run, reason) for run, reason in to_remove if remove(opened, run, reason, now)]
    removed = {run.name for run, _ in to_remove}
    kept = [run.bytes for run in runs if run.name not in removed]
    pruned, foreign = (
        tuple(PrunedRun(run.name, run.bytes, reason, owners.get(run.name)) for run, reason in chosen)
        for chosen in (to_remove, of_others)
    )
    return PruneReply(pruned, len(kept), sum(kept), foreign, newest)


def main(action: str) -> int:
    """Answer the agent's call `prune`, and return its exit code."""
    return answer({"prune": lambda request, _: prune(request)}[action])
