"""Runs of a test home with real records of their files (`run_files.py`), made without any rank."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ipexctl.node.run.record.run_files import HostRank

FIRST, SECOND, THIRD = "loop-1130-071941-e7bd", "loop-1130-072000-3f95", "loop-1130-072100-77aa"


@contextmanager
def running(
    home: Path, run: str, cwd: Path, *, checkpoint: str = "", resumed: Sequence[str] = (), state: str = "failed"
) -> Iterator[Path]:
    """A run whose only rank lives as long as the context. Yields the run's directory."""
    rundir = home / "runs" / run
    rundir.mkdir(parents=True, exist_ok=True)
    plan = {"cwd": str(cwd), "asked": {"checkpoint": checkpoint, "resumed": list(resumed)}}
    (rundir / "plan.json").write_text(json.dumps(plan))
    cwd.mkdir(parents=True, exist_ok=True)
    rank = HostRank(str(rundir))
    rank.begin(str(cwd), checkpoint)
    yield rundir
    assert rank.end()
    status = {"schema": "ipexctl.status/1", "id": run, "state": state, "supervisor": {}, "ranks": []}
    (rundir / "status.json").write_text(json.dumps(status))


def save(path: Path, text: str = "") -> Path:
    """Write a small file of torch."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.pkl", text)
    return path


def content(path: Path) -> str:
    return zipfile.ZipFile(path).read("data.pkl").decode()
