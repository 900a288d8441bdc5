"""A push whose host is this machine, from SRC to PATH: what others do to both while it runs."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from sync_helpers import LOCAL_HOST, LocalConnector

from ipexctl.files.file_transfer import FileTransfer
from ipexctl.files.push_files import Push, PushOptions, PushReport
from ipexctl.files.push_source import PushSource, list_source
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import OpenHosts, SessionPool
from ipexctl.remote.outcome import ignore_event

LARGE = bytes(range(256)) * 8000


def read(source: Path) -> PushSource:
    return list_source(source).hashed(ignore_event, Cancel())


def push(source: PushSource, path: Path) -> PushReport:
    with SessionPool(LocalConnector([]), Cancel(), forks=1) as pool:  # type: ignore[arg-type]
        opened = OpenHosts((LOCAL_HOST,), pool, str(path.parent / "home"))
        return Push(source, "src", opened, PushOptions(str(path))).run()


@pytest.mark.parametrize("content", [b"small", LARGE], ids=["small", "large"])
@pytest.mark.parametrize("is_longer", [True, False])
def test_a_source_that_changes_during_the_push_is_named(tmp_path: Path, content: bytes, is_longer: bool) -> None:
    source = tmp_path / "src"
    source.write_bytes(content)
    found = read(source)
    source.write_bytes(content + b"more" if is_longer else content[::-1])
    (host,) = push(found, tmp_path / "path").hosts
    assert (host.status, host.reason) == ("failed", f"{source} on this machine changed while it was sent")
    assert host.fix == "run it again when it is complete"
    (host,) = push(read(source), tmp_path / "path").hosts
    assert (host.status, (tmp_path / "path").read_bytes()) == ("changed", source.read_bytes())
    assert {entry.name for entry in tmp_path.iterdir()} == {"src", "path", "home"}
    kept = {path.relative_to(tmp_path / "home").parts[0] for path in (tmp_path / "home").rglob("*") if path.is_file()}
    assert kept == {".ipexctl-home", "pushed"}  # the marker, and whose path this is, for `uninstall`


def test_a_tree_of_any_depth_is_copied(tmp_path: Path) -> None:
    deep = f"{'d/' * 1500}f"
    subprocess.run(["mkdir", "-p", tmp_path / "src" / deep], check=True)
    try:
        (host,) = push(read(tmp_path / "src"), tmp_path / "path").hosts
        assert (host.status, host.reason) == ("changed", "")
        assert (tmp_path / "path" / deep).is_dir()
    finally:  # pytest's own way to remove it is recursive
        subprocess.run(["rm", "-rf", tmp_path / "src", tmp_path / "path"], check=True)


def test_small_files_are_packed_in_a_file_that_a_killed_push_does_not_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "src").mkdir()
    for name in ("a", "b"):
        (tmp_path / "src" / name).write_text(name)
    temporary, bring = tmp_path / "temporary", FileTransfer._bring
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    seen: list[list[Path]] = []

    def look(*args: Any) -> None:
        seen.append([*temporary.iterdir()])
        bring(*args)

    monkeypatch.setattr(FileTransfer, "_bring", look)
    assert push(read(tmp_path / "src"), tmp_path / "path").hosts[0].status == "changed"
    assert seen == [[]]


@pytest.mark.parametrize("step", ["_send", "_place"])
def test_two_pushes_of_the_same_files_to_one_path_both_succeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The second one ends while the first one is about to send, or to put what it has sent in place."""
    source, target = tmp_path / "src", tmp_path / "path"
    for name, content in (("large", LARGE), ("a", b"a"), ("sub/b", b"b")):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(content)
    found, go_on = read(source), getattr(Push, step)

    def interrupted(*args: object) -> object:
        monkeypatch.undo()
        assert push(found, target).hosts[0].status == "changed"
        return go_on(*args)

    monkeypatch.setattr(Push, step, interrupted)
    (host,) = push(found, target).hosts
    assert (host.status, host.reason) == ("ok", "")
    assert [path.name for path in target.rglob("*") if path.is_file()] == ["large", "a", "b"]


def test_what_a_killed_push_has_left_goes_once_the_files_are_there(tmp_path: Path) -> None:
    source, target = tmp_path / "src", tmp_path / "path"
    for name in ("a", "b"):
        source.mkdir(exist_ok=True)
        (source / name).write_bytes(LARGE + name.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Push, "_place", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            push(read(source), target)
    assert {path.name[:13] for path in target.iterdir()} == {".ipexctl-push"}
    for name in ("a", "b"):
        (target / name).write_bytes((source / name).read_bytes())
    assert push(read(source), target).hosts[0].status == "ok"
    assert sorted(path.name for path in target.iterdir()) == ["a", "b"]
