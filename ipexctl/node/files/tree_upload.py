"""Updates a project's tree on this host without changing files that runs wrote into it.

- A file that sync wrote is updated, or deleted with the project's, if it is unchanged since.
- If it was changed here, it stays while the project's file is the same; once that changes too, the host's file is kept
  as NAME.node-1.
- A file that no sync wrote is never touched: the report lists it, and the project's file is not written.
- A directory of `--data` stays as it is; a later sync without `--data` still knows which of its files are from sync.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import stat
from typing import TYPE_CHECKING, BinaryIO, Callable, NoReturn, cast

from ipexctl.node.common.answer import AgentError, Json, answer, emit
from ipexctl.node.common.files import (
    decode_name,
    encode_name,
    explain_full_disk,
    free_space,
    sync_directory,
    write_json_atomically,
)
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.guarded_directory import GuardedDirectory, blocks_of, open_own
from ipexctl.node.common.home import STATE_DIRECTORY, home_of
from ipexctl.node.common.json_records import encode, parse_object
from ipexctl.node.common.node_limits import UPLOAD_SILENCE
from ipexctl.node.files.call_replies import PutReply, TreeChanges
from ipexctl.node.files.compare import compare
from ipexctl.node.files.manifest import ManifestEntry, identity_of, unpack_entries
from ipexctl.node.files.place import StagedFiles, Writer
from ipexctl.node.files.policies import TREE
from ipexctl.node.files.tree import (
    MAX_PATHS,
    STAGE,
    ProjectTree,
    TreeRow,
    generations,
    has_ended,
    inspect,
    is_below,
    lstat_or_none,
    remove_job_files,
)

if TYPE_CHECKING:
    from ipexctl.node.files.call_requests import PutRequest, TreeRequest
    from ipexctl.node.files.compare import Left, Match

_STATE = encode_name(STATE_DIRECTORY)
_STAGE = encode_name(STAGE)


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
        self._statuses: dict[str, os.stat_result | None] = {}
        self._is_reached = {"": True}
        """Whether a directory of the tree is one, and all above it are."""
        self.remove: dict[str, None] = {}
        self._plan_deletions()
        comparison = compare(sorted(manifest, key=lambda entry: encode_name(entry.path)), self, TREE)
        self.make = comparison.to_make
        self.moved_away = [entry.path for entry in comparison.entries("replace and keep")]
        self.kept = [entry.path for entry in comparison.in_state("changed")]
        self.blocked = [entry.path for entry in comparison.entries("refuse")]
        self.modes = [
            entry
            for entry in comparison.in_state("equal")
            if entry.kind != "l" and entry.path in self.old and entry.mode != self.old[entry.path][0].entry.mode
        ]

    def _plan_deletions(self) -> None:
        """Plan to remove unchanged files of sync, deepest path first."""
        for path in sorted(self.old, key=encode_name, reverse=True):
            status, new = self._status_at(path), self.manifest.get(path)
            if status is None or (new and (new.kind == "d") == stat.S_ISDIR(status.st_mode)):
                continue
            if self._is_from_sync(path, status) and (not stat.S_ISDIR(status.st_mode) or self._has_only_removed(path)):
                self.remove[path] = None

    def _is_from_sync(self, path: str, status: os.stat_result) -> bool:
        rows = self.old.get(path, ())
        return any(self.tree.is_unchanged(row, status) or self.tree.has_content(row.entry, status) for row in rows)

    def _has_only_removed(self, path: str) -> bool:
        return all(f"{path}/{decode_name(name)}" in self.remove for name in os.listdir(self.tree.path_of(path)))

    def _status_at(self, path: str) -> os.stat_result | None:
        """Return the status of a path; None also if a parent is a link, made by a run or an earlier sync."""
        above = path.rpartition("/")[0]
        if above not in self._is_reached:
            parents = [above[: at.start()] for at in re.finditer("/", above)]
            statuses = map(self.status, (*parents, above))
            self._is_reached[above] = all(status and stat.S_ISDIR(status.st_mode) for status in statuses)
        return self.status(path) if self._is_reached[above] else None

    def status(self, path: str) -> os.stat_result | None:
        """Return the status of a path in the tree, looked up once; None if nothing is there."""
        if path not in self._statuses:
            is_above_missing = self._statuses.get(path.rpartition("/")[0], self) is None
            self._statuses[path] = None if is_above_missing else lstat_or_none(self.tree.path_of(path))
        return self._statuses[path]

    def status_of(self, entry: ManifestEntry) -> os.stat_result | None:
        """Return the status of what is at an entry's path when it is written; None if nothing is, or if it is removed
        before."""
        return None if entry.path in self.remove else self._status_at(entry.path)

    def match(self, entry: ManifestEntry, status: os.stat_result) -> Match:
        """Return `equal` or `other`. A file that is unchanged since the last sync is not read."""
        old = self.tree.rows.get(entry.path)
        is_same = old is not None and old.entry.kind == entry.kind and old.entry.content == entry.content
        is_unread = is_same and old is not None and self.tree.is_unchanged(old, status)
        return "equal" if is_unread or self.tree.has_content(entry, status) else "other"

    def left_of(self, entry: ManifestEntry, status: os.stat_result) -> Left:
        """Return what the last sync left at the path (`compare.Left`), by the tree's state."""
        if self._is_from_sync(entry.path, status):
            return "this"
        rows = self.old.get(entry.path, ())
        # Not by the journal: a sync that broke off may not have come to this file.
        recorded = [row.entry for row in rows if row.is_from_sync]
        if any(row.kind == entry.kind and row.content == entry.content for row in recorded):
            return "wanted"
        return "other" if rows else "nothing"

    @property
    def changes(self) -> bool:
        """True if something is to be written, removed or given another mode."""
        return bool(self.remove or self.make or self.modes)

    def stage_local_copies(self, stage: StagedFiles, others: list[ProjectTree]) -> list[str]:
        """Put contents into the stage that the project's trees on this host have already. Returns the hashes that this
        host lacks."""
        contents = {entry.content: entry for entry in self.make if entry.kind == "f"}
        missing = [sha256 for sha256, entry in contents.items() if stage.lacks(entry)]
        copies: dict[str, list[bytes]] = {}
        for tree in [self.tree, *others] if missing else []:
            for path, row in tree.rows.items():
                if row.entry.kind == "f" and row.identity:
                    copies.setdefault(row.entry.content, []).append(tree.path_of(path))
        return [sha256 for sha256 in missing if not any(_copy(stage, sha256, path) for path in copies.get(sha256, ()))]

    def apply(self, top: GuardedDirectory, stage: StagedFiles, digest: str) -> None:
        """Carry out the plan. After a kill, the next sync finds in `pending.json` which files may have been written."""
        tree = self.tree
        # After a kill or a power loss, the next sync sees here which files were written.
        journal = [entry[:5] for entry in (*tree.pending, *self.make)]
        write_json_atomically(tree.state_directory + b"/pending.json", {"rows": journal})
        sync_directory(tree.state_directory)
        with Writer(top, TREE) as writer:
            for path in self.remove:
                writer.remove(path)
            for path in self.moved_away:
                writer.keep(path)
            writer.make(self.make, stage)
            for entry in self.modes:
                writer.set_mode(entry)
        self._record(digest)
        with top.enter(_STATE) as directory:
            os.unlink(b"pending.json", dir_fd=directory.number)
        empty_stage(top)

    def _record(self, digest: str) -> None:
        tree, blocked, kept = self.tree, set(self.blocked), set(self.kept)
        made = {entry.path for entry in self.make}
        rows = []
        for path, entry in self.manifest.items():
            status = lstat_or_none(tree.path_of(path)) if path in made else self.status(path)
            is_written = status is not None and path not in blocked and path not in kept
            identity = identity_of(status) if status is not None and is_written else None
            rows.append(TreeRow(entry, identity, path not in blocked and (path in made or path in self.old)))
        rows += [row for row in self.in_data if lstat_or_none(tree.path_of(row.entry.path)) is not None]
        state = {"digest": digest, "rows": [row.to_json() for row in rows]}
        write_json_atomically(tree.state_directory + b"/state.json", state)


