"""A disk that is full when a rank fails: the run ends soon, and its record says which disk it was."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from run_helpers import runs_in

pytest_plugins = ["run_fixtures"]
WRITES = """
import os, time
while not os.path.exists({go!r}): time.sleep(0.05)
print("a line that the record has no room for", "x" * 100000, flush=True)
raise RuntimeError("PytorchStreamWriter failed writing file data/1: file write failed")
"""


def test_full_disk_is_recorded_and_ends_the_run_soon(mounted: Callable[[str], Path], tmp_path: Path) -> None:
    home, go = mounted("size=4m"), tmp_path / "go"
    with runs_in(home) as make:
        run = make(WRITES.format(go=str(go)), 1).start()
        run.wait_until(lambda: run.status["state"] == "running")
        with contextlib.suppress(OSError), (home / "ballast").open("wb", buffering=0) as ballast:
            while ballast.write(b"\0" * 4096):
                pass
        began = time.monotonic()
        go.touch()
        status = run.wait()
        took = time.monotonic() - began
        assert (status["state"], status["first_failure"]["kind"], status["exit_code"]) == ("failed", "exit", 1)
        (row,) = status["ranks"]
        assert row["lost"] > 100000
        disk = row["disk"]
        assert Path(disk["path"]).is_relative_to(home)
        assert (disk["free"] < 1 << 20, disk["size"], disk["lacks_files"]) == (True, 4 << 20, False)
        assert took < 20, took


@pytest.mark.core
def test_rank_that_fails_beside_a_disk_with_room_has_no_disk(tmp_path: Path) -> None:
    with runs_in(tmp_path) as make:
        status = make("raise ValueError('no')", 1).start().wait()
    assert status["ranks"][0]["disk"] is None
