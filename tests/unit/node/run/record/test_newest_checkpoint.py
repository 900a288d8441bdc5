"""The newest checkpoint that a run wrote, among its other files and beside other runs."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import cast

import pytest

from ipexctl.node.common.processes import own_identity
from ipexctl.node.common.records import RunStatus, State
from ipexctl.node.run.record.newest_checkpoint import (
    RecordedRun,
    SavedFile,
    choose_newest,
    find_later_writer,
    is_saved,
    newest_checkpoint,
)

BEGAN = 1000.0
OWN = "train-1129-100000-aaaa"


def write(directory: Path, name: str, at: float) -> None:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if name.endswith("model.bin"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("data.pkl", "")
    else:
        tensors = "\2" + 7 * "\0" + "{}"
        path.write_text("" if name.startswith("empty") else tensors if name.endswith(".safetensors") else "x")
    if name.startswith("half"):
        os.truncate(path, 20)
    os.utime(path, (at, at))


def newest(home: Path, cwd: Path | str, asked: str) -> str:
    write(home, f"runs/{OWN}/events.jsonl", BEGAN)
    rundir = home / "runs" / OWN
    return newest_checkpoint(str(cwd), asked, str(rundir), os.stat(rundir / "events.jsonl"))


@pytest.mark.parametrize(
    ("files", "asked", "expected"),
    [
        ({"last.pt": 5, "best.pt": 9, "log.txt": 20}, "", "best.pt"),
        ({"old.pt": -50}, "", ""),  # of an earlier run, or of the project
        ({"old.pt": -1}, "", ""),
        ({"old.pt": 0}, "", ""),
        ({"a/last.pt.tmp": 9, "tmp1.pt": 9, "empty.pt": 9}, "", ""),
        ({"out/checkpoint-20/optimizer.pt": 5, "out/checkpoint-100/model.safetensors": 9}, "", "out/checkpoint-100"),
        ({"ck/__0_0.distcp": 5, "ck/.metadata": 5}, "", "ck"),
        ({"ck/__0_0.distcp": 5, "ck/.metadata": 5, "new/__0_0.distcp": 9}, "", "ck"),  # it was being saved
        (
            {"checkpoint-20/x.pt": 5, "checkpoint-30/model.safetensors": 8, "checkpoint-30/training_args.bin": 9},
            "",
            "checkpoint-20",
        ),
        ({"last.pt": 5, "half-model.bin": 9}, "", "last.pt"),
        ({"step-3/x.pt": 5, "ck/y.pt": 9}, "step-3", "step-3"),
        ({"last.pt": 5, "other.pt": 9}, "last.pt", "last.pt"),
        ({"out/model.bin": 5, "out/training_args.bin": 9, "out/checkpoint-9/optimizer.pt": 8}, "", "out/model.bin"),
        ({"logs/checkpoints/epoch=1-step=9.ckpt": 5, "data/val.bin": 9}, "", "logs/checkpoints/epoch=1-step=9.ckpt"),
        ({"epoch=1.ckpt/__0_0.distcp": 5, "epoch=1.ckpt/.metadata": 5, "epoch=1.ckpt/meta.pt": 6}, "", "epoch=1.ckpt"),
        ({"ck/model_state_dict.pt": 5, "ck/optim_state_dict.pt": 9}, "", "ck/model_state_dict.pt"),
        ({"venv/pyvenv.cfg": 0, "venv/lib/test.pt": 9, ".cache/x.pt": 9, "m.ckpt": 1}, "", "m.ckpt"),
    ],
)
def test_newest_checkpoint(tmp_path: Path, files: dict[str, float], asked: str, expected: str) -> None:
    cwd = tmp_path / "project"
    for name, after in files.items():
        write(cwd, name, BEGAN + after)
    os.symlink("log.txt", cwd / "link.pt")
    assert newest(tmp_path / "home", cwd, asked) == expected


def test_an_absolute_path_stays_absolute(tmp_path: Path) -> None:
    write(tmp_path, "ck/epoch_3/model.bin", BEGAN + 1)
    assert newest(tmp_path / "home", "/nowhere", str(tmp_path / "ck")) == str(tmp_path / "ck/epoch_3")
    assert newest(tmp_path / "home", "/nowhere", "") == ""


@pytest.mark.parametrize(
    ("others", "saved_by", "expected"),
    [
        ([], "", "new"),
        ([(0, 1001)], "", "new"),  # over before the file was written
        ([(1006, inf)], "", "new"),
        ([(0, 1005)], "", ""),
        ([(1003, inf)], "", ""),
        ([(0, 1005)], "own:new", "new"),
        ([(0, 1005)], "own:new other0:new", ""),  # both wrote it
        ([(0, 1005)], "own:old other0:new", "old"),
        ([(0, 1005)], "own:old", ""),  # who wrote the newer one is unknown
        ([(1004, inf)], "other0:new", "old"),
        ([(0, 1001), (0, inf)], "own:new other1:new", ""),
        ([(0, 1001), (0, inf)], "own:new other0:new", "new"),  # what that one wrote was replaced since
    ],
)
def test_a_file_that_another_run_may_have_written_is_not_named(
    others: list[tuple[float, float]], saved_by: str, expected: str
) -> None:
    runs = [RecordedRun(f"other{number}", begun, ended) for number, (begun, ended) in enumerate(others)]
    files = [SavedFile("old", 1002, has_clock_of_record=True), SavedFile("new", 1005, has_clock_of_record=True)]
    assert choose_newest(files, OF_THIS, runs, said(saved_by), bool) == expected


@pytest.mark.parametrize(
    ("written", "others", "writer"),
    [
        (1050, [], None),
        (1050, [(1200, 1300)], None),
        (1250, [(1200, 1300)], 0),
        (1250, [(1200, 1300), (1210, inf)], 1),
        (1350, [(1200, 1300)], 0),  # by hand since, or by a process that outlived the run: not the own run's
        (1150, [(1200, 1300)], None),  # after its end, but before another run: what it left may have written it
        (1150, [(1050, 1180)], 0),  # that ran beside it, and outlived it
        (1080, [(1050, 1180)], None),  # either may have written it
        (1350, [(1050, 1180)], None),
        (1250, [(0, 1010)], None),
    ],
)
def test_a_file_belongs_to_the_run_that_wrote_it_last(
    written: float, others: list[tuple[float, float]], writer: int | None
) -> None:
    runs = [RecordedRun(f"other{number}", begun, ended) for number, (begun, ended) in enumerate(others)]
    found = find_later_writer(written, RecordedRun("own", BEGAN, 1100), runs)
    assert found == (None if writer is None else runs[writer])


OF_THIS = RecordedRun("own", BEGAN, inf)


def said(words: str) -> Callable[[RecordedRun, str], bool]:
    return lambda run, path: f"{run.directory}:{path}" in words.split()


@pytest.mark.parametrize(("after", "is_same", "is_named"), [(1, True, True), (1, False, False), (3, False, True)])
def test_another_clock_leaves_a_doubt(after: float, is_same: bool, is_named: bool) -> None:
    file = SavedFile("a.pt", BEGAN + after, has_clock_of_record=is_same)
    assert choose_newest([file], OF_THIS, [], said(""), bool) == ("a.pt" if is_named else "")
    just_ended = RecordedRun("other", 0, file.written - 1)
    assert bool(choose_newest([file], OF_THIS._replace(begun=0), [just_ended], said(""), bool)) == is_same


@pytest.mark.parametrize(
    ("line", "is_told"),
    [
        ("saved ck/last.pt", True),
        ("Saving model checkpoint to ./ck/last.pt.", True),
        ("epoch 3: wrote /p/ck/last.pt (3 MB)", True),
        ("saved ck/last.pt.tmp", False),
        ("saved out/ck/last.pt", False),
        ("saved ck/last.pth", False),
        ("saved last.pt", False),
        ("ck/last.pt", False),
        ("Namespace(save_path='ck/last.pt')", False),
        ("Loading the saved model ck/last.pt", False),
        ("resumed from ck/last.pt, will save there", False),
    ],
)
def test_only_a_line_that_says_so_shows_who_saved_a_file(line: str, is_told: bool) -> None:
    assert is_saved(line, "/p/ck/last.pt", "/p") == is_told


def test_a_file_in_a_saved_directory_is_saved() -> None:
    assert is_saved("Saving model checkpoint to out/checkpoint-20", "/p/out/checkpoint-20", "/p")
    assert is_saved("Model weights saved in out/checkpoint-20/model.safetensors", "/p/out/checkpoint-20", "/p")
    assert not is_saved("Saving model checkpoint to out/checkpoint-200", "/p/out/checkpoint-20", "/p")


@pytest.mark.parametrize(
    ("plan", "state", "output", "expected"),
    [
        ({"cwd": "CWD"}, "running", "", ""),
        ({"cwd": "CWD"}, "running", "saved a/x.pt", "a/x.pt"),
        ({"cwd": "CWD"}, "ok", "", "a/x.pt"),
        ({"cwd": "CWD/a"}, "running", "", ""),
        ({"cwd": "/elsewhere"}, "running", "", "a/x.pt"),
        ({"cwd": "/elsewhere", "asked": {"checkpoint": "CWD/a"}}, "running", "", ""),
        ({"cwd": 7, "asked": [1]}, "running", "", "a/x.pt"),
        (None, "running", "", "a/x.pt"),
        ({"cwd": "CWD"}, "", "", ""),  # of a run whose node0 is another host
    ],
)
def test_other_runs_are_found_in_the_home(tmp_path: Path, plan: object, state: str, output: str, expected: str) -> None:
    cwd, home = tmp_path / "project", tmp_path / "home"
    write(cwd, "a/x.pt", BEGAN + 5)
    write(home, f"runs/{OWN}/ranks/0000.out", BEGAN)
    (home / f"runs/{OWN}/ranks/0000.out").write_text(f"step 1\n{output}\nstep 2\n")
    other = home / "runs/other-1129-100001-bbbb"
    other.mkdir()
    if plan is not None:
        (other / "plan.json").write_text(json.dumps(plan).replace("CWD", str(cwd)))
        os.utime(other / "plan.json", (BEGAN + 1, BEGAN + 1))
    if state:
        status = RunStatus("other", cast("State", state), supervisor=own_identity())
        (other / "status.json").write_text(json.dumps(status.to_json()))
        os.utime(other / "status.json", (BEGAN + 2, BEGAN + 2))
    assert newest(home, cwd, "") == expected