def _copy(stage: StagedFiles, sha256: str, source: bytes) -> bool:
    with contextlib.suppress(FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError):
        if not stat.S_ISREG(os.lstat(source).st_mode):
            return False
        with open(source, "rb", buffering=0) as file, contextlib.suppress(AgentError):
            stage.add(sha256, blocks_of(file))
            return True
    return False


def empty_stage(top: GuardedDirectory) -> None:
    """Remove the contents in the stage. Errors are ignored: the next sync uses what is left."""
    with contextlib.suppress(OSError), top.enter(_STATE) as directory:
        directory.remove_tree(_STAGE, ignore_errors=True)


class UploadStream:
    """Stream from the control machine; a read raises an AgentError if nothing comes. For the main thread."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        signal.signal(signal.SIGALRM, self._fail)

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes; empty at the end. Raises an AgentError if none come in time."""
        return self._in_time(self.stream.read, size)

    def readline(self, size: int) -> bytes:
        """Return a line, or its first `size` bytes; empty at the end. Raises an AgentError if none comes in time."""
        return self._in_time(self.stream.readline, size)

    def _in_time(self, read_some: Callable[[int], bytes], size: int) -> bytes:
        signal.alarm(UPLOAD_SILENCE)
        try:
            return read_some(size)
        finally:
            signal.alarm(0)

    def _fail(self, *_: object) -> NoReturn:
        raise AgentError(f"no files came for {UPLOAD_SILENCE} s: the connection may be lost", "run it again")


