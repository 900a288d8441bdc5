"""A home without ipexctl: everything that it put there is removed, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sync_helpers import Place

from agent_helpers import all_pythons, mark_home
from env_helpers import Home, said, start
from ipexctl.node.common.fix import fix_from_json
from ipexctl.node.common.home import MARK
from ipexctl.node.common.processes import own_identity
from ipexctl.node.common.store_lock import Marker
from ipexctl.remote.caller import removal_request
from message_data import missing

MACHINE = os.uname().nodename
DEAD = {"pid": 2**22 + 1, "start": 1, "machine": MACHINE}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home with an environment, a synced project that a run wrote to, and a run that has ended."""
    base = tmp_path_factory.mktemp("filled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(base / "cache"))
        home = Home.below(base)
        mark_home(home.path)
        home.build()
        project = base / "project"
        (project / "deep").mkdir(parents=True)
        for name in ("train.py", "deep/model.py", "data.txt"):
            (project / name).write_text(name)
        tree = Place(project, home.path)
        tree.synced()
        (tree.tree / "deep/__pycache__").mkdir()
        (tree.tree / "deep/__pycache__/model.cpython-311.pyc").touch()
        (tree.tree / "checkpoints").mkdir()
        (tree.tree / "checkpoints/last.pt").write_text("weights")
        (tree.tree / "data.txt").write_text("a run changed it")
        make_run(home.path, "old_run-1120-132512-9f3a", {"state": "ok", "supervisor": DEAD})
        (home.path / "runs/.pruned.jsonl").touch()
        yield base


def make_run(home: Path, name: str, status: dict[str, Any] | None) -> Path:
    rundir = home / "runs" / name
    (rundir / "ranks").mkdir(parents=True)
    (rundir / "ranks/0000.out").write_text("loss 0.1\n")
    (rundir / "ranks/0000.meter").write_bytes(b"ipexrnk1")
    (rundir / "ranks/0000.err").touch()
    (rundir / "agent.zip").touch()
    if status is not None:
        document = {"schema": "ipexctl.status/1", "id": name, "ranks": [], "world_size": 1, "ended": 0, **status}
        (rundir / "status.json").write_text(json.dumps(document))
    return rundir


@pytest.fixture
def home(filled: Path, tmp_path: Path) -> Path:
    """A copy: its times and inodes differ from those that sync recorded, so contents are compared."""
    return shutil.copytree(filled / "home", tmp_path / "home", symlinks=True)


def agent(
    action: str,
    home: Path,
    *,
    results: bool = False,
    python: str = sys.executable,
    ended: tuple[str, ...] = (),
    known: tuple[str, ...] = (),
    force: bool = False,
) -> dict[str, Any]:
    request = {
        "home": str(home),
        "results": results,
        "ended": ended,
        **removal_request(force=force, known=known),
    }
    return said(start("uninstall", action, request, python=python))


def files(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if not path.is_dir()}


def snapshot(directory: Path) -> set[tuple[str, int]]:
    return {(str(path), path.lstat().st_mtime_ns) for path in directory.rglob("*")}


def kinds(entries: list[dict[str, Any]]) -> dict[str, int]:
    return {entry["kind"]: entry["entries"] for entry in entries}


@pytest.mark.parametrize("python", all_pythons())
def test_list_names_everything_and_changes_nothing(home: Path, python: str) -> None:
    before = snapshot(home)
    reply = agent("list", home, python=python)
    found = kinds(reply["found"])
    assert found.pop("wheels") > 1
    assert found == {"environments": 1, "runs": 1, "projects": 1, "agent": 1}
    assert kinds(reply["left"]) == {"runs": 1, "projects": 2}
    assert (reply["live"], reply["busy"], reply["logins"]) == ([], [], False)
    assert snapshot(home) == before


def test_only_files_written_by_runs_are_kept(home: Path) -> None:
    reply = agent("remove", home)
    tree = f"code/{next(path.name for path in (home / 'code').iterdir())}"
    assert files(home) == {
        MARK,
        f"{tree}/checkpoints/last.pt",
        f"{tree}/data.txt",
        "runs/old_run-1120-132512-9f3a/ranks/0000.out",
    }
    assert kinds(reply["left"]) == {"runs": 1, "projects": 2}
    assert agent("list", home)["found"] == []


def test_the_cache_of_a_hub_goes_and_other_files_beside_it_stay(home: Path) -> None:
    for name in (
        "hub/models--org--m/blobs/x",
        "hub/version.txt",
        "datasets/d/x",
        "modules/m/x.py",
        "verified.json",
        "token",
    ):
        (home / "hub" / name).parent.mkdir(parents=True, exist_ok=True)
        (home / "hub" / name).write_text("x")
    assert kinds(agent("list", home)["found"])["hub"] == 4
    left = agent("remove", home, results=True)["left"]
    assert [(entry["kind"], entry["path"]) for entry in left] == [("other", f"{home}/hub/token")]
    (home / "hub/hub/mine").mkdir(parents=True)
    left = agent("remove", home)["left"]
    assert {entry["path"] for entry in left} == {f"{home}/hub/hub", f"{home}/hub/token"}


@pytest.mark.core
def test_removal_with_results_leaves_nothing(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home, tmp_path / "other", symlinks=True)
    assert agent("remove", home, results=True)["left"] == []
    assert not home.exists()
    agent("remove", tmp_path / "other")
    assert kinds(agent("list", tmp_path / "other", results=True)["found"]) == {"runs": 1, "projects": 1}
    agent("remove", tmp_path / "other", results=True)
    assert not (tmp_path / "other").exists()


def test_results_of_runs_are_kept_until_they_are_asked_for_and_other_files_beside_them_always(home: Path) -> None:
    for name in ("old_run-1120-132512-9f3a", "empty-1120-132512-aaaa", "of-a-user"):
        (home / "results" / name).mkdir(parents=True)
    (home / "results/old_run-1120-132512-9f3a/last.pt").write_text("weights")
    (home / "results/of-a-user/notes").write_text("mine")
    reply = agent("remove", home)
    assert files(home / "results") == {"old_run-1120-132512-9f3a/last.pt", "of-a-user/notes"}
    assert not (home / "results/empty-1120-132512-aaaa").exists()
    assert kinds(reply["left"])["results"] == 1
    left = agent("remove", home, results=True)["left"]
    assert [(entry["kind"], entry["path"]) for entry in left] == [("other", f"{home}/results/of-a-user")]
    assert files(home) == {MARK, "results/of-a-user/notes"}


@pytest.mark.parametrize(
    ("status", "name", "age", "is_live"),
    [
        ({"state": "running", "supervisor": "alive"}, "status.json", 0, True),
        ({"state": "running", "supervisor": DEAD}, "status.json", 0, False),
        ({"state": "running", "supervisor": {**DEAD, "machine": "other"}}, "status.json", 60, True),
        ({"state": "running", "supervisor": {**DEAD, "machine": "other"}}, "status.json", 200, False),
        ({"state": "failed", "supervisor": {**DEAD, "machine": "other"}}, "status.json", 0, False),
        (None, "agent.zip", 10, True),
        (None, "agent.zip", 100, False),
        (None, "job.json", 3600, True),
        (None, "job.json", 90000, False),
        (None, "reserved", 3600, True),
    ],
)
def test_home_with_a_live_run_is_unchanged(
    home: Path, status: dict[str, Any] | None, name: str, age: float, is_live: bool
) -> None:
    if status is not None and status["supervisor"] == "alive":
        status = {**status, "supervisor": own_identity()._asdict()}
    rundir = make_run(home, "young-1120-132512-9f3b", status)
    (rundir / name).touch()
    for path in rundir.iterdir():
        os.utime(path, (time.time() - (age if path.name == name else 1e6),) * 2)
    listed = agent("list", home)
    assert (listed["live"] + listed["starting"] == ["young-1120-132512-9f3b"]) == is_live
    before = snapshot(home)
    reply = agent("remove", home)
    if is_live:
        assert missing(reply["reason"], "young-1120-132512-9f3b") == []
        assert fix_from_json(reply["fix"]) == "ipexctl stop young-1120-132512-9f3b"
        assert snapshot(home) == before
    else:
        assert reply["event"] == "done"


def test_run_without_record_has_ended_if_its_node0_reports_it(home: Path) -> None:
    make_run(home, "young-1120-132512-9f3b", None)
    assert agent("list", home)["starting"] == ["young-1120-132512-9f3b"]
    assert agent("remove", home, ended=("young-1120-132512-9f3b",))["event"] == "done"


def test_entries_of_a_user_are_kept_and_listed_and_only_those_of_ipexctl_go(home: Path) -> None:
    foreign = [
        *(f"runs/r{number}/model" for number in range(3)),
        "agent/policy/w.pt",
        "envs/mine/data",
        "wheels/mine.whl",
        "tmp/lockfiles/poetry.lock",
        "checkpoints/model",
        "code/.git/HEAD",
        "code/mine-12345678/train.py",
        "notes.txt",
        "tune.before",
    ]
    for name in foreign:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("linger\tno\n")
    (home / "envs/data").symlink_to("/etc")
    listed = {Path(entry["path"]) for entry in agent("list", home, results=True)["left"]}
    assert listed == {home / Path(*Path(name).parts[:2]) for name in [*foreign, "envs/data"]}
    left = agent("remove", home, results=True)["left"]
    assert {Path(entry["path"]) for entry in left} == listed
    assert [entry["path"] for entry in left if entry["kind"] != "other"] == [f"{home}/tune.before"]
    assert files(home) == {MARK, *foreign}, "with them, it stays a home"
    assert os.readlink(home / "envs/data") == "/etc"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_checkpoints_that_were_set_aside_on_another_disk_are_removed_and_nothing_else(
    home: Path, tmp_path: Path
) -> None:
    exchange = "0" * 32
    places = {}
    for number, kind in enumerate(("own", "of another account", "another name", "a link")):
        key = str(number) * 16
        place = tmp_path / (f"{kind}/.ipexctl-aside-{key}" if kind != "another name" else f"{kind}/mine")
        places[kind] = place
        real = tmp_path / "elsewhere" if kind == "a link" else place
        (real / exchange).mkdir(parents=True)
        (real / exchange / "last.pt").write_text("weights")
        real.chmod(0o700)
        if kind == "a link":
            place.parent.mkdir()
            place.symlink_to(real)
        elif kind == "of another account":
            os.chown(place, 12345, 12345)
        (home / "checkpoints" / key).mkdir(parents=True)
        (home / "checkpoints" / key / "aside").symlink_to(place)
    assert agent("remove", home, results=True)["event"] == "done"
    assert {kind for kind, place in places.items() if not (place / exchange / "last.pt").exists()} == {"own"}
    assert not places["own"].exists()


def test_processes_of_a_run_prevent_removal(home: Path) -> None:
    make_run(home, "with-process", {"state": "ok", "supervisor": DEAD})  # other tests see the process, too
    env = {**os.environ, "IPEXCTL_RUN": "with-process"}
    with subprocess.Popen(["sleep", "60"], env=env) as rank:
        try:
            assert agent("list", home)["live"] == ["with-process"]
        finally:
            rank.kill()


def test_processes_that_use_an_environment_prevent_removal(home: Path) -> None:
    python = next((home / "envs").glob("ipex-*")) / "bin/python"
    with subprocess.Popen([str(python), "-c", "input()"], stdin=subprocess.PIPE) as child:
        try:
            (reason,) = agent("list", home)["busy"]
            assert missing(reason, str(child.pid)) == []
            assert agent("remove", home)["event"] == "failed"
        finally:
            child.kill()
    assert agent("remove", home)["event"] == "done"


def test_running_install_prevents_removal(home: Path) -> None:
    (home / "tmp").mkdir(exist_ok=True)
    marker = Marker(str(home / "tmp/owner-abc"))
    marker.create()
    try:
        assert len(agent("list", home)["busy"]) == 1
    finally:
        marker.remove()


def test_home_symlink_is_kept_and_its_target_is_emptied(home: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(home)
    agent("remove", tmp_path / "link", results=True)
    assert (tmp_path / "link").is_symlink()
    assert list(home.iterdir()) == []


def test_missing_home_has_nothing_to_remove(tmp_path: Path) -> None:
    reply = agent("remove", tmp_path / "none")
    assert (reply["found"], reply["left"]) == ([], [])
