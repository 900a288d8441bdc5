"""SIGTERM at `ipexctl run` on this machine: the call that has started a run stops it, where `attach` only detaches."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attach_helpers import IGNORE_TERM_SCRIPT, IPEXCTL

from message_data import missing

Begin = Callable[[], "subprocess.Popen[bytes]"]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Starts a run that ignores SIGTERM, and waits for its first line."""
    project = tmp_path / "project"
    project.mkdir()
    (project / ".ipexctlignore").touch()
    (project / "waits.py").write_text(IGNORE_TERM_SCRIPT)
    home = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"), "PYTHONPATH": os.pathsep.join(sys.path)}
    made: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [*IPEXCTL, "run", "--hosts", "localhost", "--python", sys.executable, "-n", "1", "waits.py"],
            env={**os.environ, **home}, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        made.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"[0] here\n"
        return process

    yield start
    for process in made:
        process.kill()
        process.communicate()
    subprocess.run([*IPEXCTL, "stop", "last"], env={**os.environ, **home}, check=False, capture_output=True, timeout=60)


@pytest.mark.core
def test_second_sigterm_at_run_after_a_while_exits_at_once(begin: Begin) -> None:
    process = begin()
    process.send_signal(signal.SIGTERM)
    time.sleep(1.3)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGTERM
    assert missing(err.decode(), "is being stopped ipexctl why") == []
