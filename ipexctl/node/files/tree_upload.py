"""Updates a project's tree on this host without changing files that runs wrote into it.

- A file that sync wrote is updated, or deleted with the project's, if it is unchanged since.
- If it was changed here, it stays while the project's file is the same; once that changes too, the host's file is kept
  as NAME.node-1.
- A file that no sync wrote is never touched: the report lists it, and the project's file is not written.
- A directory of `--data` stays as it is; a later sync without `--data` still knows which of its files are from sync.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import signal
import stat
from typing import BinaryIO, Callable, Iterator, NoReturn

from ipexctl.node.common.answer import AgentError, answer
from ipexctl.node.common.files import decode_name, encode_name, write_json_atomically
from ipexctl.node.common.guarded_directory import DirectoryChain, GuardedDirectory, blocks_of, open_own, write_all
from ipexctl.node.common.home import home_of
from ipexctl.node.common.home_entries import STATE_DIRECTORY, is_stored
from ipexctl.node.common.limits import UPLOAD_SILENCE
from ipexctl.node.common.liveness import DAY
from ipexctl.node.files.file_stream import CHUNK, ByteStream, ManifestEntry, identity_of, read_files, unpack_entries
from ipexctl.node.files.replies import Generation, PutReply, TreeChanges, TreesReply
from ipexctl.node.files.tree import (
    SHA256,
    ProjectTree,
    TreeRequest,
    TreeRow,
    describe,
    generations,
    has_ended,
    inspect,
    is_below,
    lstat_or_none,
)

MAX_PATHS = 20
_STATE = encode_name(STATE_DIRECTORY)
_STAGE, _NEXT = b"stage", b"next"
_CHANGED = "a file of the project changed while it was sent"


class PutRequest(TreeRequest):
    generation: int
    blobs: list[str]


class TreePlan:
    """Changes that turn the tree into the manifest. Planning changes nothing."""

    def __init__(self, tree: ProjectTree, manifest: list[ManifestEntry], data: list[str]) -> None:
        self.tree = tree
        self.manifest = {entry.path: entry for entry in manifest}
        written = {entry.path: TreeRow(entry, is_from_sync=True) for entry in tree.pending}  # by a killed sync
        self.in_data = [row for path, row in {**written, **tree.rows}.items() if is_below(path, data)]
        self.old: dict[str, list[TreeRow]] = {
            path: [row] for path, row in tree.rows.items() if row.is_from_sync and not is_below(path, data)
        }
        for entry in tree.pending:
            if not is_below(entry.path, data):
                self.old.setdefault(entry.path, []).append(TreeRow(entry))
        self.remove: dict[str, None] = {}
        self.make: list[ManifestEntry] = []
        self.modes: list[ManifestEntry] = []
        self.moved_away: list[str] = []
        self.kept: list[str] = []
        """Files changed on the host whose project file is the same."""
        self.blocked: list[str] = []
        """Project files not written because the host's own file is in the way."""
        self._not_from_sync: set[str] = set()
        self._statuses: dict[str, os.stat_result | None] = {}
        self._deletions()
        for path in sorted(self.manifest, key=encode_name):
            self._plan_path(self.manifest[path])

    def _is_from_sync(self, path: str, status: os.stat_result) -> bool:
        rows = self.old.get(path, ())
        return any(self.tree.is_unchanged(row, status) or self.tree.has_content(row.entry, status) for row in rows)

    def _deletions(self) -> None:
        """Plan to remove unchanged files of sync, deepest path first."""
        for path in sorted(self.old, key=encode_name, reverse=True):
            status, new = self._status_of(path), self.manifest.get(path)
            if status is None or (new and (new.kind == "d") == stat.S_ISDIR(status.st_mode)):
                continue
            if self._is_from_sync(path, status) and (not stat.S_ISDIR(status.st_mode) or self._has_only_removed(path)):
                self.remove[path] = None

    def _status_of(self, path: str) -> os.stat_result | None:
        """Status of a path; also None if a parent is a link, made by a run or an earlier sync."""
        above = path.rpartition("/")[0]
        while above:
            status = self.status(above)
            if status is None or not stat.S_ISDIR(status.st_mode):
                return None
            above = above.rpartition("/")[0]
        return self.status(path)

    def status(self, path: str) -> os.stat_result | None:
        if path not in self._statuses:
            is_above_missing = self._statuses.get(path.rpartition("/")[0], self) is None
            self._statuses[path] = None if is_above_missing else lstat_or_none(self.tree.path_of(path))
        return self._statuses[path]

    def _has_only_removed(self, path: str) -> bool:
        return all(f"{path}/{decode_name(name)}" in self.remove for name in os.listdir(self.tree.path_of(path)))

    def _plan_path(self, entry: ManifestEntry) -> None:
        path, kind = entry.path, entry.kind
        if path.rpartition("/")[0] in self._not_from_sync:
            self._block(path)
            return
        status = None if path in self.remove else self._status_of(path)
        if status is None:
            self.make.append(entry)
        elif self._is_up_to_date(entry, status) or self.tree.has_content(entry, status):
            if kind != "l" and path in self.old and entry.mode != self.old[path][0].entry.mode:
                self.modes.append(entry)
        elif stat.S_ISDIR(status.st_mode):
            self._block(path)  # contains files of a run, otherwise it would be in `remove`
        elif self._is_from_sync(path, status):
            self.make.append(entry)
        elif path not in self.old:
            self._block(path)
        elif any(old.entry.kind == kind and old.entry.content == entry.content for old in self.old[path]):
            self.kept.append(path)
            if kind == "d":
                self._not_from_sync.add(path)  # a run replaced it with a link, for example to a larger disk
        else:
            self.moved_away.append(path)
            self.make.append(entry)

    def _is_up_to_date(self, entry: ManifestEntry, status: os.stat_result) -> bool:
        """True if unchanged since the sync and equal to the manifest, without reading it."""
        old = self.tree.rows.get(entry.path)
        return (
            old is not None
            and old.entry.kind == entry.kind
            and old.entry.content == entry.content
            and self.tree.is_unchanged(old, status)
        )

    def _block(self, path: str) -> None:
        self.blocked.append(path)
        self._not_from_sync.add(path)

    @property
    def changes(self) -> bool:
        return bool(self.remove or self.make or self.modes)

    @property
    def contents(self) -> dict[str, list[ManifestEntry]]:
        entries: dict[str, list[ManifestEntry]] = {}
        for entry in self.make:
            if entry.kind == "f":
                entries.setdefault(entry.content, []).append(entry)
        return entries


