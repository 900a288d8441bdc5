"""Markers of starting runs: a killed call of run does not keep its lease on the synced tree; a live one does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from ipexctl.homes.pending import abandoned_runs, clear_pending, mark_pending

CALL = "import sys; from pathlib import Path; from ipexctl.homes.pending import mark_pending\n"


def kill_call_during_start(directory: Path, run: str) -> None:
    code = f"{CALL}with mark_pending(Path(sys.argv[1]), sys.argv[2]): print('in', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code, directory, run], stdin=-1, stdout=-1) as call:
        assert call.stdout is not None
        assert call.stdout.readline() == b"in\n"
        assert abandoned_runs(directory) == ()
        call.kill()


def test_run_of_a_killed_call_is_abandoned(tmp_path: Path) -> None:
    kill_call_during_start(tmp_path, "train-1")
    (tmp_path / "train-1.json").write_text("{}")
    assert abandoned_runs(tmp_path) == ("train-1",)
    assert not (tmp_path / "train-1.json").exists()
    assert abandoned_runs(tmp_path) == ("train-1",), "hosts that were away are told later"
    os.utime(tmp_path / "train-1.begins", (0, 0))
    assert abandoned_runs(tmp_path) == ()
    assert list(tmp_path.iterdir()) == []


def test_marker_is_removed_once_the_run_is_started(tmp_path: Path) -> None:
    with mark_pending(tmp_path, "train-1"):
        (tmp_path / "train-1.json").write_text("{}")
        clear_pending(tmp_path, "train-1")
        assert [path.name for path in tmp_path.iterdir()] == ["train-1.json"]


def test_live_or_finished_call_has_no_abandoned_run(tmp_path: Path) -> None:
    with mark_pending(tmp_path, "train-1"):
        assert abandoned_runs(tmp_path) == ()
    assert list(tmp_path.iterdir()) == []


def test_run_whose_files_could_not_be_removed_is_abandoned(tmp_path: Path) -> None:
    unreached = set[str]()
    with mark_pending(tmp_path, "train-1", unreached):
        unreached.add("node2")
        assert abandoned_runs(tmp_path) == (), "the call still tries"
    assert abandoned_runs(tmp_path) == ("train-1",)


def test_reused_pid_does_not_count_as_the_live_call(tmp_path: Path) -> None:
    with mark_pending(tmp_path, "train-1"):
        path = tmp_path / "train-1.begins"
        said = json.loads(path.read_text())
        path.write_text(json.dumps({**said, "start": 1}))
        assert abandoned_runs(tmp_path) == ("train-1",)
        path.write_text(json.dumps({**said, "machine": "elsewhere", "start": 1}))
        assert abandoned_runs(tmp_path) == (), "whether a process of another machine lives can't be seen from here"
