"""Which directories of a home are found as runs: never what another account could have put there."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ipexctl.node.common.processes import own_identity
from ipexctl.node.run.runs import MOST_NAMES, find

OTHER = 65_534


@pytest.fixture
def home(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    (tmp_path / "runs").mkdir()
    return tmp_path


def make(home: Path, run: str, at: float = 1.0, *, status: bool = False) -> Path:
    rundir = home / "runs" / run
    rundir.mkdir()
    (rundir / "plan.json").write_text(json.dumps({"id": run}))
    os.utime(rundir / "plan.json", (at, at))
    if status:
        supervisor = own_identity()._asdict()
        (rundir / "status.json").write_text(json.dumps({"state": "running", "supervisor": supervisor, "ranks": []}))
    return rundir


def ask(home: Path, word: str) -> dict[str, object]:
    return find({"home": str(home), "word": word})


def test_a_run_is_found_by_its_id_or_a_part_and_the_newest_without_a_word(home: Path) -> None:
    make(home, "train-1", 3.0, status=True)
    make(home, "train-12", 1.0)
    (home / "runs" / ".gone-train-1").mkdir()
    assert ask(home, "train-1") == {"names": ["train-1"], "plan": {"id": "train-1"}, "at": 3.0, "is_node0": True}
    assert ask(home, "n-12") == {"names": ["train-12"], "plan": {"id": "train-12"}, "at": 1.0, "is_node0": None}
    assert ask(home, "")["names"] == ["train-1"]
    assert ask(home, "train") == {"names": ["train-1", "train-12"]}
    for word in ("x", "gone", ".", "..", "/"):
        assert ask(home, word) == {"names": []}


def test_a_home_of_a_thousand_runs_answers_at_once(home: Path) -> None:
    for number in range(1000):
        make(home, f"train-{number:04}", number + 1.0)
    began = time.monotonic()
    assert [ask(home, word)["names"] for word in ("0999", "")] == [["train-0999"]] * 2
    assert len(ask(home, "train")["names"]) == MOST_NAMES  # type: ignore[arg-type]
    assert time.monotonic() - began < 5


def _link(home: Path) -> None:
    (home.parent / "elsewhere").mkdir()
    os.chown(home.parent / "elsewhere", OTHER, OTHER)
    (home.parent / "elsewhere/plan.json").write_text("{}")
    (home / "runs/train-1").symlink_to(home.parent / "elsewhere")


def _linked_plan(home: Path) -> None:
    plan = make(home, "train-1") / "plan.json"
    plan.rename(home / "plan")
    os.chown(home / "plan", OTHER, OTHER)
    plan.symlink_to(home / "plan")


def _pipe(home: Path) -> None:
    (make(home, "train-1") / "plan.json").unlink()
    os.mkfifo(home / "runs/train-1/plan.json")


PLANTED: dict[str, Callable[[Path], object]] = {
    "directory": lambda home: os.chown(make(home, "train-1"), OTHER, OTHER),
    "plan": lambda home: os.chown(make(home, "train-1") / "plan.json", OTHER, OTHER),
    "writable": lambda home: make(home, "train-1").chmod(0o777),
    "writable plan": lambda home: (make(home, "train-1") / "plan.json").chmod(0o666),
    "link": _link,
    "link of the plan": _linked_plan,
    "pipe": _pipe,
    "no JSON": lambda home: (make(home, "train-1") / "plan.json").write_text("{"),
}


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another account")
@pytest.mark.parametrize("kind", PLANTED)
def test_what_another_account_could_have_made_is_no_run(home: Path, kind: str) -> None:
    PLANTED[kind](home)
    for word in ("train-1", ""):
        assert ask(home, word) == {"names": []}


def test_runs_in_a_directory_that_others_can_write_are_not_found(home: Path) -> None:
    make(home, "train-1")
    (home / "runs").chmod(0o777)
    assert ask(home, "train-1") == {"names": []}