def read_manifest(request: PutRequest, stream: BinaryIO) -> list[ManifestEntry]:
    """Read the manifest. No path may lead out of the tree or into the state directory."""
    packed = stream.read(request["manifest"])
    if len(packed) != request["manifest"]:
        raise AgentError("the connection broke off while the list of files came", "run it again")
    entries = unpack_entries(packed)
    for entry in entries:
        if not entry.path or entry.path.partition("/")[0] == STATE_DIRECTORY:
            raise AgentError(f"{entry.path!r} can't be a path in a tree")
    return entries


def put_into(trees: list[ProjectTree], request: PutRequest, stream: BinaryIO) -> PutReply:
    """Change a tree as the request asks, with the contents that follow on the stream.

    The reply has no changes if contents are still lacking, or if runs use the tree. With `dry_run`, it says what would
    change.
    """
    home, own_run, ended, number = trees[0].home, request["lease"], request["ended"], request["generation"]
    tree = next((tree for tree in trees if tree.generation == number), None)
    tree = tree or ProjectTree(home, request["project"], number)
    others = [other for other in trees if other.generation != number]
    entries = read_manifest(request, stream)
    if request["dry_run"]:
        return PutReply(changes_of(TreePlan(tree, entries, request["data"]), dry_run=True))
    with tree.lock(), open_own(decode_name(tree.path)) as top:
        with top.enter(_STATE + b"/" + _STAGE, make=True, mode=0o700) as directory:
            stage = StagedFiles(directory, "a file of the project changed while it was sent")
            if request["size"] > free_space(directory.anchor):
                raise explain_full_disk(decode_name(tree.path), request["size"])
            try:
                for parcel in request["parcels"]:
                    with contextlib.suppress(FileNotFoundError):  # another host with this home was faster
                        stage.unpack(parcel)
                stage.receive(UploadStream(stream))
                plan = TreePlan(tree, entries, request["data"])
                if missing := plan.stage_local_copies(stage, others):
                    return PutReply(need=tuple(missing))
            except OSError:
                empty_stage(top)  # no path is changed yet, and the disk space may be needed
                raise
            if (plan.changes or own_run) and (busy := tree.active_runs(own_run, ended)):
                return PutReply(busy=tuple(busy))
            for other in others:
                other.release(own_run)
            for run in [*ended, *(run for run in tree.runs() if has_ended(tree, run))]:
                tree.release(run)
            try:
                plan.apply(top, stage, request["digest"])
            except PermissionError as error:
                directory = os.path.dirname(os.fspath(error.filename))
                fix = Fix("on that host: `chmod u+w {path}`", path=directory)
                raise AgentError(f"{directory} is not writable there", fix) from None
        tree.lease(own_run)
        return PutReply(changes_of(plan))


def sync(request: TreeRequest, stream: BinaryIO) -> Json:
    """Describe the trees. Then change them as each request asks that follows on stdin."""
    home = os.fsencode(home_of(request, "code"))
    if not request["dry_run"]:
        remove_job_files(home, request["ended"])
    trees = generations(home, request["project"])
    emit("trees", **encode(inspect(trees, request)))
    while line := stream.readline():
        emit("put", **encode(put_into(trees, cast("PutRequest", parse_object(line)), stream)))
    return {}


def changes_of(plan: TreePlan, *, dry_run: bool = False) -> TreeChanges:
    """Return what a plan changes, for the reply. The lists are cut after MAX_PATHS names, but with `dry_run` all files
    to write and delete are named."""
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


def main(_: str = "") -> int:
    """Answer the agent's call, and return its exit code."""
    return answer(sync)
