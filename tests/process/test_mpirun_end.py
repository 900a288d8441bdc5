"""How mpirun is ended: with SIGTERM, but hydra with SIGKILL until every rank has begun."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from agent_helpers import wait_until
from ipexctl.node.common.job import Master, StartRequest
from ipexctl.node.run.mpirun import MpirunProcess

OBEYS = "#!/bin/sh\ntrap 'exit 7' TERM\ntouch ready\nwhile :; do sleep 0.05; done\n"
IGNORES = "#!/bin/sh\ntrap '' TERM\ntouch ready\nwhile :; do sleep 0.05; done\n"


@pytest.fixture
def rundir(tmp_path: Path) -> Path:
    return tmp_path


def started(rundir: Path, name: str, script: str) -> MpirunProcess:
    program = rundir / name
    program.write_text(script)
    program.chmod(0o755)
    mpirun = MpirunProcess(StartRequest((str(program),), (), 2, 1, Master("127.0.0.1", 1), 0.0, "report"), str(rundir))
    wait_until((rundir / "ready").exists, 10)
    return mpirun


@pytest.mark.parametrize(
    ("name", "have_begun", "expected"),
    [
        ("mpiexec.hydra", True, (7, None)),
        ("mpiexec.hydra", False, (128 + signal.SIGKILL, signal.SIGKILL)),
        ("mpirun", False, (7, None)),
    ],
)
def test_hydra_gets_no_sigterm_before_all_ranks_have_begun(
    rundir: Path, name: str, have_begun: bool, expected: tuple[int, int | None]
) -> None:
    mpirun = started(rundir, name, OBEYS)
    now = time.monotonic()
    mpirun.end_after_ranks(now, now, is_over=True, have_begun=have_begun)
    assert not mpirun.has_ended()  # it has a moment to end by itself
    mpirun.end_after_ranks(now + 0.4, now, is_over=True, have_begun=have_begun)
    wait_until(mpirun.has_ended, 5)
    assert mpirun.ended_by == expected
    mpirun.kill_leftovers()


def test_an_mpirun_that_ignores_sigterm_is_killed(rundir: Path) -> None:
    mpirun = started(rundir, "mpirun", IGNORES)
    now = time.monotonic()
    for later in (0.0, 0.4, 2.0):
        mpirun.end_after_ranks(now + later, now, is_over=True)
    time.sleep(0.3)
    assert not mpirun.has_ended()
    mpirun.end_after_ranks(now + 3.1, now, is_over=True)
    wait_until(mpirun.has_ended, 5)
    assert mpirun.ended_by == (128 + signal.SIGKILL, signal.SIGKILL)
    mpirun.kill_leftovers()
