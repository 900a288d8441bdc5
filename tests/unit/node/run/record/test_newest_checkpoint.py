"""The newest whole checkpoint that a run wrote, among its other files."""

from __future__ import annotations

import errno
import os
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from recorded_run import FIRST, SECOND, running

from ipexctl.node.run.record import newest_checkpoint as newest_module
from ipexctl.node.run.record.newest_checkpoint import newest_checkpoint

BEGAN = 1000.0


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


@pytest.mark.parametrize(
    ("files", "asked", "expected"),
    [
        ({"last.pt": 5, "best.pt": 9, "log.txt": 20}, "", "best.pt"),
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
    home, cwd = tmp_path / "home", tmp_path / "project"
    write(cwd, "old.pt", BEGAN + 1000)  # of an earlier run, or of the project
    with running(home, FIRST, cwd, checkpoint=asked) as rundir:
        for name, after in files.items():
            write(cwd, name, BEGAN + after)
        os.symlink("log.txt", cwd / "link.pt")
    assert newest_checkpoint(str(cwd), asked, str(rundir)) == expected


def test_an_absolute_path_stays_absolute(tmp_path: Path) -> None:
    cwd, path = tmp_path / "project", tmp_path / "ck"
    with running(tmp_path / "home", FIRST, cwd, checkpoint=str(path)) as rundir:
        write(path, "epoch_3/model.bin", BEGAN + 1)
    assert newest_checkpoint(str(cwd), str(path), str(rundir)) == str(path / "epoch_3")
    assert newest_checkpoint(str(cwd), "", str(rundir)) == ""


def test_a_run_whose_ranks_were_killed_is_recorded_at_its_end(tmp_path: Path) -> None:
    with running(tmp_path / "home", FIRST, tmp_path / "project") as rundir:
        write(tmp_path / "project", "last.pt", BEGAN)
        assert newest_checkpoint(str(tmp_path / "project"), "", str(rundir)) == "last.pt"


def test_a_run_that_never_began_has_none(tmp_path: Path) -> None:
    write(tmp_path, "last.pt", BEGAN)
    assert newest_checkpoint(str(tmp_path), "", str(tmp_path / "home/runs" / SECOND)) == ""


def test_a_record_that_cannot_be_made_costs_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor asks for the checkpoint as it writes the end of a run: its home may have turned read-only."""

    def refuse(_: str) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(newest_module, "recorded_files", lambda _: SimpleNamespace(is_closed=False, paths=tuple))
    monkeypatch.setattr(newest_module, "close_record", refuse)
    assert newest_module.newest_checkpoint(str(tmp_path), "", str(tmp_path / "run")) == ""
