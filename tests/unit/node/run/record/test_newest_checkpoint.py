"""The newest checkpoint that a run wrote, among its other files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ipexctl.node.run.record.summary import newest_checkpoint

BEGAN = 1000.0


def write(directory: Path, name: str, at: float) -> None:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("" if name.startswith("empty") else "PK\3\4" if name.endswith("model.bin") else "x")
    os.utime(path, (at, at))


@pytest.mark.parametrize(
    ("files", "asked", "newest"),
    [
        ({"last.pt": 5, "best.pt": 9, "log.txt": 20}, "", "best.pt"),
        ({"old.pt": -50}, "", ""),  # of an earlier run, or of the project
        ({"a/last.pt.tmp": 9, "tmp1.pt": 9, "empty.pt": 9}, "", ""),
        ({"out/checkpoint-20/optimizer.pt": 5, "out/checkpoint-100/model.safetensors": 9}, "", "out/checkpoint-100"),
        ({"ck/__0_0.distcp": 5}, "", "ck"),
        ({"step-3/x.pt": 5, "ck/y.pt": 9}, "step-3", "step-3"),
        ({"last.pt": 5, "other.pt": 9}, "last.pt", "last.pt"),
        ({"out/model.bin": 5, "out/training_args.bin": 9, "out/checkpoint-9/optimizer.pt": 8}, "", "out/model.bin"),
        ({"logs/checkpoints/epoch=1-step=9.ckpt": 5, "data/val.bin": 9}, "", "logs/checkpoints/epoch=1-step=9.ckpt"),
        ({"epoch=1.ckpt/__0_0.distcp": 5, "epoch=1.ckpt/meta.pt": 6}, "", "epoch=1.ckpt"),
        ({"ck/model_state_dict.pt": 5, "ck/optim_state_dict.pt": 9}, "", "ck/model_state_dict.pt"),
        ({"venv/pyvenv.cfg": 0, "venv/lib/test.pt": 9, ".cache/x.pt": 9, "m.ckpt": 1}, "", "m.ckpt"),
    ],
)
def test_newest_checkpoint(tmp_path: Path, files: dict[str, float], asked: str, newest: str) -> None:
    for name, after in files.items():
        write(tmp_path, name, BEGAN + after)
    os.symlink("log.txt", tmp_path / "link.pt")
    assert newest_checkpoint(str(tmp_path), asked, BEGAN) == newest


def test_an_absolute_path_stays_absolute(tmp_path: Path) -> None:
    write(tmp_path, "ck/epoch_3/model.bin", BEGAN)
    assert newest_checkpoint("/nowhere", str(tmp_path / "ck"), BEGAN) == str(tmp_path / "ck/epoch_3")
    assert newest_checkpoint("/nowhere", "", BEGAN) == ""
