"""What mpirun of Open MPI leaves on a host: a daemon outside of its line's session, directories in /tmp."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_helpers import wait_until
from ipexctl.node.common.processes import is_running
from ipexctl.node.run.host_starter.host_shells import HostShells

NAMESPACE = f"prterun-node1-{os.getpid()}@0"
DAEMON = "import os, sys, time\nos.setsid()\nopen(sys.argv[1], 'w').write(f'{os.getpid()}')\ntime.sleep(600)"


@pytest.fixture
def directory() -> Iterator[Path]:
    found = Path(f"/tmp/prted.test-{os.getpid()}")
    found.mkdir()
    (found / f"pmix.node2.tool.{NAMESPACE}").write_text("x")
    yield found
    for path in found.glob("*"):
        path.unlink()
    if found.exists():
        found.rmdir()


@pytest.mark.parametrize("is_stopped", [True, False])
def test_a_daemon_and_its_directory_go_with_the_lines(tmp_path: Path, directory: Path, *, is_stopped: bool) -> None:
    noted = tmp_path / "pid"
    daemon = shlex.join([sys.executable, "-c", DAEMON, str(noted), "--prtemca", "ess_base_nspace", NAMESPACE])
    shells = HostShells(lambda *_: None)
    shells.start(1, f"{daemon} & sleep 0.2; exit 0", dict(os.environ), str(tmp_path))
    wait_until(lambda: noted.exists() and noted.read_text(), 10)
    pid = int(noted.read_text())
    if is_stopped:
        os.kill(pid, signal.SIGSTOP)
    wait_until(shells.take_ended, 10)
    assert (shells.is_empty, is_running(pid)) == (True, True)
    shells.kill()
    wait_until(lambda: not is_running(pid), 5)
    assert not directory.exists()


def test_a_directory_of_another_account_or_another_mpirun_stays(tmp_path: Path, directory: Path) -> None:
    shells = HostShells(lambda *_: None)
    shells.start(1, "exit 0 # prterun-node1-1@0", dict(os.environ), str(tmp_path))
    shells.kill()
    assert directory.exists()
    if os.getuid() == 0:
        os.chown(directory, 12345, 12345)
        shells.start(2, f"exit 0 # {NAMESPACE}", dict(os.environ), str(tmp_path))
        shells.kill()
        assert directory.exists()
