"""Makes a project's tree on this host what the project is, and leaves alone what runs wrote into it.

The rules, for a path that both have:
- what an earlier sync put there, and nobody has written to since, becomes what the project has, or goes with it;
- what was put there and has been written to stays while the project's is the same; when the project's has changed too,
  that takes the place, and the host's is kept beside it as NAME.node-1;
- what no sync put there is never touched: the project's file isn't put there, and that is said.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import json
import os
import shutil
import stat
from typing import TYPE_CHECKING, BinaryIO, Iterator

from ipexctl.node.common.answer import AgentError, answer
from ipexctl.node.common.files import decode_name, encode_name, make_private_directory, write_json_atomically
from ipexctl.node.files.tree import (
    SHA256,
    STATE_DIRECTORY,
    Tree,
    explaining,
    generations,
    has_ended,
    home_of,
    look,
    sha256_of,
)

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json
    from ipexctl.node.files.tree import (
        Row,
    )

CHUNK = 1 << 20
SHOWN = 20


class Plan:
    """What it takes to get from what is there to what is wanted. Nothing is touched by making it."""

    def __init__(self, tree: Tree, wanted: list[Row]) -> None:
        self.tree = tree
        self.wanted = {row[0]: row for row in wanted}
        self.old: dict[str, list[Row]] = {path: [row] for path, row in tree.rows.items() if row[6]}
        for row in tree.pending:
            self.old.setdefault(row[0], []).append(row)
        self.remove: dict[str, None] = {}
        self.make: list[Row] = []
        self.modes: list[Row] = []
        self.aside: list[str] = []
        self.kept: list[str] = []
        """Written to since, where the project's is what it was."""
        self.blocked: list[str] = []
        """The host's own, where the project has something else."""
        self._not_ours: set[str] = set()
        self._deletions()
        for path in sorted(self.wanted, key=encode_name):
            self._place(self.wanted[path])

    def _is_ours(self, path: str, found: os.stat_result) -> bool:
        rows = self.old.get(path, ())
        return any(self.tree.is_as_left(row, found) or self.tree.holds(path, found, row) for row in rows)

    def _deletions(self) -> None:
        """What was put there and nobody has written to since; deepest first."""
        for path in sorted(self.old, key=encode_name, reverse=True):
            found, new = self._look(path), self.wanted.get(path)
            if found is None or (new and (new[1] == "d") == stat.S_ISDIR(found.st_mode)):
                continue
            if self._is_ours(path, found) and (not stat.S_ISDIR(found.st_mode) or self._only_ours(path)):
                self.remove[path] = None

    def _look(self, path: str) -> os.stat_result | None:
        """What is there, unless it is somewhere else: behind a link that a run has put in a directory's place."""
        above = path.rpartition("/")[0]
        while above:
            found = look(self.tree.at(above))
            if found is None or not stat.S_ISDIR(found.st_mode):
                return None
            above = above.rpartition("/")[0]
        return look(self.tree.at(path))

    def _only_ours(self, path: str) -> bool:
        return all(f"{path}/{decode_name(name)}" in self.remove for name in os.listdir(self.tree.at(path)))

    def _place(self, row: Row) -> None:
        path, kind = row[0], row[1]
        if path.rpartition("/")[0] in self._not_ours:
            self._leave(path)
            return
        found = None if path in self.remove else look(self.tree.at(path))
        if found is None:
            self.make.append(row)
        elif self._looks_right(row, found) or self.tree.holds(path, found, row):
            if kind != "l" and path in self.old and row[2] != self.old[path][0][2]:
                self.modes.append(row)
        elif stat.S_ISDIR(found.st_mode):
            self._leave(path)  # with files of a run in it, or it would be gone
        elif self._is_ours(path, found):
            self.make.append(row)
        elif path not in self.old:
            self._leave(path)
        elif any(old[1] == kind and old[4] == row[4] for old in self.old[path]):
            self.kept.append(path)
            if kind == "d":
                self._not_ours.add(path)  # a run has put a link in its place, say to a larger disk
        else:
            self.aside.append(path)
            self.make.append(row)

    def _looks_right(self, row: Row, found: os.stat_result) -> bool:
        """Whether it needn't be read: it is what was put there, and that is what is wanted."""
        old = self.tree.rows.get(row[0])
        return bool(old and old[1] == row[1] and old[4] == row[4] and self.tree.is_as_left(old, found))

    def _leave(self, path: str) -> None:
        self.blocked.append(path)
        self._not_ours.add(path)

    @property
    def changes(self) -> bool:
        return bool(self.remove or self.make or self.modes)

    @property
    def contents(self) -> dict[str, list[Row]]:
        """What is to be put in place, by what is in it."""
        found: dict[str, list[Row]] = {}
        for row in self.make:
            if row[1] == "f":
                found.setdefault(row[4], []).append(row)
        return found