class TreeUpdate:
    """Applies a plan: stages all contents, then changes one path after the other.

    A run may replace a directory by a link at any moment, so each is entered without links and changed by descriptor.
    """

    def __init__(self, plan: TreePlan, top: GuardedDirectory, stage: GuardedDirectory) -> None:
        self.plan, self.tree, self._top, self._stage = plan, plan.tree, top, stage
        self._directories = DirectoryChain(top, lambda above, names: above.enter(names[-1]))
        self.contents = plan.contents

    def _is_staged(self, sha256: str, size: int) -> bool:
        status = self._stage.status_of(sha256.encode())
        return status is not None and status.st_size == size

    def stage_local_copies(self, others: list[ProjectTree]) -> list[str]:
        """Stage contents found elsewhere in the project's trees; returns the hashes this host lacks."""
        missing = [sha for sha, entries in self.contents.items() if not self._is_staged(sha, entries[0].size)]
        if not missing:
            return []
        copies: dict[str, list[bytes]] = {}
        for tree in [self.tree, *others]:
            for path, row in tree.rows.items():
                if row.entry.kind == "f" and row.identity:
                    copies.setdefault(row.entry.content, []).append(tree.path_of(path))
        return [sha for sha in missing if not any(self._copy(sha, path) for path in copies.get(sha, ()))]

    def _copy(self, sha256: str, source: bytes) -> bool:
        with contextlib.suppress(FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError):
            if not stat.S_ISREG(os.lstat(source).st_mode):
                return False
            with open(source, "rb", buffering=0) as file, contextlib.suppress(AgentError):
                stage_checked(self._stage, sha256, blocks_of(file))
                return True
        return False

    def apply(self, digest: str) -> None:
        tree, plan = self.tree, self.plan
        # After a kill, the next sync sees here which files were written.
        journal = [entry[:5] for entry in (*tree.pending, *plan.make)]
        write_json_atomically(tree.state_directory + b"/pending.json", {"rows": journal}, durable=False)
        uses_left = {sha: len(entries) for sha, entries in self.contents.items()}
        try:
            for path in plan.remove:
                with self._place_of(path) as (directory, name):
                    remove_entry(directory, name)
            for path in plan.moved_away:
                with self._place_of(path) as (directory, name):
                    directory.rename(directory.number, name, free_backup_name(directory, name))
            for entry in plan.make:
                with self._place_of(entry.path) as (directory, name):
                    self._make(entry, directory, name, uses_left)
            for entry in plan.modes:
                with self._place_of(entry.path) as (directory, name):
                    os.chmod(name, entry.mode, dir_fd=directory.number)
        finally:
            self._directories.leave()
        self._record(digest)

    @contextlib.contextmanager
    def _place_of(self, path: str) -> Iterator[tuple[GuardedDirectory, bytes]]:
        *above, name = encode_name(path).split(b"/")
        try:
            yield self._directories.enter(above), name
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.tree.path_of(path)) from None

    def _make(self, entry: ManifestEntry, directory: GuardedDirectory, name: bytes, uses_left: dict[str, int]) -> None:
        if entry.kind == "d":
            os.mkdir(name, dir_fd=directory.number)
            os.chmod(name, entry.mode, dir_fd=directory.number)
            return
        if entry.kind == "l":
            self._stage.unlink(_NEXT)
            self._stage.link_to(encode_name(entry.content), _NEXT, replace=False)
            directory.rename(self._stage.number, _NEXT, name)
            return
        source = entry.content.encode()
        uses_left[entry.content] -= 1
        if uses_left[entry.content]:
            with open(self._stage.open_to_read(source), "rb", buffering=0) as file:
                self._stage.write(_NEXT, blocks_of(file), entry.mode)
            source = _NEXT
        else:
            os.chmod(source, entry.mode, dir_fd=self._stage.number)
        directory.rename(self._stage.number, source, name)

    def _record(self, digest: str) -> None:
        plan, tree = self.plan, self.tree
        blocked, kept = set(plan.blocked), set(plan.kept)
        made = {entry.path for entry in plan.make}
        rows = []
        for path, entry in plan.manifest.items():
            status = lstat_or_none(tree.path_of(path)) if path in made else plan.status(path)
            is_written = status is not None and path not in blocked and path not in kept
            identity = identity_of(status) if status is not None and is_written else None
            rows.append(TreeRow(entry, identity, path not in blocked and (path in made or path in plan.old)))
        rows += [row for row in plan.in_data if lstat_or_none(tree.path_of(row.entry.path)) is not None]
        state = {"digest": digest, "rows": [row.to_json() for row in rows]}
        write_json_atomically(tree.state_directory + b"/state.json", state)
        with self._top.enter(_STATE) as directory:
            os.unlink(b"pending.json", dir_fd=directory.number)
        empty_stage(self._top)


