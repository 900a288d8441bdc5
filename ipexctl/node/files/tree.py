"""A project's tree on this host: its state, and the runs that use it. `tree_upload` changes it.

A tree is HOME/code/<project>, with further generations next to it. Its directory `.ipexctl` has `state.json` (files
sync wrote), `pending.json` (an update in progress), `leases` (runs that use the tree) and `stage` (contents by hash,
not yet in place; much content is stored there before the update). Only one sync at a time (`ProjectTree.lock`). A run
uses its tree until `has_ended`, by the LEASE_LIMITS of `liveness.py`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import stat
import sys
import time
from typing import TYPE_CHECKING, Any, Iterator, NamedTuple

from ipexctl.node.common.answer import AgentError, Json
from ipexctl.node.common.clock import seconds_since
from ipexctl.node.common.files import (
    decode_name,
    encode_name,
    make_private_directory,
    read_json,
    remove_file,
    sha256_of,
    write_json_atomically,
)
from ipexctl.node.common.guarded_directory import open_own
from ipexctl.node.common.home import STATE_DIRECTORY, make_home
from ipexctl.node.common.liveness import LEASE_LIMITS, RESERVED_FILE, liveness_of
from ipexctl.node.common.node_limits import LOCK_WAIT
from ipexctl.node.common.processes import boot_id, command_lines
from ipexctl.node.common.store_lock import store_lock
from ipexctl.node.files.call_replies import Generation, TreesReply
from ipexctl.node.files.file_stream import SHA256
from ipexctl.node.files.manifest import ManifestEntry, identity_of

if TYPE_CHECKING:
    from ipexctl.node.files.call_requests import TreeRequest

START_TIME = 600.0
STAGE = "stage"
MAX_PATHS = 20
"""Of each list in a reply."""
WORTH_READING = 64 << 20
"""Larger files with a new mtime count as changed unread, where only a message depends on it."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


class TreeRow(NamedTuple):
    entry: ManifestEntry
    identity: list[int] | None = None
    """Size, mtime in ns and inode at the sync; None if it differs from the project's file."""
    is_from_sync: bool = False

    @classmethod
    def of(cls, row: list[Any]) -> TreeRow:
        """Return the row of `state.json`."""
        return cls(ManifestEntry(*row[:5]), *row[5:7])

    def to_json(self) -> list[object]:
        """Return the row as in `state.json`."""
        return [*self.entry[:5], self.identity, self.is_from_sync]


