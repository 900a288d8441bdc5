"""Updates a project's tree on this host, and never changes files that runs wrote into it.

The rules for a path in the tree:
- a file that an earlier sync wrote, unchanged since, is updated, or deleted if the project no longer has it;
- a file that an earlier sync wrote, changed since, stays while the project's file is the same; when that has changed
  too, it replaces the host's file, which is kept beside it as NAME.node-1;
- a file that no sync wrote is never touched: the project's file is not written there, and the report lists it;
- a directory of `--data` stays as it is; a later sync without `--data` still knows which of its files a sync wrote.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import signal
import stat
import zlib
from typing import BinaryIO, Callable, Iterator, NoReturn

from ipexctl.node.common.answer import AgentError, answer
from ipexctl.node.common.files import (
    decode_name,
    encode_name,
    home_of,
    make_private_directory,
    sha256_of,
    write_json_atomically,
)
from ipexctl.node.common.home_entries import STATE_DIRECTORY, is_stored
from ipexctl.node.common.json_parser import parse_json
from ipexctl.node.common.limits import UPLOAD_SILENCE
from ipexctl.node.common.liveness import DAY
from ipexctl.node.files.file_stream import CHUNK, read_body, read_headers
from ipexctl.node.files.replies import Generation, PutReply, TreeChanges, TreesReply
from ipexctl.node.files.tree import (
    SHA256,
    ProjectTree,
    Row,
    TreeRequest,
    describe,
    generations,
    has_ended,
    inspect,
    is_below,
    lstat_or_none,
)

GZIP = 16 + zlib.MAX_WBITS
MAX_PATHS = 20


class PutRequest(TreeRequest):
    """`manifest` is always given."""

    generation: int
    blobs: list[str]
    """Paths of contents in the store for transfers."""


class Plan:
    """The changes that turn the tree into the manifest. Making a plan changes nothing."""

    def __init__(self, tree: ProjectTree, manifest: list[Row], data: list[str]) -> None:
        self.tree = tree
        self.manifest = {row[0]: row for row in manifest}
        written = {row[0]: [*row[:5], None, True] for row in tree.pending}  # by a sync that was killed
        self.in_data = [row for path, row in {**written, **tree.rows}.items() if is_below(path, data)]
        """What earlier syncs put into a directory of `--data`."""
        self.old: dict[str, list[Row]] = {
            path: [row] for path, row in tree.rows.items() if row[6] and not is_below(path, data)
        }
        for row in tree.pending:
            if not is_below(row[0], data):
                self.old.setdefault(row[0], []).append(row)
        self.remove: dict[str, None] = {}
        self.make: list[Row] = []
        self.modes: list[Row] = []
        self.moved_away: list[str] = []
        self.kept: list[str] = []
        """Files changed on the host, while the project's file is the same."""
        self.blocked: list[str] = []
        """Paths with a file that sync did not write, so that the project's file can't be written."""
        self._not_from_sync: set[str] = set()
        self._statuses: dict[str, os.stat_result | None] = {}
        self._deletions()
        for path in sorted(self.manifest, key=encode_name):
            self._plan_path(self.manifest[path])

    def _is_from_sync(self, path: str, status: os.stat_result) -> bool:
        rows = self.old.get(path, ())
        return any(self.tree.is_unchanged(row, status) or self.tree.has_content(path, status, row) for row in rows)

    def _deletions(self) -> None:
        """Plan to remove what sync wrote and what is unchanged, deepest path first."""
        for path in sorted(self.old, key=encode_name, reverse=True):
            status, new = self._status_of(path), self.manifest.get(path)
            if status is None or (new and (new[1] == "d") == stat.S_ISDIR(status.st_mode)):
                continue
            if self._is_from_sync(path, status) and (not stat.S_ISDIR(status.st_mode) or self._has_only_removed(path)):
                self.remove[path] = None

    def _status_of(self, path: str) -> os.stat_result | None:
        """The status of a path; None also when a parent directory is a link, which a run or an earlier sync made."""
        above = path.rpartition("/")[0]
        while above:
            status = self.status(above)
            if status is None or not stat.S_ISDIR(status.st_mode):
                return None
            above = above.rpartition("/")[0]
        return self.status(path)

    def status(self, path: str) -> os.stat_result | None:
        """The status of a path when the plan was made."""
        if path not in self._statuses:
            is_above_missing = self._statuses.get(path.rpartition("/")[0], self) is None
            self._statuses[path] = None if is_above_missing else lstat_or_none(self.tree.path_of(path))
        return self._statuses[path]

    def _has_only_removed(self, path: str) -> bool:
        return all(f"{path}/{decode_name(name)}" in self.remove for name in os.listdir(self.tree.path_of(path)))

    def _plan_path(self, row: Row) -> None:
        path, kind = row[0], row[1]
        if path.rpartition("/")[0] in self._not_from_sync:
            self._block(path)
            return
        status = None if path in self.remove else self._status_of(path)
        if status is None:
            self.make.append(row)
        elif self._is_up_to_date(row, status) or self.tree.has_content(path, status, row):
            if kind != "l" and path in self.old and row[2] != self.old[path][0][2]:
                self.modes.append(row)
        elif stat.S_ISDIR(status.st_mode):
            self._block(path)  # it has files of a run, or it would be in `remove`
        elif self._is_from_sync(path, status):
            self.make.append(row)
        elif path not in self.old:
            self._block(path)
        elif any(old[1] == kind and old[4] == row[4] for old in self.old[path]):
            self.kept.append(path)
            if kind == "d":
                self._not_from_sync.add(path)  # a run has replaced it with a link, for example to a larger disk
        else:
            self.moved_away.append(path)
            self.make.append(row)

    def _is_up_to_date(self, row: Row, status: os.stat_result) -> bool:
        """Whether it is up to date without reading it: unchanged since the sync, and equal to the manifest."""
        old = self.tree.rows.get(row[0])
        return bool(old and old[1] == row[1] and old[4] == row[4] and self.tree.is_unchanged(old, status))

    def _block(self, path: str) -> None:
        self.blocked.append(path)
        self._not_from_sync.add(path)

    @property
    def changes(self) -> bool:
        return bool(self.remove or self.make or self.modes)

    @property
    def contents(self) -> dict[str, list[Row]]:
        """The rows of files to write, by hash."""
        rows: dict[str, list[Row]] = {}
        for row in self.make:
            if row[1] == "f":
                rows.setdefault(row[4], []).append(row)
        return rows