def remove_entry(directory: GuardedDirectory, name: bytes) -> None:
    if not stat.S_ISDIR(os.stat(name, dir_fd=directory.number, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=directory.number)
        return
    try:
        os.rmdir(name, dir_fd=directory.number)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # a run wrote there in this moment
            raise


def free_backup_name(directory: GuardedDirectory, name: bytes) -> bytes:
    number = 1
    while directory.status_of(b"%s.node-%d" % (name, number)) is not None:
        number += 1
    return b"%s.node-%d" % (name, number)


def empty_stage(top: GuardedDirectory) -> None:
    with contextlib.suppress(OSError), top.enter(_STATE) as directory:
        directory.remove_tree(_STAGE, ignore_errors=True)


def remove_old_transfers(home: bytes, now: float) -> None:
    """Remove what aborted syncs left in the store for transfers, HOME/tmp/sync."""
    with contextlib.suppress(OSError), open_own(os.path.join(decode_name(home), "tmp", "sync")) as store:
        for name in store.names():
            status = store.status_of(name)
            is_old = status is not None and now - status.st_mtime >= DAY
            if is_old and is_stored(os.path.join(store.path, os.fsdecode(name))):
                store.remove_tree(name, ignore_errors=True)


class UploadStream:
    """Stream from the control machine; a read raises an AgentError if nothing comes. For the main thread."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        signal.signal(signal.SIGALRM, self._fail)

    def read(self, size: int) -> bytes:
        return self._in_time(self.stream.read, size)

    def readline(self, size: int) -> bytes:
        return self._in_time(self.stream.readline, size)

    def _in_time(self, read_some: Callable[[int], bytes], size: int) -> bytes:
        signal.alarm(UPLOAD_SILENCE)
        try:
            return read_some(size)
        finally:
            signal.alarm(0)

    def _fail(self, *_: object) -> NoReturn:
        raise AgentError(f"no files came for {UPLOAD_SILENCE} s: the connection may be lost", "run it again")


def receive_contents(stage: GuardedDirectory, stream: ByteStream) -> None:
    """Write a stream's contents to the stage, complete with their hash. A kill leaves a file of another size."""
    for file in read_files(stream):
        if not SHA256.fullmatch(file.sha256):
            raise AgentError("a file came without a hash")
        if file.part.size > CHUNK:
            stage_checked(stage, file.sha256, file.chunks(file.sha256))
        else:
            stage_small(stage, file.sha256.encode(), file.content(_CHANGED))


def stage_small(stage: GuardedDirectory, name: bytes, data: bytes) -> None:
    """Write directly to the final name: a third of the system calls."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        number = os.open(name, flags, 0o600, dir_fd=stage.number)
    except FileExistsError:  # of a killed call, or a link to the store
        stage.unlink(name)
        number = os.open(name, flags, 0o600, dir_fd=stage.number)
    try:
        write_all(number, data)
    finally:
        os.close(number)


def stage_checked(stage: GuardedDirectory, sha256: str, chunks: Iterator[bytes]) -> None:
    """Raises an AgentError if the hash differs."""
    digest = hashlib.sha256()
    with stage.written(sha256.encode(), 0o600) as number:
        for chunk in chunks:
            digest.update(chunk)
            write_all(number, chunk)
        if digest.hexdigest() != sha256:
            raise AgentError(_CHANGED, "run it again")


def stage_from_store(stage: GuardedDirectory, path: bytes) -> None:
    """Stage a file of the content store by link or copy; unpack a parcel."""
    sha256, name = path.split(b"/")[-2:]
    if not os.path.exists(path):
        return
    if name == b"parcel":
        with open(path, "rb") as file:
            receive_contents(stage, file)
        return
    try:
        os.link(path, sha256, dst_dir_fd=stage.number)  # stays in the store too, where other hosts fetch it
    except FileExistsError:
        status = stage.status_of(sha256)
        if status is not None and status.st_size != os.stat(path).st_size:  # of a killed call
            stage.unlink(sha256)
            stage_from_store(stage, path)
    except OSError:
        with open(path, "rb", buffering=0) as file:
            stage.write(sha256, blocks_of(file))


def read_manifest(request: TreeRequest, stream: BinaryIO) -> list[ManifestEntry]:
    """Read the manifest. No path may lead out of the tree or into the state directory."""
    packed = stream.read(request["manifest"])
    if len(packed) != request["manifest"]:
        raise AgentError("the connection broke off while the list of files came", "run it again")
    entries = unpack_entries(packed)
    for entry in entries:
        if not entry.path or entry.path.partition("/")[0] == STATE_DIRECTORY:
            raise AgentError(f"{entry.path!r} can't be a path in a tree")
    return entries


def put(request: PutRequest, stream: BinaryIO) -> PutReply:
    return put_into(generations(os.fsencode(home_of(request, "code")), request["project"]), request, stream)


def put_into(trees: list[ProjectTree], request: PutRequest, stream: BinaryIO) -> PutReply:
    home, own_run, ended, number = trees[0].home, request["lease"], request["ended"], request["generation"]
    tree = next((tree for tree in trees if tree.generation == number), None)
    tree = tree or ProjectTree(home, request["project"], number)
    others = [other for other in trees if other.generation != number]
    entries = read_manifest(request, stream)
    if request["dry_run"]:
        return PutReply(changes_of(TreePlan(tree, entries, request["data"]), dry_run=True))
    with tree.lock(), open_own(decode_name(tree.path)) as top:
        if request.get("expected", tree.digest) != tree.digest:
            return PutReply()  # another host with this home was faster
        with top.enter(_STATE + b"/" + _STAGE, make=True, mode=0o700) as stage:
            try:
                for blob in request["blobs"]:
                    stage_from_store(stage, os.fsencode(blob))
                receive_contents(stage, UploadStream(stream))
                plan = TreePlan(tree, entries, request["data"])
                update = TreeUpdate(plan, top, stage)
                if missing := update.stage_local_copies(others):
                    return PutReply(need=tuple(missing))
            except OSError:
                empty_stage(top)  # no path is changed yet, and the disk space may be needed
                raise
            if plan.changes and (busy := tree.active_runs(own_run, ended)):
                return PutReply(busy=tuple(busy))
            for other in others:
                other.release(own_run)
            for run in [*ended, *(run for run in tree.runs() if has_ended(tree, run))]:
                tree.release(run)
            update.apply(request["digest"])
        tree.lease(own_run)
        remove_old_transfers(home, tree.filesystem_time())
        return PutReply(changes_of(plan))


def update(request: TreeRequest, stream: BinaryIO) -> TreesReply:
    """Describe the trees. First update the only tree if no run uses it and it is as the control machine expects."""
    home = os.fsencode(home_of(request, "code"))
    trees = generations(home, request["project"])
    first = trees[0]
    if len(trees) > 1 or first.digest != request["expected"] or first.pending or first.runs():
        return inspect(request)
    changes = put_into(trees, {**request, "generation": 1, "blobs": []}, stream).changes
    if changes is None:  # a content is missing after all, a run has just begun, or another host was faster
        return inspect(request)
    updated = Generation(1, changes.path, request["digest"], True, kept=changes.kept)
    return describe(home, [updated], make_token=True)._replace(updated=changes)


def changes_of(plan: TreePlan, *, dry_run: bool = False) -> TreeChanges:
    files = tuple(entry.path for entry in plan.make if entry.kind != "d")
    gone = tuple(path for path in plan.remove if any(row.entry.kind != "d" for row in plan.old[path]))
    return TreeChanges(
        decode_name(plan.tree.path),
        bool(plan.changes),
        placed=len(files),
        deleted=len(gone),
        kept=tuple(plan.kept[:MAX_PATHS]),
        blocked=tuple(plan.blocked[:MAX_PATHS]),
        moved_away=tuple(plan.moved_away[:MAX_PATHS]),
        would_place=files if dry_run else (),
        would_delete=gone if dry_run else (),
    )


def main(action: str) -> int:
    return answer({"put": put}[action])