def lstat_or_none(path: bytes) -> os.stat_result | None:
    """Return the status of a path without following a link at its end; None if nothing is there."""
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _stamp_of(path: bytes) -> tuple[int, ...]:
    """Return the identity of a file's content, empty if it is missing. NFS looks at the server's file only when it is
    opened."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return ()
    try:
        status = os.fstat(number)
    finally:
        os.close(number)
    return (*identity_of(status), status.st_ctime_ns)


def is_below(path: str, directories: list[str]) -> bool:
    """Return True if the path is one of the directories, or below one."""
    return bool(directories) and any(path == above or path.startswith(above + "/") for above in directories)


def tree_directory(project: str, generation: int) -> str:
    """Return the name of a tree's directory; the first generation has the project's own name."""
    return f"{project}.gen{generation}" if generation > 1 else project


class ProjectTree:
    def __init__(self, home: bytes, project: str, generation: int) -> None:
        if not _NAME.fullmatch(project):
            raise AgentError(f"{project!r} can't be the name of a tree")
        self.home, self.generation = home, generation
        self.path = b"%s/code/%s" % (home, encode_name(tree_directory(project, generation)))
        self.state_directory = self.path + b"/" + encode_name(STATE_DIRECTORY)
        self.stage = self.state_directory + b"/" + encode_name(STAGE)
        self.leases = self.state_directory + b"/leases"
        self._stamps: list[tuple[int, ...]] = []
        self.load()

    def load(self) -> None:
        """Read the state again if another process may have changed it."""
        files = [self.state_directory + name for name in (b"/state.json", b"/pending.json")]
        stamps = list(map(_stamp_of, files))
        if stamps == self._stamps:
            return
        self._stamps = stamps
        state, pending = map(read_json, files)
        self.digest = state.get("digest")
        self.rows = {row[0]: TreeRow.of(row) for row in state.get("rows", [])}
        self.pending = [ManifestEntry(*row[:5]) for row in pending.get("rows", [])]
        """Paths a sync was about to write; left there if it was killed."""

    def path_of(self, path: str) -> bytes:
        """Return the absolute path of an entry."""
        return self.path + b"/" + encode_name(path)

    def exists(self) -> bool:
        """Return True if a sync has made the tree."""
        return os.path.isdir(self.state_directory)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the tree alone, with its newest state, in the block; make the tree if it is missing.

        Raises an AgentError if another sync holds it for more than LOCK_WAIT seconds.
        """
        make_home(decode_name(self.home))
        make_private_directory(self.leases)
        busy = AgentError(f"another sync of {decode_name(self.path)} is at work", "wait for it, then run it again")

        def wait(seconds: float) -> bool:
            if seconds > LOCK_WAIT:
                raise busy
            return True

        with store_lock(decode_name(self.state_directory) + "/lock", wait):
            self.load()
            yield

    def filesystem_time(self) -> float:
        """Return the time by the filesystem's clock, possibly another machine's: a lock is touched every few
        seconds."""
        lock = lstat_or_none(self.state_directory + b"/lock")
        return time.time() if lock is None else lock.st_mtime

    def runs(self) -> list[str]:
        """Return the runs that have a lease on the tree, whether or not they have ended."""
        with contextlib.suppress(OSError):
            return [decode_name(name) for name in sorted(os.listdir(self.leases)) if not name.startswith(b".")]
        return []

    def active_runs(self, own_run: str | None, ended: list[str]) -> list[str]:
        """Return the other runs that use the tree. `ended`: runs that the caller knows to be over."""
        runs_with_programs.cache_clear()
        return [run for run in self.runs() if run != own_run and run not in ended and not has_ended(self, run)]

    def lease(self, run: str | None) -> None:
        """Note that a run uses the tree. Without a run, do nothing."""
        if run:
            make_private_directory(self.leases)
            lease = {"boot": boot_id(), "machine": os.uname().nodename, "made": time.time()}
            write_json_atomically(self.leases + b"/" + encode_name(run), lease, durable=False)

    def release(self, run: str | None) -> None:
        """Note that a run uses the tree no more. Without a run, do nothing."""
        if run:
            remove_file(self.leases + b"/" + encode_name(run))

    def is_unchanged(self, row: TreeRow, status: os.stat_result | None) -> bool:
        """Return True if what is at the row's path is as the sync wrote it. Files are not read. `status`: None if
        nothing is there."""
        if status is None or not row.identity:
            return False
        if row.entry.kind != "f":
            return self.has_content(row.entry, status)
        return stat.S_ISREG(status.st_mode) and identity_of(status) == row.identity

    def has_content(self, entry: ManifestEntry, status: os.stat_result) -> bool:
        """Return True if what is at the entry's path is the entry. A file of the right size is read for that."""
        if entry.kind == "d":
            return stat.S_ISDIR(status.st_mode)
        path = self.path_of(entry.path)
        if entry.kind == "l":
            return stat.S_ISLNK(status.st_mode) and decode_name(os.readlink(path)) == entry.content
        return stat.S_ISREG(status.st_mode) and status.st_size == entry.size and sha256_of(path) == entry.content

    def check(self, data: list[str]) -> tuple[int, list[str], list[str]]:
        """Compare the tree with its state, except `data`. Return the number of missing files, those that the host
        changed, and those that were never written, because the host has its own."""
        gone = 0
        kept: list[str] = []
        blocked: list[str] = []
        for path, row in self.rows.items():
            if is_below(path, data):
                continue
            status = lstat_or_none(self.path_of(path))
            if status is None:
                gone += 1
            elif self.is_unchanged(row, status):
                continue
            elif status.st_size > WORTH_READING or not self.has_content(row.entry, status):
                (kept if row.is_from_sync else blocked).append(path)
        return gone, kept, blocked


def record_of(tree: ProjectTree, run: str) -> Json:
    """Return the status of a run; empty if its supervisor is on another host or has not started."""
    return read_json(tree.home + b"/runs/" + encode_name(run) + b"/status.json")


