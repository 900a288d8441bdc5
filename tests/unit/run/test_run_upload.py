"""The upload of a project waits for the preflight checks, and only if a host lacks some of it."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from ipexctl.launch.spec import RunSpec
from ipexctl.node.common.run_options import Export, RunOptions
from ipexctl.projects.script_file import ProjectLocation
from ipexctl.remote.connector import OpenHosts
from ipexctl.run.start import upload
from ipexctl.run.start.start_notes import batch_notes, restart_notes, shell_notes
from ipexctl.run.start.start_request import StartError, StartFailure
from plan_helpers import changed, small_plan, spec_of

SPEC = spec_of(project=ProjectLocation(Path("/here/project"), ".", ("train.py",)))
CONTEXT: Any = SimpleNamespace(facts={})
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


READ: Any = SimpleNamespace(manifest=SimpleNamespace(entries=(), summary="1 file"))


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(upload, "read_project", lambda *_, **__: READ)


def compared(
    monkeypatch: pytest.MonkeyPatch, sync: Sync, notes: list[str], spec: RunSpec = SPEC
) -> upload.ProjectUpload:
    """The hosts' answers are this sync. `notes` are those of the upload."""
    monkeypatch.setattr(upload, "query_project", lambda *_, **__: sync)
    opened = OpenHosts((), Mock())
    project = upload.ProjectUpload(spec, opened, notes.append)
    project.compare(lease="r")
    project.content()
    notes.clear()
    return project


def test_nothing_is_uploaded_after_a_failed_preflight(monkeypatch: pytest.MonkeyPatch) -> None:
    sync = Sync(needs_upload=True)
    failed: Future[Any] = Future()
    failed.set_exception(StartError(StartFailure("REASON")))
    with pytest.raises(StartError, match="REASON"):
        compared(monkeypatch, sync, []).upload(CONTEXT, failed)
    assert not sync.is_uploaded


def test_a_complete_tree_does_not_wait_for_the_preflight(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    still_running: Future[Any] = Future()
    project = compared(monkeypatch, Sync(needs_upload=False, warnings=("IN THE WAY",)), notes)
    seconds = project.upload(CONTEXT, still_running)
    assert project.tree == "/there/project"
    assert 0 <= seconds < 10
    assert notes == [f"note: {LEFT_OUT}", "note: NOTE", "warning: IN THE WAY"]


def test_a_second_start_of_the_call_compares_the_project_that_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bare hosts: the first start finds no environment, and the second follows the install."""
    read, leases = Mock(return_value=READ), list[str]()
    monkeypatch.setattr(upload, "read_project", read)
    monkeypatch.setattr(upload, "query_project", lambda *_, lease, **__: leases.append(lease))
    clean_up = Mock(return_value=frozenset())
    monkeypatch.setattr(upload, "clean_up", clean_up)
    project = upload.ProjectUpload(SPEC, OpenHosts((), Mock()), lambda _: None)
    for lease in ("first", "second"):
        project.compare(lease)
        project.release()
    assert (read.call_count, leases) == (1, ["first", "second"])
    assert [call.args[1].rpartition("/")[2] for call in clean_up.call_args_list] == ["first", "second"]


def test_what_is_left_out_of_a_project_is_said_once_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other notes are about this call. -v says all, and so does a dry run, which is no run."""
    root = tmp_path / "project"
    root.mkdir()

    def said(left_out: str = LEFT_OUT, *, dry_run: bool = False, **options: Any) -> list[str]:
        sync, notes = Sync(needs_upload=False, dry_run=dry_run), list[str]()
        sync.project = SimpleNamespace(root=root, notes=(left_out,) if left_out else ())
        compared(monkeypatch, sync, notes, changed(SPEC, **options)).upload(CONTEXT)
        return [note.removeprefix("note: ") for note in notes]

    assert said(dry_run=True) == said() == [LEFT_OUT, "NOTE"]
    assert said() == ["NOTE"]
    assert said(repeats_notes=True) == said(dry_run=True) == [LEFT_OUT, "NOTE"]
    assert said("left out: .env, key.pem") == ["left out: .env, key.pem", "NOTE"]
    assert said("") == ["NOTE"]
    assert said() == [LEFT_OUT, "NOTE"]


def test_project_without_sync_keeps_its_local_path() -> None:
    project = upload.ProjectUpload(changed(SPEC, sync=False), Mock(), lambda _: None)
    project.compare(lease="r")
    assert project.upload(CONTEXT) == 0.0
    assert project.tree == "/here/project"
    assert project.release() == frozenset()


def test_restarts_on_hosts_without_a_shared_home_are_warned_of() -> None:
    names = ("node1", "node2", "node3")
    context: Any = SimpleNamespace(asked=RunOptions(max_restarts=1))
    apart = small_plan(names, stores={"node1": "a", "node2": "a", "node3": "b"})
    (note,) = restart_notes(context, apart)
    assert "node1" in note
    assert "node3" in note
    assert "node2" not in note
    assert "--checkpoint" in note
    assert list(restart_notes(context, small_plan(names, stores=dict.fromkeys(names, "a")))) == []
    for more in ({"max_restarts": 0}, {"keep_going": True}, {"checkpoint": "out"}):
        asked = context.asked._replace(**more)
        assert list(restart_notes(SimpleNamespace(asked=asked), apart)) == []  # type: ignore[arg-type]


def test_resumed_run_with_fewer_ranks_says_what_its_batch_is() -> None:
    def notes(text: str = "", *, first: int = 4, resumed: tuple[str, ...] = ("r",)) -> list[str]:
        script = SimpleNamespace(text=text)
        spec: Any = SimpleNamespace(project=SimpleNamespace(script=script))
        context: Any = SimpleNamespace(asked=RunOptions(resumed=resumed), spec=spec)
        plan = small_plan(("node1", "node2"))._replace(first_world_size=first)
        assert plan.world_size == 2
        return list(batch_notes(context, plan))

    (note,) = notes()
    assert "2 ranks instead of 4" in note
    assert "(2/4)" in note
    assert notes(first=2) == notes(resumed=()) == notes('os.environ["IPEXCTL_FIRST_WORLD_SIZE"]') == []


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


@pytest.mark.parametrize(
    ("shell", "asked", "is_noted"),
    [
        ({"OMP_NUM_THREADS": "1"}, {}, True),
        ({"OMP_NUM_THREADS": "2"}, {}, False),
        ({}, {}, False),
        ({"OMP_NUM_THREADS": "1"}, {"omp": 2}, False),
        ({"OMP_NUM_THREADS": "1"}, {"exports": (Export("OMP_NUM_THREADS", "-x", "2"),)}, False),
    ],
)
def test_threads_of_the_shell_that_the_plan_replaces_are_noted(
    shell: dict[str, str], asked: dict[str, Any], is_noted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = small_plan(asked=asked, variables={"OMP_NUM_THREADS": "2"})
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for name, value in shell.items():
        monkeypatch.setenv(name, value)
    note = "".join(shell_notes(CONTEXT, plan))
    assert bool(note) == is_noted
    assert ("-x OMP_NUM_THREADS, or --omp 1" in note) == is_noted
