"""This machine as a host: real processes."""

from __future__ import annotations

import io
import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from ipexctl.hosts.host import Host
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.command import Command
from ipexctl.remote.local import LocalSession
from ipexctl.remote.outcome import Cancelled, TimedOut
from ipexctl.remote.session import capture

NAP = 10**6 + os.getpid()
"""Seconds that no other process of this machine sleeps."""


@pytest.fixture
def session() -> LocalSession:
    return LocalSession(Host("localhost", "localhost"))


def alive(marker: str) -> bool:
    """Still so after a second: who was killed a moment ago may be on its way out."""
    until = time.monotonic() + 1
    while True:
        listed = subprocess.run(["ps", "-eo", "stat=,args="], capture_output=True, text=True, check=True).stdout
        if not any(marker in line and not line.startswith("Z") for line in listed.splitlines()):
            return False
        if time.monotonic() > until:
            return True


def test_streams_stay_apart_and_the_exit_code_comes_through(session: LocalSession) -> None:
    result = capture(session, Command.shell("echo out; echo err >&2; exit 7"))
    assert (result.stdout, result.stderr, result.ended.code) == (b"out\n", b"err\n", 7)


def test_a_command_runs_in_the_home_directory(session: LocalSession) -> None:
    assert capture(session, Command.argv("pwd", "-P")).stdout.decode().strip() == str(Path.home().resolve())


def test_a_signal_has_its_name_and_its_code(session: LocalSession) -> None:
    ended = capture(session, Command.shell("kill -SEGV $$")).ended
    assert (ended.code, ended.signal, str(ended)) == (139, "SEGV", "ended by SIGSEGV")


def test_stdin_is_fed_while_output_is_read(session: LocalSession) -> None:
    data = os.urandom(3_000_000)
    assert capture(session, Command.argv("cat"), stdin=io.BytesIO(data)).stdout == data


def test_without_stdin_a_reader_sees_the_end_at_once(session: LocalSession) -> None:
    assert capture(session, Command.argv("cat"), timeout=5).stdout == b""


def test_a_command_that_does_not_read_its_stdin_is_no_error(session: LocalSession) -> None:
    assert capture(session, Command.argv("true"), stdin=io.BytesIO(b"x" * 1_000_000)).ended.ok


def test_a_missing_program_is_127_and_says_so(session: LocalSession) -> None:
    result = capture(session, Command.argv("no-such-program-here"))
    assert result.ended.code == 127
    assert b"not found" in result.stderr


def test_when_the_time_is_up_everything_it_started_is_ended(session: LocalSession) -> None:
    nap = f"sleep {NAP}"
    with pytest.raises(TimedOut, match=r"not finished within 0\.3 s"):
        capture(session, Command.shell(f"{nap}1 & trap '' TERM; {nap}2; {nap}3"), timeout=0.3)
    assert not alive(nap)


def test_when_the_switch_is_thrown_everything_it_started_is_ended(session: LocalSession) -> None:
    cancel = Cancel()
    threading.Timer(0.2, cancel.throw).start()
    with pytest.raises(Cancelled):
        capture(session, Command.argv("sleep", f"{NAP}9"), cancel=cancel)
    assert not alive(f"sleep {NAP}9")


def test_a_switch_thrown_before_means_nothing_is_started(session: LocalSession, tmp_path: Path) -> None:
    cancel = Cancel()
    cancel.throw()
    with pytest.raises(Cancelled):
        capture(session, Command.argv("touch", str(tmp_path / "trace")), cancel=cancel)
    time.sleep(0.2)
    assert not (tmp_path / "trace").exists()


def test_a_command_outlives_its_streams(session: LocalSession) -> None:
    started = time.monotonic()
    assert capture(session, Command.shell("exec >/dev/null 2>&1; sleep 0.5; exit 5")).ended.code == 5
    assert time.monotonic() - started >= 0.5
    with pytest.raises(TimedOut):
        capture(session, Command.shell(f"exec >/dev/null 2>&1; exec sleep {NAP}8"), timeout=0.3)
    assert not alive(f"sleep {NAP}8")
