"""Trees as text, and what each command does to a real directory that is to become such a tree."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from zlib import crc32

import pytest

from ipexctl.files.destination import Destination
from ipexctl.node.common.answer import AgentError
from ipexctl.node.files import push, store
from ipexctl.node.files.checkpoint_files import CheckpointFiles
from ipexctl.node.files.file_stream import END, header_line
from ipexctl.node.files.manifest import ManifestEntry
from ipexctl.node.files.place import CONTENT
from ipexctl.node.files.tree import generations, inspect, is_below
from ipexctl.node.files.tree_upload import TreePlan, put_into

STRANGER = 61002
TIME = 10**18
"""When the sources were written."""
_USUAL = {"d": 0o755, "f": 0o644, "l": 0o777, "p": 0o644}
_SIGNS = {"=": "f", ">": "l", "/": "d", "|": "p", "-": "-"}


class Node(NamedTuple):
    kind: str
    """d, f, l, or p for a FIFO; - is to be removed."""
    content: str
    mode: int

    def __str__(self) -> str:
        sign = next(sign for sign, kind in _SIGNS.items() if kind == self.kind)
        return f"{sign}{self.content}" + ("" if self.mode == _USUAL[self.kind] else f"+{self.mode:o}")


Tree = Mapping[str, Node]


def sha(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def parse(text: str) -> dict[str, Node]:
    """`a=text b/ c>target d| e-`: a file, a directory, a link, a FIFO, to remove; `#text`: its hash; `+755`: a mode.

    Directories above a path need not be written.
    """
    nodes: dict[str, Node] = {}
    for word in re.sub(r"#(\w+)", lambda found: sha(found[1]), text).split():
        name, _, mode = word.partition("+")
        found = re.fullmatch(r"([^=>]*)([=>])(.*)|(.*)([/|-])", name)
        assert found is not None, word
        path, sign, content = (found[4], found[5], "") if found[5] else (found[1], found[2], found[3])
        for above in list(Path(path).parents)[-2::-1]:
            nodes.setdefault(str(above), Node("d", "", 0o755))
        kind = _SIGNS[sign]
        nodes[path] = Node(kind, content, int(mode, 8) if mode else _USUAL.get(kind, 0))
    return nodes


def written(target: Path) -> dict[str, str]:
    """The tree that is there, as text. `.` is the target itself if that is a file or FIFO."""
    found = {}
    if target.is_fifo():
        return {".": str(Node("p", "", stat.S_IMODE(target.stat().st_mode)))}
    if target.is_file():
        return {".": str(Node("f", target.read_text(), stat.S_IMODE(target.stat().st_mode)))}
    for directory, names, files in os.walk(target):
        names[:] = [name for name in names if not name.startswith(".ipexctl")]
        for name in (*names, *files):
            path = Path(directory, name)
            kind = "l" if path.is_symlink() else "d" if path.is_dir() else "p" if path.is_fifo() else "f"
            content = os.readlink(path) if kind == "l" else path.read_text() if kind == "f" else ""
            found[str(path.relative_to(target))] = str(Node(kind, content, stat.S_IMODE(path.lstat().st_mode)))
    return found


def change(target: Path, nodes: Tree, owner: int = -1) -> None:
    """What a run or another account does there."""
    for path, node in nodes.items():
        place = target / path
        if node.kind == "-" or (node.kind in "lp" and os.path.lexists(place)):
            shutil.rmtree(place) if place.is_dir() and not place.is_symlink() else place.unlink()
        if node.kind == "d":
            place.mkdir(parents=True, exist_ok=True)
        elif node.kind == "l":
            place.symlink_to(node.content)
        elif node.kind == "p":
            os.mkfifo(place, node.mode)
        elif node.kind == "f":
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(node.content)
        if node.kind in "df" and node.mode != _USUAL[node.kind]:
            place.chmod(node.mode)
        if owner >= 0:
            os.lchown(place, owner, owner)


def entries_of(nodes: Tree) -> list[ManifestEntry]:
    return [
        ManifestEntry(path, "f", mode, len(content), sha(content), TIME)
        if kind == "f"
        else ManifestEntry(path, "d" if kind == "d" else "l", mode, 0, content)
        for path, (kind, content, mode) in nodes.items()
    ]


def packed(entries: list[ManifestEntry]) -> bytes:
    return gzip.compress(json.dumps([entry[:5] for entry in entries]).encode(), mtime=0)


def stream(contents: Mapping[str, str], **header: Any) -> bytes:
    return (
        b"".join(
            header_line({"sha256": sha256, "size": len(text), "name": CONTENT, **header}) + text.encode()
            for sha256, text in contents.items()
        )
        + END
    )


def contents_of(nodes: Tree) -> dict[str, str]:
    return {sha(node.content): node.content for node in nodes.values() if node.kind == "f"}


def nothing(*_: object, **__: object) -> None:
    pass


Then = Callable[[], object]
"""What happens after a command has looked, and before it writes."""

Said = list[str]
"""What a call did or refused: `sent 2`, `blocked f`, `failed` with its reason."""


Call = Callable[..., Said]


def named(**paths: Iterable[str]) -> Said:
    return [" ".join((word, *sorted(names))).strip() for word, names in paths.items() if names]


def counted(**numbers: int) -> Said:
    return [f"{word} {number}" for word, number in numbers.items() if number]


class Killed(Exception):
    pass


def killed(*_: object) -> NoReturn:
    raise Killed


def sync(
    target: Path,
    nodes: Tree,
    then: Then = nothing,
    *,
    data: tuple[str, ...] = (),
    is_dry: bool = False,
    killed_in: tuple[type, str] | None = None,
) -> Said:
    """`data`: directories that the host owns."""
    home, contents = target.parents[1], contents_of(nodes)
    need: tuple[str, ...] = ()
    manifest = packed(entries_of({path: node for path, node in nodes.items() if not is_below(path, [*data])}))
    request: Any = {
        "project": target.name,
        "digest": sha(manifest.hex()),
        "lease": None,
        "ended": [],
        "dry_run": is_dry,
    }
    request.update(home=str(home), manifest=len(manifest), size=0, generation=1, parcels=[], data=[*data])
    found = inspect(generations(os.fsencode(home), target.name), request).generations
    if found and found[0].whole:
        return named(kept=found[0].kept, blocked=found[0].blocked)
    apply = TreePlan.apply
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TreePlan, "apply", lambda *plan: (then(), apply(*plan)))
        if killed_in is not None:
            patch.setattr(*killed_in, killed)
        while True:
            sent = io.BytesIO(manifest + stream({sha256: contents[sha256] for sha256 in need}))
            try:
                reply = put_into(generations(os.fsencode(home), target.name), request, sent)
            except Killed:
                return []
            except AgentError as error:
                return [f"failed {error.reason}"]
            if reply.changes is not None:
                break
            assert not need
            need = reply.need
    done = reply.changes
    said = [] if is_dry else counted(received=len(need), sent=done.placed, deleted=done.deleted)
    said += named(kept=done.kept, moved=done.moved_away, blocked=done.blocked)
    return said + named(would_send=done.would_place, would_delete=done.would_delete)


def pushed(target: Path, nodes: Tree, then: Then = nothing, *, force: bool = False, is_dry: bool = False) -> Said:
    is_file = "." in nodes
    nodes = {path.removeprefix("."): node for path, node in nodes.items()} if is_file else nodes
    manifest = packed([*([] if is_file else [ManifestEntry("", "d", 0o755, 0, "")]), *entries_of(nodes)])
    request: Any = {"path": str(target), "home": str(target.parent / "home"), "manifest": len(manifest)}
    request.update(is_file=is_file, force=force, dry_run=is_dry, repos="", quick=False)
    try:
        found = push.inspect(request, io.BytesIO(manifest), nothing)
        if is_dry:
            return named(would_send=found.names)
        if found.is_refused:
            return named(blocked=found.blocked, differing=found.differing)
        if not found.directory:
            return []
        contents = contents_of(nodes)
        place: Any = {"store": f"{found.directory}/store", "files": None}
        store.receive(place, io.BytesIO(stream({sha256: contents[sha256] for sha256 in found.need})), nothing)
        then()
        asked: Any = {
            "path": found.path,
            "listed": found.listed,
            "force": force,
            "repos": "",
            "parcels": [],
            "home": str(target.parent / "home"),
            "by": None,
        }
        done = push.place(asked)
        return counted(received=len(found.need), sent=done["placed"])
    except (AgentError, OSError) as error:
        return [f"failed {error}"]


def fetched(target: Path, nodes: Tree, then: Then = nothing) -> Said:
    """A file of the same size and another time has the same content, if the host says so."""
    refused, sent = [], 0
    with Destination(str(target)) as destination:
        for entry in entries_of(nodes):
            try:
                missing = destination.inspect(entry)
                if missing is None or missing.in_place or entry.kind == "l":
                    assert missing is None or missing.known or entry.kind == "l", "the host compares the hash"
                    continue
                then()
                content = nodes[entry.path].content.encode()
                destination.begin(missing, 0)
                destination.write(memoryview(content))
                destination.finish(crc32(content), changed=False)
                sent += 1
            except AgentError:
                refused.append(entry.path)
    return counted(sent=sent) + named(refused=refused)


def exchanged(target: Path, nodes: Tree, then: Then = nothing) -> Said:
    """An exchange that has decided to bring these."""
    checkpoint = CheckpointFiles(str(target), str(target.parent / "home"))
    for sha256, content in contents_of(nodes).items():
        arrived = Path(checkpoint.inbox, sha256, CONTENT)
        arrived.parent.mkdir(parents=True, exist_ok=True)
        arrived.write_text(content)
    top = target.name
    copies = [entry._replace(path=f"{top}/{entry.path}") for entry in entries_of(nodes) if entry.kind == "f"]
    try:
        checkpoint.scan()
        then()
        checkpoint.place(copies)
    except (AgentError, OSError) as error:
        return [f"failed {error}"]
    finally:
        checkpoint.close()
    return []


def target_of(top: Path, call: Callable[..., Said]) -> Path:
    return top / "home/code/p-1" if call is sync else top / "target"


def left_over(top: Path) -> list[Path]:
    return [path for path in top.rglob("*") if re.search(r"\.part$|\.new$|\.tmp$|ipexctl-push|/stage$", str(path))]


def make_account(top: Path, patch: pytest.MonkeyPatch, umask: int = 0o022) -> None:
    patch.setenv("HOME", str(top / "account"))
    patch.setattr(push, "_umask", umask)
    os.umask(umask)