class TreeUpdate:
    """Applies a plan: first all contents into the stage, then one path after the other."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.tree = plan, plan.tree
        self.contents = plan.contents

    def staged(self, sha256: str) -> bytes:
        return bytes(self.tree.stage) + b"/" + sha256.encode()

    def is_staged(self, sha256: str, size: int) -> bool:
        status = lstat_or_none(self.staged(sha256))
        return status is not None and status.st_size == size

    def stage_local_copies(self, others: list[ProjectTree]) -> list[str]:
        """Stage contents from other paths of the project's trees; returns those that are not on this host."""
        missing = [sha for sha, rows in self.contents.items() if not self.is_staged(sha, rows[0][3])]
        if not missing:
            return []
        copies: dict[str, list[bytes]] = {}
        for tree in [self.tree, *others]:
            for row in tree.rows.values():
                if row[1] == "f" and row[5]:
                    copies.setdefault(row[4], []).append(tree.path_of(row[0]))
        return [sha for sha in missing if not any(self._copy(sha, path) for path in copies.get(sha, ()))]

    def _copy(self, sha256: str, source: bytes) -> bool:
        temporary = self.staged(sha256) + b".part"
        with contextlib.suppress(FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError):
            if not stat.S_ISREG(os.lstat(source).st_mode):
                return False
            copy_file(source, temporary)
            if sha256_of(temporary) == sha256:
                os.replace(temporary, self.staged(sha256))
                return True
            os.unlink(temporary)
        return False

    def apply(self, digest: str) -> None:
        tree, plan = self.tree, self.plan
        # After a kill, this shows the next sync which files it wrote.
        journal = [row[:5] for row in plan.make]
        write_json_atomically(
            tree.state_directory + b"/pending.json", {"rows": [*tree.pending, *journal]}, durable=False
        )
        for path in plan.remove:
            self._remove(tree.path_of(path))
        for path in plan.moved_away:
            os.rename(tree.path_of(path), self._free_backup_path(path))
        uses_left = {sha: len(rows) for sha, rows in self.contents.items()}
        for row in plan.make:
            self._make(row, uses_left)
        for row in plan.modes:
            os.chmod(tree.path_of(row[0]), row[2])
        self._record(digest)

    def _remove(self, target: bytes) -> None:
        if not stat.S_ISDIR(os.lstat(target).st_mode):
            os.unlink(target)
            return
        try:
            os.rmdir(target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # a run has just written there
                raise

    def _make(self, row: Row, uses_left: dict[str, int]) -> None:
        path, kind, mode, _, content = row
        target = self.tree.path_of(path)
        if kind == "d":
            os.mkdir(target)
            os.chmod(target, mode)
            return
        temporary = self.tree.stage + b"/next"
        if kind == "l":
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            os.symlink(encode_name(content), temporary)
        else:
            uses_left[content] -= 1
            source = self.staged(content)
            if uses_left[content]:
                copy_file(source, temporary)
                source = temporary
            os.chmod(source, mode)
            temporary = source
        os.replace(temporary, target)

    def _free_backup_path(self, path: str) -> bytes:
        number = 1
        while lstat_or_none(self.tree.path_of(f"{path}.node-{number}")) is not None:
            number += 1
        return bytes(self.tree.path_of(f"{path}.node-{number}"))

    def _record(self, digest: str) -> None:
        plan, tree = self.plan, self.tree
        blocked, kept = set(plan.blocked), set(plan.kept)
        made = {row[0] for row in plan.make}
        rows = []
        for path, row in plan.manifest.items():
            status = lstat_or_none(tree.path_of(path)) if path in made else plan.status(path)
            identity = None
            if status is not None and path not in blocked and path not in kept:
                identity = [status.st_size, status.st_mtime_ns, status.st_ino]
            rows.append([*row[:5], identity, path not in blocked and (path in made or path in plan.old)])
        rows += [row for row in plan.in_data if lstat_or_none(tree.path_of(row[0])) is not None]
        write_json_atomically(tree.state_directory + b"/state.json", {"digest": digest, "rows": rows})
        os.unlink(tree.state_directory + b"/pending.json")
        empty_stage(tree.stage)


def empty_stage(stage: bytes) -> None:
    """Remove the stage with the contents in it; it has no directories."""
    with contextlib.suppress(OSError):
        for name in os.listdir(stage):
            os.unlink(stage + b"/" + name)
        os.rmdir(stage)


def remove_old_transfers(home: bytes, now: float) -> None:
    """Remove what broken-off syncs left in the store for transfers, HOME/tmp/sync."""
    store = home + b"/tmp/sync"
    with contextlib.suppress(OSError):
        for name in os.listdir(store):
            path = store + b"/" + name
            status = lstat_or_none(path)
            if status is None or now - status.st_mtime < DAY or not is_stored(decode_name(path)):
                continue
            if stat.S_ISDIR(status.st_mode):
                empty_stage(path)
            else:
                os.unlink(path)


def copy_file(source: bytes, target: bytes) -> None:
    from shutil import copyfile  # 8 ms, and seldom needed

    copyfile(source, target)


class UploadStream:
    """A stream from the control machine, whose reads raise an AgentError when nothing comes. For the main thread."""

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


def receive_contents(stage: bytes, stream: BinaryIO | UploadStream) -> None:
    """Write contents from a stream to the stage; each is complete and has its hash, or is absent.

    Only a kill can leave an incomplete file, of another size: see `TreeUpdate.is_staged`.
    """
    for header in read_headers(stream):
        sha256, size = str(header.get("sha256")), header["size"]
        if not SHA256.fullmatch(sha256):
            raise AgentError("a file came without a hash")
        path, body = stage + b"/" + sha256.encode(), read_body(stream, size, sha256)
        if size > CHUNK:
            receive_large(path, sha256, body)
            continue
        data = b"".join(body)
        if hashlib.sha256(data).hexdigest() != sha256:
            raise AgentError("a file of the project changed while it was sent", "run it again")
        write_new(path, data)


def write_new(path: bytes, data: bytes) -> None:
    """Like `open` and `write`, with a third of their system calls."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        number = os.open(path, flags, 0o600)
    except FileExistsError:  # of a call that was killed, or a link to the store
        os.unlink(path)
        number = os.open(path, flags, 0o600)
    try:
        while data:
            data = data[os.write(number, data) :]
    finally:
        os.close(number)


def receive_large(path: bytes, sha256: str, body: Iterator[bytes]) -> None:
    digest = hashlib.sha256()
    with open(path + b".part", "wb", buffering=0) as file:
        for chunk in body:
            digest.update(chunk)
            while chunk:
                chunk = chunk[file.write(chunk) :]
    if digest.hexdigest() != sha256:
        os.unlink(path + b".part")
        raise AgentError("a file of the project changed while it was sent", "run it again")
    os.replace(path + b".part", path)


def stage_from_store(stage: bytes, path: bytes) -> None:
    """Stage a file of the content store by link or copy; a parcel is unpacked."""
    sha256, name = path.split(b"/")[-2:]
    if not os.path.exists(path):
        return
    if name == b"parcel":
        with open(path, "rb") as file:
            receive_contents(stage, file)
        return
    staged = stage + b"/" + sha256
    try:
        os.link(path, staged)  # it also stays in the store, from which other hosts fetch it
    except FileExistsError:
        if os.lstat(staged).st_size != os.stat(path).st_size:  # of a call that was killed
            os.unlink(staged)
            stage_from_store(stage, path)
    except OSError:
        copy_file(path, staged + b".part")
        os.replace(staged + b".part", staged)


def read_manifest(request: TreeRequest, stream: BinaryIO) -> list[Row]:
    """The manifest; none of its paths may lead out of the tree or into the state directory."""
    compressed = stream.read(request["manifest"])
    if len(compressed) != request["manifest"]:
        raise AgentError("the connection broke off while the list of files came", "run it again")
    rows: list[Row] = parse_json(zlib.decompress(compressed, GZIP))
    for row in rows:
        parts = row[0].split("/")
        if "\0" in row[0] or parts[0] == STATE_DIRECTORY or any(part in ("", ".", "..") for part in parts):
            raise AgentError(f"{row[0]!r} can't be a path in a tree")
    return rows


def put(request: PutRequest, stream: BinaryIO) -> PutReply:
    return put_into(generations(os.fsencode(home_of(request)), request["project"]), request, stream)


def put_into(trees: list[ProjectTree], request: PutRequest, stream: BinaryIO) -> PutReply:
    home, own_run, ended, number = trees[0].home, request["lease"], request["ended"], request["generation"]
    tree = next((tree for tree in trees if tree.generation == number), None)
    tree = tree or ProjectTree(home, request["project"], number)
    others = [other for other in trees if other.generation != number]
    rows = read_manifest(request, stream)
    if request["dry_run"]:
        return PutReply(changes_of(Plan(tree, rows, request["data"]), dry_run=True))
    with tree.lock():
        if request.get("expected", tree.digest) != tree.digest:
            return PutReply()  # another host with this home was faster
        make_private_directory(tree.stage)
        try:
            for blob in request["blobs"]:
                stage_from_store(tree.stage, os.fsencode(blob))
            receive_contents(tree.stage, UploadStream(stream))
            plan = Plan(tree, rows, request["data"])
            update = TreeUpdate(plan)
            if missing := update.stage_local_copies(others):
                return PutReply(need=tuple(missing))
        except OSError:
            empty_stage(tree.stage)  # no path is changed yet, and the disk space may be needed
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
    """Describe the trees; first update the only one, if no run uses it and it is as the control machine expects.

    The control machine may expect that there is none.
    """
    home = os.fsencode(home_of(request))
    trees = generations(home, request["project"])
    first = trees[0]
    if len(trees) > 1 or first.digest != request["expected"] or first.pending or first.runs():
        return inspect(request)
    changes = put_into(trees, {**request, "generation": 1, "blobs": []}, stream).changes
    if changes is None:  # a content is missing after all, a run has just begun, or another host was faster
        return inspect(request)
    updated = Generation(1, changes.path, request["digest"], True, kept=changes.kept)
    return describe(home, [updated], make_token=True)._replace(updated=changes)


def changes_of(plan: Plan, *, dry_run: bool = False) -> TreeChanges:
    files = tuple(row[0] for row in plan.make if row[1] != "d")
    gone = tuple(path for path in plan.remove if any(row[1] != "d" for row in plan.old[path]))
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
