"""mpirun is ended with all its processes; `tests/unit/node/test_machine.py` has when that is."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from agent_helpers import wait_until
from ipexctl.node.common.job import Master, StartRequest
from ipexctl.node.common.processes import all_processes
from ipexctl.node.run.machine_state import MpirunEnded
from ipexctl.node.run.mpirun import MpirunProcess

OBEYS = "#!/bin/sh\ntrap 'exit 7' TERM\ntouch ready\nwhile :; do sleep 0.05; done\n"
LEAVES_ONE = "#!/bin/bash\nset -m\nsleep 600 &\necho here\ntouch ready\nwait\n"
"""Its child has a group of its own."""


def started(rundir: Path, script: str) -> MpirunProcess:
    program = rundir / "mpirun"
    program.write_text(script)
    program.chmod(0o755)
    mpirun = MpirunProcess(StartRequest((str(program),), (), 2, 1, Master("127.0.0.1", 1), 0.0, "report"), str(rundir))
    wait_until((rundir / "ready").exists, 10)
    return mpirun


def test_a_signal_reaches_mpirun_and_its_exit_code_is_known(tmp_path: Path) -> None:
    mpirun = started(tmp_path, OBEYS)
    assert mpirun.take_events() == []
    mpirun.signal(signal.SIGTERM)
    wait_until(mpirun.take_events, 5)
    assert mpirun.take_events() == [MpirunEnded(7)]


@pytest.mark.core
def test_nothing_of_its_session_is_left(tmp_path: Path) -> None:
    mpirun = started(tmp_path, LEAVES_ONE)
    assert len([stat for stat in all_processes() if stat.session == mpirun.pid and stat.state != "Z"]) == 2
    mpirun.kill_leftovers()
    wait_until(lambda: mpirun.take_events() == [MpirunEnded(-signal.SIGKILL)], 5)
    wait_until(lambda: not [stat for stat in all_processes() if stat.session == mpirun.pid], 5)
    assert mpirun.read_log() == "here\n"