class TreeUpdate:
    """Carries a plan out: first all contents into the stage, then one path after the other."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.tree = plan, plan.tree
        self.contents = plan.contents

    def staged(self, sha256: str) -> bytes:
        return bytes(self.tree.stage) + b"/" + sha256.encode()

    def lacking(self, others: list[Tree]) -> list[str]:
        """The contents that are nowhere on this host; what lies at another path of ours is copied from there."""
        missing = [sha for sha in self.contents if look(self.staged(sha)) is None]
        if not missing:
            return []
        places: dict[str, list[bytes]] = {}
        for tree in [self.tree, *others]:
            for row in tree.rows.values():
                if row[1] == "f" and row[5]:
                    places.setdefault(row[4], []).append(tree.at(row[0]))
        return [sha for sha in missing if not any(self._copy(sha, place) for place in places.get(sha, ()))]

    def _copy(self, sha256: str, place: bytes) -> bool:
        aside = self.staged(sha256) + b".part"
        with contextlib.suppress(FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError):
            if not stat.S_ISREG(os.lstat(place).st_mode):
                return False
            shutil.copyfile(place, aside)
            if sha256_of(aside) == sha256:
                os.replace(aside, self.staged(sha256))
                return True
            os.unlink(aside)
        return False

    def apply(self, digest: str) -> None:
        tree, plan = self.tree, self.plan
        # After a kill, the next sync knows by this which files in place come from sync.
        journal = [row[:5] for row in plan.make]
        write_json_atomically(
            tree.state_directory + b"/pending.json", {"rows": [*tree.pending, *journal]}, durable=False
        )
        for path in plan.remove:
            self._remove(tree.at(path))
        for path in plan.aside:
            os.rename(tree.at(path), self._beside(path))
        left = {sha: len(rows) for sha, rows in self.contents.items()}
        for row in plan.make:
            self._make(row, left)
        for row in plan.modes:
            os.chmod(tree.at(row[0]), row[2])
        self._record(digest)

    def _remove(self, place: bytes) -> None:
        if not stat.S_ISDIR(os.lstat(place).st_mode):
            os.unlink(place)
            return
        try:
            os.rmdir(place)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # a run has just written there
                raise

    def _make(self, row: Row, left: dict[str, int]) -> None:
        path, kind, mode, _, what = row
        place = self.tree.at(path)
        if kind == "d":
            os.mkdir(place)
            os.chmod(place, mode)
            return
        aside = self.tree.stage + b"/next"
        if kind == "l":
            with contextlib.suppress(FileNotFoundError):
                os.unlink(aside)
            os.symlink(encode_name(what), aside)
        else:
            left[what] -= 1
            source = self.staged(what)
            if left[what]:
                shutil.copyfile(source, aside)
                source = aside
            os.chmod(source, mode)
            aside = source
        os.replace(aside, place)

    def _beside(self, path: str) -> bytes:
        number = 1
        while look(self.tree.at(f"{path}.node-{number}")) is not None:
            number += 1
        return bytes(self.tree.at(f"{path}.node-{number}"))

    def _record(self, digest: str) -> None:
        plan, tree = self.plan, self.tree
        blocked, kept = set(plan.blocked), set(plan.kept)
        made = {row[0] for row in plan.make}
        rows = []
        for path, row in plan.wanted.items():
            found = look(tree.at(path))
            looks = None
            if found is not None and path not in blocked and path not in kept:
                looks = [found.st_size, found.st_mtime_ns, found.st_ino]
            rows.append([*row[:5], looks, path not in blocked and (path in made or path in plan.old)])
        write_json_atomically(tree.state_directory + b"/state.json", {"digest": digest, "rows": rows})
        os.unlink(tree.state_directory + b"/pending.json")
        shutil.rmtree(tree.stage, ignore_errors=True)


def frames(stream: BinaryIO) -> Iterator[tuple[str, int]]:
    while True:
        line = stream.readline(1 << 12)
        if not line.endswith(b"\n"):
            raise AgentError("the connection broke off while files came", "run it again")
        header = json.loads(line)
        if header.get("end"):
            return
        if not SHA256.fullmatch(str(header["sha256"])):
            raise AgentError("a file came without a hash")
        yield header["sha256"], int(header["size"])


def receive_contents(stage: bytes, stream: BinaryIO) -> None:
    """Contents from a stream into the stage, each whole and with its hash or not at all."""
    for sha256, size in frames(stream):
        digest, left = hashlib.sha256(), size
        aside = stage + b"/" + sha256.encode() + b".part"
        with open(aside, "wb") as file:
            while left:
                piece = stream.read(min(CHUNK, left))
                if not piece:
                    raise AgentError("the connection broke off while files came", "run it again")
                file.write(piece)
                digest.update(piece)
                left -= len(piece)
        if digest.hexdigest() != sha256:
            os.unlink(aside)
            raise AgentError("a file of the project changed while it was sent", "run it again")
        os.replace(aside, stage + b"/" + sha256.encode())


def stage_from_store(stage: bytes, place: bytes) -> None:
    """Link or copy a content from the content store, or unpack a parcel of many."""
    sha256, name = place.split(b"/")[-2:]
    if not os.path.exists(place):
        return
    if name == b"parcel":
        with open(place, "rb") as file:
            receive_contents(stage, file)
        return
    try:
        os.link(place, stage + b"/" + sha256)  # it stays in the store, too, for those who get it from here
    except FileExistsError:
        return
    except OSError:
        aside = stage + b"/" + sha256 + b".part"
        shutil.copyfile(place, aside)
        os.replace(aside, stage + b"/" + sha256)


def read_manifest(request: Json, stream: BinaryIO) -> list[Row]:
    """The manifest; none of its paths may lead out of the tree or into the state directory."""
    packed = stream.read(int(request["manifest"]))
    if len(packed) != int(request["manifest"]):
        raise AgentError("the connection broke off while the list of files came", "run it again")
    rows: list[Row] = json.loads(gzip.decompress(packed))
    for row in rows:
        parts = row[0].split("/")
        if "\0" in row[0] or parts[0] == STATE_DIRECTORY or any(part in ("", ".", "..") for part in parts):
            raise AgentError(f"{row[0]!r} can't be a path in a tree")
    return rows


def put(request: Json, stream: BinaryIO) -> Json:
    home, mine, ended = home_of(request), request.get("lease"), request.get("ended", [])
    trees = generations(home, request["project"])
    number = int(request["generation"])
    tree = next((tree for tree in trees if tree.generation == number), None)
    tree = tree or Tree(home, request["project"], number)
    others = [other for other in trees if other.generation != number]
    rows = read_manifest(request, stream)
    if request.get("dry_run"):
        return report_of(Plan(tree, rows), dry_run=True)
    with tree.lock():
        make_private_directory(tree.stage)
        try:
            for place in request.get("blobs", []):
                stage_from_store(tree.stage, os.fsencode(place))
            receive_contents(tree.stage, stream)
            plan = Plan(tree, rows)
            update = TreeUpdate(plan)
            if lacking := update.lacking(others):
                return {"need": lacking}
        except OSError:
            shutil.rmtree(tree.stage, ignore_errors=True)  # nothing is in place yet, and the room may be needed
            raise
        if plan.changes and (busy := tree.held(mine, ended)):
            return {"busy": busy}
        for other in others:
            other.release(mine)
        for run in [*ended, *(run for run in tree.runs() if has_ended(tree, run))]:
            tree.release(run)
        update.apply(request["digest"])
        tree.lease(mine)
        return report_of(plan)


def report_of(plan: Plan, *, dry_run: bool = False) -> Json:
    files = [row[0] for row in plan.make if row[1] != "d"]
    gone = [path for path in plan.remove if any(row[1] != "d" for row in plan.old[path])]
    return {
        "path": decode_name(plan.tree.path),
        "changed": plan.changes,
        "placed": len(files),
        "deleted": len(gone),
        "kept": plan.kept[:SHOWN],
        "blocked": plan.blocked[:SHOWN],
        "aside": plan.aside[:SHOWN],
        **({"place": files, "delete": gone} if dry_run else {}),
    }


def main(action: str) -> int:
    return answer(explaining({"put": put}[action]))
