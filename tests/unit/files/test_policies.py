"""Each row of `policies.py` on real directories, and as the table of docs/sync.md."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from ipexctl.files.destination import Destination
from ipexctl.node.common.answer import AgentError
from ipexctl.node.files import policies, push, store
from ipexctl.node.files.checkpoint import CheckpointFiles
from ipexctl.node.files.file_stream import END, header_line
from ipexctl.node.files.manifest import ManifestEntry
from ipexctl.node.files.place import CONTENT
from ipexctl.node.files.policies import Action, Policy, State
from ipexctl.node.files.tree import generations
from ipexctl.node.files.tree_upload import put_into

Files = dict[str, bytes | None]
"""Path → content; None for a directory."""
STRANGER = 61002

PAGE = Path(__file__).parents[3] / "docs/sync.md"
COLUMNS = {
    "`sync`": policies.TREE,
    "`push`": policies.PATH,
    "`fetch`": policies.DOWNLOAD,
    "`--checkpoint`": policies.CHECKPOINT,
}
STATES: dict[State, str] = {
    "missing": "nothing",
    "equal": "the same content",
    "similar": "the same size, another time",
    "written": "an earlier version, unchanged there",
    "changed": "changed there, not in the source",
    "both": "changed there and in the source",
    "unknown": "content that ipexctl did not write",
    "directory": "a directory where the source has a file or link",
    "no directory": "a file or link where the source has a directory",
    "stranger": "another account's entry",
    "gone": "unchanged there, deleted in the source",
    "extra": "anything else",
}
ACTIONS: dict[Action | None, str] = {
    None: "",
    "send": "written",
    "keep": "kept",
    "check": "hash decides",
    "replace": "replaced",
    "replace and keep": "replaced, kept as `NAME.node-1`",
    "delete": "deleted",
    "newest": "newest wins",
    "set aside": "set aside",
    "refuse": "refused",
    "refuse all": "all refused",
}


def table() -> str:
    rows = [f"| on the host | {' | '.join(COLUMNS)} |", f"| --- |{' --- |' * len(COLUMNS)}"]
    for state, text in STATES.items():
        cells = []
        for policy in COLUMNS.values():
            forced = policies.FORCED_PATH.actions.get(state)
            is_forced = policy is policies.PATH and forced != policy.actions.get(state)
            cells.append(ACTIONS[policy.actions.get(state)] + (f"; `--force`: {ACTIONS[forced]}" if is_forced else ""))
        rows.append(f"| {text} | {' | '.join(cells)} |")
    rows.append(f"| modes | {' | '.join('minus umask' if each.umask else 'exact' for each in COLUMNS.values())} |")
    times = ("of the source" if each.keeps_times else "of the copy" for each in COLUMNS.values())
    return "\n".join([*rows, f"| times | {' | '.join(times)} |"])


def test_the_page_has_the_table() -> None:
    page = PAGE.read_text()
    if os.environ.get("IPEXCTL_GOLDEN") == "write":
        page = re.sub(r"\| on the host \|.*?\n\n", lambda _: f"{table()}\n\n", page, count=1, flags=re.DOTALL)
        PAGE.write_text(page)
    assert table() in page, "IPEXCTL_GOLDEN=write"


OLD, NEW, HOST = b"old", b"new", b"made there"


@dataclass(frozen=True)
class Scene:
    """What the last call wrote, what was changed there since, and what the source has now."""

    sent: Files
    there: Files
    source: Files


SCENES: dict[State, Scene] = {
    "missing": Scene({}, {}, {"f": NEW}),
    "equal": Scene({}, {"f": NEW}, {"f": NEW}),
    "similar": Scene({}, {"f": b"NEW"}, {"f": NEW}),
    "written": Scene({"f": OLD}, {}, {"f": NEW}),
    "changed": Scene({"f": NEW}, {"f": HOST}, {"f": NEW}),
    "both": Scene({"f": OLD}, {"f": HOST}, {"f": NEW}),
    "unknown": Scene({}, {"f": HOST}, {"f": NEW}),
    "directory": Scene({}, {"f": None, "f/x": HOST}, {"f": NEW}),
    "no directory": Scene({}, {"f": HOST}, {"f": None, "f/x": NEW}),
    "stranger": Scene({}, {"f": HOST}, {"f": NEW}),
    "gone": Scene({"f": OLD}, {}, {}),
    "extra": Scene({}, {"f": HOST}, {}),
}
MORE_SCENES: list[tuple[State, Scene]] = [
    ("missing", Scene({"f": NEW}, {"f": b""}, {"f": NEW})),
    ("extra", Scene({"f": OLD}, {"f": HOST}, {})),
]
"""Deleted there since; changed there and deleted in the source."""
OTHER = "z"
"""A file without problems, after the others."""


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def entries_of(files: Files) -> list[ManifestEntry]:
    return [
        ManifestEntry(path, "d", 0o755, 0, "")
        if content is None
        else ManifestEntry(path, "f", 0o644, len(content), sha(content), 10**18)
        for path, content in files.items()
    ]


def packed(entries: list[ManifestEntry]) -> bytes:
    return gzip.compress(json.dumps([entry[:5] for entry in entries]).encode())


def stream(files: Mapping[str, bytes | None], **header: Any) -> bytes:
    contents = [content for content in files.values() if content is not None]
    return b"".join(header_line({"sha256": sha(each), "size": len(each), **header}) + each for each in contents) + END


def write_below(target: Path, files: Files, owner: int) -> None:
    for path, content in files.items():
        if content is None:
            (target / path).mkdir(parents=True)
        elif not content:
            (target / path).unlink()
        else:
            target.mkdir(parents=True, exist_ok=True)
            (target / path).write_bytes(content)
            os.chown(target / path, owner, -1)


def sync(target: Path, files: Files) -> bool:
    """True if something was refused, as for the others below."""
    home, manifest = target.parents[1], packed(entries_of(files))
    request: Any = {"project": target.name, "digest": "d", "lease": None, "ended": [], "dry_run": False, "data": []}
    request.update(home=str(home), manifest=len(manifest), generation=1, parcels=[])
    reply = put_into(generations(os.fsencode(home), target.name), request, io.BytesIO(manifest + stream(files)))
    assert reply.changes is not None
    return bool(reply.changes.blocked)


def pushed(target: Path, files: Files, *, force: bool = False) -> bool:
    manifest = packed([ManifestEntry("", "d", 0o755, 0, ""), *entries_of(files)])
    request: Any = {"path": str(target), "home": str(target.parent / "home"), "manifest": len(manifest)}
    request.update(is_file=False, force=force, dry_run=False, repos="", quick=False)
    try:
        found = push.inspect(request, io.BytesIO(manifest), lambda *_, **__: None)
    except AgentError:
        return True
    if found.blocked_count or (found.differing_count and not force):
        return True
    arriving = {path: content for path, content in files.items() if content and sha(content) in found.need}
    stored = f"{found.directory}/store"
    store.receive({"store": stored, "files": None}, io.BytesIO(stream(arriving, name=CONTENT)), ignore)
    push.place({"path": found.path, "listed": found.listed, "force": force, "repos": "", "parcels": []})
    return False


def ignore(*_: object, **__: object) -> None:
    pass


def fetched(target: Path, files: Files) -> bool:
    refused = False
    with Destination(str(target)) as destination:
        for entry in entries_of(files):
            try:
                missing = destination.inspect(entry)
            except AgentError:
                refused = True
                continue
            if missing is not None and missing.in_place:
                assert missing.known, "the host compares the hash"
            elif missing is not None:
                content = files[entry.path] or b""
                destination.begin(missing, 0)
                destination.write(memoryview(content))
                destination.finish(crc32(content), changed=False)
    return refused


def exchanged(target: Path, files: Files) -> bool:
    """An exchange that has decided to bring these."""
    checkpoint = CheckpointFiles(str(target), str(target.parent / "home"))
    for content in filter(None, files.values()):
        arrived = Path(checkpoint.inbox, sha(content), CONTENT)
        arrived.parent.mkdir(parents=True, exist_ok=True)
        arrived.write_bytes(content)
    copies = [entry._replace(path=f"{target.name}/{entry.path}") for entry in entries_of(files) if entry.kind == "f"]
    try:
        checkpoint.place(copies)
    except (AgentError, OSError):
        return True
    finally:
        checkpoint.close()
    return False


def stored(target: Path, files: Files) -> bool:
    """The content at f is to be that of the file of this hash."""
    place = target.parent / "wheels"
    wanted: Any = [{"sha256": sha(each), "name": path, "size": len(each)} for path, each in files.items() if each]
    for file in wanted:
        if (target / file["name"]).is_file():
            (place / file["sha256"]).mkdir(parents=True)
            (target / file["name"]).rename(place / file["sha256"] / file["name"])
    present = store.have({"store": str(place), "files": wanted, "verify": True})["have"]
    arriving = {path: content for path, content in files.items() if content and sha(content) not in present}
    for path, content in arriving.items():
        store.receive({"store": str(place), "files": None}, io.BytesIO(stream({path: content}, name=path)), ignore)
    target.mkdir(exist_ok=True)
    for file in wanted:
        (place / file["sha256"] / file["name"]).rename(target / file["name"])
    return False


def seen_action(target: Path, before: bytes | None, *, is_refused: bool) -> Action:
    """What the call did at f, to tell it from all other actions."""
    path, has_other = target / "f", (target / OTHER).is_file()
    if is_refused:
        return "refuse" if has_other else "refuse all"
    assert has_other
    now = path.read_bytes() if path.is_file() else None
    if (target / "f.node-1").exists():
        assert (now, (target / "f.node-1").read_bytes()) == (NEW, HOST)
        return "replace and keep"
    if now == before:
        return "keep"
    return "delete" if now is None else "send" if before is None else "replace"


Call = Callable[..., bool]
CALLS: list[tuple[str, Policy, Call, dict[str, bool]]] = [
    ("sync", policies.TREE, sync, {}),
    ("push", policies.PATH, pushed, {}),
    ("push --force", policies.FORCED_PATH, pushed, {"force": True}),
    ("fetch", policies.DOWNLOAD, fetched, {}),
    ("checkpoint", policies.CHECKPOINT, exchanged, {}),
    ("wheels", policies.STORE, stored, {}),
]
BY_UNITS = ("newest", "set aside")
"""Decided for several hosts at once: test_checkpoint_units.py."""
CASES = [
    pytest.param(scene, state, policy.actions[state], call, options, id=f"{name}: {state}")
    for name, policy, call, options in CALLS
    for state, scene in [*SCENES.items(), *(MORE_SCENES if call in (sync, pushed, fetched) else [])]
    if policy.actions.get(state) not in (None, *BY_UNITS)
    if not (name == "wheels" and state in ("directory", "extra"))
]


@pytest.mark.parametrize(("scene", "state", "expected", "call", "options"), CASES)
def test_a_call_does_what_the_table_says(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scene: Scene,
    state: State,
    expected: Action,
    call: Call,
    options: dict[str, bool],
) -> None:
    if state == "stranger" and os.geteuid() != 0:
        pytest.skip("two accounts need root")
    monkeypatch.setenv("HOME", str(tmp_path / "account"))
    target = tmp_path / "home/code/p-1" if call is sync else tmp_path / "target"
    if scene.sent or call is sync:  # which makes the home
        call(target, scene.sent)
    write_below(target, scene.there, STRANGER if state == "stranger" else -1)
    path = target / "f"
    before = path.read_bytes() if path.is_file() else None
    is_refused = call(target, {**scene.source, OTHER: b"other"}, **options)
    found = seen_action(target, before, is_refused=is_refused)
    assert found == ("keep" if expected == "check" else expected)
    if expected in ("refuse", "refuse all"):
        assert {
            name: (target / name).read_bytes()
            for name, content in scene.there.items()
            if content and (target / name).exists()
        } == {name: content for name, content in scene.there.items() if content}
    assert not [each for each in target.rglob("*") if re.search(r"\.part$|\.new$|ipexctl-push|/stage$", str(each))]
