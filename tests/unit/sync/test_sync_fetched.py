"""Paths created by fetch are recorded and left out of a sync; paths that existed before are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from sync_helpers import put

from ipexctl.files.destination import Destination
from ipexctl.node.files.manifest import ManifestEntry
from ipexctl.sync.path_notes import fetched_below, note_fetched
from ipexctl.sync.project import read_project


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    project = tmp_path / "project"
    put(project, "train.py", "print()")
    return project


def files(root: Path, *includes: str) -> list[str]:
    return [entry.path for entry in read_project(root, includes=includes).manifest.entries if entry.kind == "f"]


def test_fetched_paths_are_left_out_listed_and_sent_by_include(root: Path) -> None:
    for name in ("out/a.pt", "weights.pt", "own.pt", "tool.py"):
        put(root, name, "x")
    note_fetched(str(root / name) for name in ("out", "weights.pt", "tool.py"))
    found = read_project(root)
    assert files(root) == ["own.pt", "tool.py", "train.py"]
    assert found.fetched == ("out/", "weights.pt")
    assert any("out/" in note and "--include" in note for note in found.notes)
    assert files(root, "weights.pt") == ["own.pt", "tool.py", "train.py", "weights.pt"]
    put(root, ".ipexctlignore", "!weights.pt\n")
    assert "weights.pt" in files(root)
    assert fetched_below(root / "out") == frozenset()


def test_removed_paths_are_no_longer_recorded_as_fetched(root: Path) -> None:
    put(root, "out/a.pt", "x")
    note_fetched([str(root / "out/a.pt"), str(root / "gone")])
    assert fetched_below(root) == {"out/a.pt"}
    (root / "out/a.pt").unlink()
    note_fetched([str(root / "train.py")])
    put(root, "out/a.pt", "the user's own")
    assert "out/a.pt" in files(root)


def test_project_that_was_fetched_completely_is_synced(root: Path) -> None:
    note_fetched([str(root)])
    assert files(root) == ["train.py"]


def directory(path: str) -> ManifestEntry:
    return ManifestEntry(path, "d", 0o755, 0, "")


def test_destination_lists_the_topmost_created_paths(root: Path) -> None:
    put(root, "there/x", "1")
    with Destination(str(root)) as destination:
        for path in ("there", "there/new", "there/new/deep", "other"):
            destination.inspect(directory(path))
        destination.close_directories()
        assert destination.created == [str(root / "there/new"), str(root / "other")]
    with Destination(str(root / "there/y/z")) as destination:
        assert destination.created == [str(root / "there/y")]
