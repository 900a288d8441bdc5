"""Checkpoints that a run may resume from are kept with the run that wrote them, and go with it."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import pytest

from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.home_entries import drop_kept_copies, kept_copies
from ipexctl.node.common.records import RunStatus, TrainingProgress, has_gone_on
from ipexctl.node.files import kept_checkpoint
from ipexctl.node.files.kept_checkpoint import KeepRequest, KeptCheckpoint, keep_checkpoint

FIRST, SECOND = "loop-1130-071941-e7bd", "loop-1130-072000-3f95"


def save(path: Path, text: str, at: float) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.pkl", text)
    os.utime(path, (at, at))
    return path


@pytest.fixture
def request_(tmp_path: Path) -> KeepRequest:
    home, cwd = tmp_path / "home", tmp_path / "project"
    home.mkdir(mode=0o700)
    for run, begun in {FIRST: 1000.0, SECOND: 2000.0}.items():
        rundir = home / "runs" / run
        rundir.mkdir(parents=True)
        status = {"schema": "ipexctl.status/1", "id": run, "state": "failed", "supervisor": {}, "ranks": []}
        for name, document in {"plan.json": {"cwd": str(cwd)}, "status.json": status}.items():
            (rundir / name).write_text(json.dumps(document))
        os.utime(rundir / "plan.json", (begun, begun))
        os.utime(rundir / "status.json", (begun + 500, begun + 500))
    return {
        "home": str(home),
        "cwd": str(cwd),
        "resumed": [FIRST],
        "recorded": "",
        "path": str(cwd / "out"),
        "superseded": [],
        "sets_aside": False,
    }


def kept_of(request: KeepRequest, run: str) -> dict[str, str]:
    base = Path(kept_copies(f"{request['home']}/runs/{run}"))
    files = [path for path in base.rglob("*") if path.is_file()]
    return {str(path).replace(str(base), ""): zipfile.ZipFile(path).read("data.pkl").decode() for path in files}


def test_the_newest_of_each_name_is_kept_with_the_run_that_wrote_it(request_: KeepRequest) -> None:
    out = Path(request_["path"])
    for name, at in {"ck_5.pt": 1050, "ck_10.pt": 1100, "best.pt": 1075, "old.pt": 900}.items():
        save(out / name, f"{name} of first", at)
    assert keep_checkpoint(request_) == KeptCheckpoint(str(out / "ck_10.pt"), FIRST, 1100)
    kept = {str(out / name): f"{name} of first" for name in ("ck_10.pt", "best.pt")}
    assert kept_of(request_, FIRST) == kept
    with open(save(out / "ck_10.pt", "of second", 2100), "r+b") as file:  # in place
        file.write(file.read())
    os.utime(out / "ck_10.pt", (2100, 2100))
    assert keep_checkpoint({**request_, "resumed": [FIRST, SECOND]}).run == SECOND
    assert kept_of(request_, FIRST) == kept
    assert kept_of(request_, SECOND) == {str(out / "ck_10.pt"): "of second"}
    drop_kept_copies(f"{request_['home']}/runs/{FIRST}")
    assert not (Path(request_["home"]) / "results" / FIRST).exists()


def content(path: Path) -> str:
    return zipfile.ZipFile(path).read("data.pkl").decode()


@pytest.mark.parametrize("is_directory", [False, True])
def test_a_checkpoint_that_another_run_has_replaced_is_put_back(request_: KeepRequest, *, is_directory: bool) -> None:
    out = Path(request_["path"])
    first, second = (f"checkpoint-{number}/model.bin" if is_directory else f"ck_{number}.pt" for number in (10, 20))
    save(out / first, "of first", 1100)
    keep_checkpoint(request_)
    save(out / first, "of second", 2100)
    save(out / second, "of second", 2200)
    found = keep_checkpoint(request_)
    unit, other = (out / name.partition("/")[0] for name in (first, second))
    assert found == KeptCheckpoint(str(unit), FIRST, 1100, f"{SECOND}:{other}")
    assert content(out / first) == "of first"
    assert sorted(os.listdir(out)) == [unit.name]
    assert kept_of(request_, SECOND) == {str(out / first): "of second", str(out / second): "of second"}
    assert keep_checkpoint(request_) == found._replace(replaced="")


def test_what_another_run_writes_meanwhile_is_not_removed(
    request_: KeepRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of a host that shares this directory has no process here."""
    last = save(Path(request_["path"]) / "last.pt", "of first", 1100)
    keep_checkpoint(request_)
    save(last, "of second", 2100)

    def write(_: str) -> set[str]:
        save(last, "newer of second", 2200)
        return set()

    monkeypatch.setattr(kept_checkpoint, "runs_with_processes", write)
    with pytest.raises(AgentError, match="changed while it was copied"):
        keep_checkpoint(request_)
    assert content(last) == "newer of second"


def test_a_checkpoint_of_another_run_stays_unless_another_host_has_one_of_this_run(request_: KeepRequest) -> None:
    out = Path(request_["path"])
    last = save(out / "last.pt", "of second", 2100)
    other = save(out / "vae.pt", "of second", 2100)
    request: KeepRequest = {**request_, "recorded": str(last)}
    assert keep_checkpoint(request) == KeptCheckpoint(str(last), SECOND, 2100)
    assert last.exists()
    assert keep_checkpoint({**request, "sets_aside": True}) == KeptCheckpoint(replaced=f"{SECOND}:{last}")
    assert not last.exists()
    assert other.exists()
    assert set(kept_of(request_, SECOND)) == {str(last), str(other)}


def test_what_does_not_fit_is_refused_and_leaves_nothing(
    request_: KeepRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(Path(request_["path"]) / "last.pt", "x", 1100)
    monkeypatch.setattr(kept_checkpoint, "free_space", lambda _: 1000)
    with pytest.raises(AgentError, match=r"has to be kept .* the disk is full") as refused:
        keep_checkpoint(request_)
    assert f"ipexctl fetch {FIRST}:{request_['path']}/last.pt out/" in refused.value.fix
    assert kept_of(request_, FIRST) == {}


@pytest.mark.parametrize(
    ("now", "before", "checkpoint", "gone_on"),
    [
        (30, 12, "a.pt", True),
        (12, 12, "a.pt", False),
        (30, 12, "", False),
        (None, 12, "a.pt", False),
        (30, None, "a", False),
    ],
)
def test_a_run_has_gone_on_with_more_steps_and_a_checkpoint(
    now: int | None, before: int | None, checkpoint: str, gone_on: bool
) -> None:
    run = RunStatus("b", "ok", checkpoint=checkpoint, progress=TrainingProgress(now))
    assert has_gone_on(run, RunStatus("a", "failed", progress=TrainingProgress(before))) == gone_on
