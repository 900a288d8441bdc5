"""The upload of a project waits for the preflight checks, and only if a host lacks some of it."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ipexctl.run.start.request import StartError, StartFailure
from ipexctl.run.start.start_notes import restart_note
from ipexctl.run.start.upload import upload_project
from ipexctl.script_file import ProjectLocation
from plan_helpers import changed, small_plan, spec_of

SPEC = spec_of(project=ProjectLocation(Path("/here/project"), ".", ("train.py",)))
CONTEXT: Any = SimpleNamespace(facts={}, spec=SPEC)
LEFT_OUT = "left out: .env (credentials; --include PATTERN sends them)"


@dataclass
class Report:
    path: str = "/there/project"
    hosts: tuple[object, ...] = ()
    notes: tuple[str, ...] = ("NOTE",)
    warnings: tuple[str, ...] = ()


@dataclass
class Sync:
    needs_upload: bool
    is_uploaded: bool = False
    dry_run: bool = False
    warnings: tuple[str, ...] = ()
    facts: dict[str, object] = field(default_factory=dict)
    project: Any = field(default_factory=lambda: SimpleNamespace(root=Path("/here/project"), notes=(LEFT_OUT,)))

    def upload(self) -> Report:
        self.is_uploaded = True
        return Report(notes=(*self.project.notes, "NOTE"), warnings=self.warnings)


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def test_nothing_is_uploaded_after_a_failed_preflight() -> None:
    sync = Sync(needs_upload=True)
    failed: Future[Any] = Future()
    failed.set_exception(StartError(StartFailure("REASON")))
    with pytest.raises(StartError, match="REASON"):
        upload_project(done(sync), CONTEXT, print, failed)
    assert not sync.is_uploaded


def test_a_complete_tree_does_not_wait_for_the_preflight() -> None:
    notes: list[str] = []
    still_running: Future[Any] = Future()
    tree, seconds = upload_project(
        done(Sync(needs_upload=False, warnings=("IN THE WAY",))), CONTEXT, notes.append, still_running
    )
    assert tree == "/there/project"
    assert 0 <= seconds < 10
    assert notes == [f"note: {LEFT_OUT}", "note: NOTE", "warning: IN THE WAY"]


def test_what_is_left_out_of_a_project_is_said_once_until_it_changes(tmp_path: Path) -> None:
    """Other notes are about this call. -v says all, and so does a dry run, which is no run."""
    root = tmp_path / "project"
    root.mkdir()

    def said(left_out: str = LEFT_OUT, *, dry_run: bool = False, **options: Any) -> list[str]:
        sync, notes = Sync(needs_upload=False, dry_run=dry_run), list[str]()
        sync.project = SimpleNamespace(root=root, notes=(left_out,) if left_out else ())
        spec = changed(SPEC, **options)
        context: Any = SimpleNamespace(facts={}, spec=spec, asked=spec.asked)
        upload_project(done(sync), context, notes.append)
        return [note.removeprefix("note: ") for note in notes]

    assert said(dry_run=True) == said() == [LEFT_OUT, "NOTE"]
    assert said() == ["NOTE"]
    assert said(repeats_notes=True) == said(dry_run=True) == [LEFT_OUT, "NOTE"]
    assert said("left out: .env, key.pem") == ["left out: .env, key.pem", "NOTE"]
    assert said("") == ["NOTE"]
    assert said() == [LEFT_OUT, "NOTE"]


def test_project_without_sync_keeps_its_local_path() -> None:
    assert upload_project(None, CONTEXT, print) == ("/here/project", 0.0)


def test_restarts_on_hosts_without_a_shared_home_are_warned_of() -> None:
    names = ("node1", "node2", "node3")
    note = restart_note(small_plan(names, stores={"node1": "a", "node2": "a", "node3": "b"}))
    assert "node1" in note
    assert "node3" in note
    assert "node2" not in note
    assert "--checkpoint" in note
    assert restart_note(small_plan(names, stores=dict.fromkeys(names, "a"))) == ""


@pytest.mark.parametrize(
    ("stores", "restarts", "expected"),
    [
        (("a", "a", "a"), 0, ""),
        (("a", "a", "b"), 0, "out/last.pt"),  # two stores are enough to differ
        (("a", "b", "c"), 2, "out/last.pt"),
    ],
)
def test_checkpoint_is_exchanged_if_the_hosts_with_ranks_have_more_than_one_store(
    stores: tuple[str, ...], restarts: int, expected: str
) -> None:
    names = ("node1", "node2", "node3")
    asked = {"checkpoint": "out/last.pt", "max_restarts": restarts}
    plan = small_plan(names, stores={**dict(zip(names, stores, strict=True)), "without-ranks": "z"}, asked=asked)
    assert plan.exchanged == expected
