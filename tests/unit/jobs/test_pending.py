"""A call of run that was killed before its run began holds no tree; one that is still at it does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from ipexctl.jobs.registry import abandoned_runs, clear_pending, mark_pending

CALL = "import sys; from pathlib import Path; from ipexctl.jobs.registry import mark_pending\n"


def killed_while_it_began(directory: Path, run: str) -> None:
    code = f"{CALL}with mark_pending(Path(sys.argv[1]), sys.argv[2]): print('in', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code, directory, run], stdin=-1, stdout=-1) as call:
        assert call.stdout is not None
        assert call.stdout.readline() == b"in\n"
        assert abandoned_runs(directory) == ()
        call.kill()


def test_a_run_whose_call_was_killed_before_it_went_is_no_run(tmp_path: Path) -> None:
    killed_while_it_began(tmp_path, "train-1")
    (tmp_path / "train-1.json").write_text("{}")
    assert abandoned_runs(tmp_path) == ("train-1",)
    assert not (tmp_path / "train-1.json").exists()
    assert abandoned_runs(tmp_path) == ("train-1",), "hosts that were away are told later"
    os.utime(tmp_path / "train-1.begins", (0, 0))
    assert abandoned_runs(tmp_path) == ()
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_was_told_to_go_is_its_nodes_affair(tmp_path: Path) -> None:
    with mark_pending(tmp_path, "train-1"):
        (tmp_path / "train-1.json").write_text("{}")
        clear_pending(tmp_path, "train-1")
        assert [path.name for path in tmp_path.iterdir()] == ["train-1.json"]


def test_a_call_that_goes_on_or_has_ended_leaves_nothing_to_see_to(tmp_path: Path) -> None:
    with mark_pending(tmp_path, "train-1"):
        assert abandoned_runs(tmp_path) == ()
    assert list(tmp_path.iterdir()) == []


def test_a_number_that_another_process_has_now_is_not_the_call_s(tmp_path: Path) -> None:
    with mark_pending(tmp_path, "train-1"):
        path = tmp_path / "train-1.begins"
        said = json.loads(path.read_text())
        path.write_text(json.dumps({**said, "start": 1}))
        assert abandoned_runs(tmp_path) == ("train-1",)
        path.write_text(json.dumps({**said, "machine": "elsewhere", "start": 1}))
        assert abandoned_runs(tmp_path) == (), "whether a process of another machine lives can't be seen from here"
