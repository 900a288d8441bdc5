"""Waits and ages by one clock; the environment of an account; a program that goes into the background."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ipexctl.node.common import environ
from ipexctl.node.common.clock import Countdown, Stopwatch, age_of, wait_until
from ipexctl.node.common.environ import SetupError, account_variables, source_setup


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which only sleep moves."""
    now = [100.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", sleep)
    return now


def test_a_countdown_can_only_be_shortened(clock: list[float]) -> None:
    countdown = Countdown(10)
    clock[0] += 4
    assert (countdown.left, countdown.is_over) == (6, False)
    countdown.shorten(8)
    assert countdown.left == 6
    countdown.shorten(2)
    clock[0] += 2.1
    assert (countdown.left, countdown.is_over) == (0, True)


def test_a_stopwatch_counts_from_its_restart(clock: list[float]) -> None:
    watch = Stopwatch()
    clock[0] += 4
    assert watch.seconds == 4
    watch.restart()
    clock[0] += 1
    assert watch.seconds == 1


@pytest.mark.parametrize(
    ("true_at", "seconds", "is_true", "ends_at"),
    [(100.0, 5, True, 100.0), (102.5, 5, True, 103.0), (200.0, 5, False, 106.0), (100.0, 0, True, 100.0)],
)
def test_a_wait_ends_when_it_is_true_or_the_time_is_over(
    clock: list[float], true_at: float, seconds: float, is_true: bool, ends_at: float
) -> None:
    assert wait_until(lambda: clock[0] >= true_at, seconds, 1.0) is is_true
    assert clock[0] == ends_at


def test_the_age_of_a_file_is_by_its_last_write(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    os.utime(path, (0, time.time() - 50))
    assert age_of(str(path)) == pytest.approx(50, abs=5)
    with pytest.raises(FileNotFoundError):
        age_of(str(tmp_path / "none"))


def test_variables_of_an_account_in_passwd_come_from_passwd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/of/node0")
    account = pwd.getpwuid(os.getuid())
    assert (account_variables()["HOME"], account_variables()["USER"]) == (account.pw_dir, account.pw_name)


def test_an_account_without_passwd_entry_keeps_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_entry(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr("pwd.getpwuid", no_entry)
    monkeypatch.setenv("HOME", "/work")
    monkeypatch.setenv("SHELL", "/bin/sh")
    for name in ("USER", "LOGNAME"):
        monkeypatch.delenv(name, raising=False)
    assert account_variables() == {"HOME": "/work", "SHELL": "/bin/sh"}


def test_a_setup_file_that_hangs_is_ended_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environ, "SETUP_FILE", 0.5)  # more of it on a busy machine
    setup = tmp_path / "setvars.sh"
    setup.write_text("exec sleep 600\n")
    with pytest.raises(SetupError) as caught:
        source_setup(str(setup), dict(os.environ))
    assert str(caught.value.strerror).startswith(f"{setup} could not be sourced: it took longer than ")


_PROGRAM = """
import os, sys
from ipexctl.node.run.host_starter.daemonize import daemonize
reply = daemonize("starter", sys.argv[1])
if isinstance(reply, str):
    sys.exit(reply)
reply({"event": "done", "session": os.getsid(0)})
"""


def reply_of(log: Path) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, log], capture_output=True, text=True, timeout=30, check=False
    )
    answer: dict[str, object] = json.loads(done.stderr)
    return answer


def test_the_log_is_private_and_the_session_its_own(tmp_path: Path) -> None:
    assert reply_of(tmp_path / "log")["event"] == "done"
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_a_log_that_cannot_be_opened_is_the_reason(tmp_path: Path) -> None:
    reply = reply_of(tmp_path / "gone" / "log")
    assert reply["event"] == "failed"
    assert str(tmp_path / "gone" / "log") in str(reply["reason"])