def has_ended(tree: ProjectTree, run: str) -> bool:
    """Return True if a run ended: by its status if that is here, else by its remaining files and processes."""
    from ipexctl.node.common.records import read_status  # 5 ms, and most trees have no lease

    lease, document = read_json(tree.leases + b"/" + encode_name(run)), record_of(tree, run)
    rundir = tree.home + b"/runs/" + encode_name(run)
    has_job = any(os.path.exists(rundir + b"/" + encode_name(name)) for name in ("job.json", RESERVED_FILE))
    is_elsewhere = lease.get("machine", os.uname().nodename) != os.uname().nodename
    if not document:
        if encode_name(run) in runs_with_programs():
            return False
        if has_job and not is_elsewhere and lease.get("boot") != boot_id():
            return True
    names = (b"/status.json",) if document else (b"/agent.zip", b"/job.json")
    newest = next(filter(None, (lstat_or_none(rundir + name) for name in names)), None)
    if newest is None:
        return seconds_since(float(lease.get("made") or 0)) > START_TIME
    age, status = tree.filesystem_time() - newest.st_ctime, read_status(document) if document else None
    liveness = liveness_of(status, age, LEASE_LIMITS, has_job=has_job, is_elsewhere=is_elsewhere)
    return liveness not in ("live", "starting")


def remove_job_files(home: bytes, ended: list[str]) -> None:
    """Remove tokens and secrets of runs that never start, because their call was killed before it could."""
    for run in ended:
        if _NAME.fullmatch(run) and encode_name(run) not in runs_with_programs():
            remove_file(home + b"/runs/" + encode_name(run) + b"/job.json")


@functools.lru_cache(maxsize=None)
def runs_with_programs() -> list[bytes]:
    """Return the runs with a rank, starter or supervisor on this host, by the paths in command lines. The answer is
    cached.

    A supervisor waits for its orders before there is a job file, while tree and hosts are checked.
    """
    if not os.path.isdir("/proc/self"):
        return []
    pattern = re.compile(rb"/runs/([^/\0]+)/agent\.zip\0run\.(?:rank|supervisor|host_starter)(?:\0|$)")
    return [run for _, line in command_lines() for run in pattern.findall(line)]


def store_token(home: bytes, *, make: bool) -> str | None:
    """Return the token shared by all hosts with this home; None if there is none, also with `make` if none can be made.
    It is the target of a dangling link, because creating one is atomic on NFS too."""
    link = home + b"/code/.store"
    with contextlib.suppress(OSError):
        if make:
            make_home(decode_name(home))
            make_private_directory(home + b"/code")
            with open_own(decode_name(home) + "/code") as code, contextlib.suppress(FileExistsError):
                code.link_to(os.urandom(16).hex().encode(), b".store", replace=False)
        return decode_name(os.readlink(link))
    return None


def generations(home: bytes, project: str) -> list[ProjectTree]:
    """Return the project's trees on this host. The first generation is always among them, even if it does not exist
    yet."""
    trees = [ProjectTree(home, project, 1)]
    with contextlib.suppress(OSError):
        names = [decode_name(name) for name in os.listdir(home + b"/code")]
        numbers = [name[len(project) + 4 :] for name in names if name.startswith(project + ".gen")]
        trees += [ProjectTree(home, project, int(n)) for n in sorted(numbers) if n.isdigit() and int(n) > 1]
    return trees


def inspect(trees: list[ProjectTree], request: TreeRequest) -> TreesReply:
    """Describe the project's trees. If one is as the request wants it, and no other run uses it, note that the
    request's run uses it."""
    home, digest = trees[0].home, request["digest"]
    own_run, ended = request["lease"], request["ended"]
    described: list[Generation] = []
    leased = False
    for tree in trees:
        if not tree.exists():
            continue
        kept: list[str] = []
        blocked: list[str] = []
        with tree.lock() if own_run and tree.digest == digest and not leased else contextlib.nullcontext():
            is_whole = tree.digest == digest and not tree.pending
            if is_whole:
                gone, kept, blocked = tree.check(request["data"])
                is_whole = not gone
            held = tree.active_runs(own_run, ended)
            if is_whole and not leased and not held:  # another run of the same files would share their paths
                tree.lease(own_run)
                leased = bool(own_run)
        staged: list[str] = []
        with contextlib.suppress(OSError):
            staged = [decode_name(name) for name in os.listdir(tree.stage) if SHA256.fullmatch(decode_name(name))]
        described.append(
            Generation(
                tree.generation,
                decode_name(tree.path),
                tree.digest,
                is_whole,
                held=tuple(held),
                ended=tuple(run for run in tree.runs() if record_of(tree, run) and has_ended(tree, run)),
                staged=tuple(staged),
                kept=tuple(kept[:MAX_PATHS]),
                blocked=tuple(blocked[:MAX_PATHS]),
            )
        )
    token = store_token(home, make=not request["dry_run"])
    return TreesReply(decode_name(home), token, sys.executable, tuple(described))
