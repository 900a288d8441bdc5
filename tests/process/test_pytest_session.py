"""The tests of this project, called by tests/run.sh, end with all that they started, whatever signal comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from agent_helpers import wait_until
from clean_environment import MARK
from ipexctl.node.common.processes import is_running

LAUNCHER = Path(__file__).parents[1] / "rerun_failed.py"
pytestmark = pytest.mark.signals

# Its test starts a daemon, says so and waits; its fixture says that it was torn down.
_SLOW = """
import os, pathlib, signal, subprocess, time
import pytest

here = pathlib.Path(__file__).parent

@pytest.fixture
def thing():
    yield
    (here / "torn-down").touch()

def test_slow(thing):
    HANDLER
    daemon = subprocess.Popen("sleep 600 & echo $!", shell=True, stdout=subprocess.PIPE, start_new_session=True)
    (here / "started.part").write_text(daemon.stdout.readline().decode())
    os.rename(here / "started.part", here / "started")
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        time.sleep(0.05)
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Call the launcher as tests/run.sh does, in a directory with these tests."""
    begun: list[subprocess.Popen[str]] = []

    def call(text: str, *args: str, before: Sequence[str] = ()) -> subprocess.Popen[str]:
        (tmp_path / "test_inner.py").write_text(text)
        (tmp_path / "pytest.ini").write_text(
            f"[pytest]\npythonpath = {LAUNCHER.parent}\naddopts = -p clean_environment\n"
        )
        env = {name: value for name, value in os.environ.items() if name != MARK and not name.startswith("PYTEST_")}
        env["TMPDIR"] = str(tmp_path)  # a launcher that is killed leaves its home
        argv = [*before, sys.executable, str(LAUNCHER), "-q", "-p", "no:xdist", *args]
        begun.append(
            subprocess.Popen(
                argv, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, umask=0o077
            )
        )
        return begun[-1]

    yield call
    for process in begun:
        process.kill()
        process.communicate()


def slow(seconds: float = 100, handler: str = "pass") -> str:
    return _SLOW.replace("SECONDS", str(seconds)).replace("HANDLER", handler)


def daemon_of(directory: Path) -> int:
    wait_until((directory / "started").exists, 60)
    return int((directory / "started").read_text())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_the_tests_quietly_with_all_their_processes(start: Start, tmp_path: Path, number: int) -> None:
    process = start(slow())
    daemon = daemon_of(tmp_path)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, out + err
    assert "Traceback" not in out + err
    assert "once more" not in out, "an interrupted test is not run again"
    assert (tmp_path / "torn-down").exists()
    assert not is_running(daemon)


def test_second_signal_ends_tests_that_do_not_stop(start: Start, tmp_path: Path) -> None:
    process = start(slow(handler="signal.signal(signal.SIGINT, signal.SIG_IGN)"))
    daemon = daemon_of(tmp_path)
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in out + err) == (130, False), out + err
    assert not is_running(daemon)
    assert not (tmp_path / "torn-down").exists()


def test_signals_that_the_caller_ignores_do_not_reach_the_tests(start: Start, tmp_path: Path) -> None:
    process = start(slow(2), before=["sh", "-c", "trap '' INT HUP; exec \"$@\"", "sh"])
    daemon = daemon_of(tmp_path)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGHUP)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, out + err
    assert f"process {daemon}: sleep 600" in err, "what tests leave is named"
    assert not is_running(daemon)


def test_failed_tests_run_again(start: Start, tmp_path: Path) -> None:
    flaky = (
        "import pathlib\nhere = pathlib.Path(__file__).parent\n"
        "def test_flaky():\n    first = not (here / 'was').exists()\n    (here / 'was').touch()\n    assert not first\n"
    )
    process = start(flaky, "-k", "flaky")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, out + err
    assert "flaky: test_inner.py::test_flaky" in out
    (tmp_path / "was").unlink()
    argv = [sys.executable, str(LAUNCHER), "--once", "-q", "-p", "no:xdist", "-k", "flaky"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    once = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (once.returncode, "flaky:" in once.stdout) == (1, False)


def test_a_test_that_fails_in_company_alone_is_not_called_flaky(start: Start) -> None:
    """What the first leaves makes the second fail: run alone it would pass."""
    order = "left = []\ndef test_first():\n    left.append(1)\ndef test_second():\n    assert not left\n"
    process = start(order)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, "flaky:" in out) == (1, False), out + err


@pytest.mark.core
def test_pytest_ends_with_a_killed_launcher(start: Start, tmp_path: Path) -> None:
    process = start(slow())
    daemon = daemon_of(tmp_path)
    process.kill()
    wait_until((tmp_path / "torn-down").exists, 20)
    os.kill(daemon, signal.SIGKILL)
