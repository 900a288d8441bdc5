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
from needs import require

SLEEP_SECONDS = 10**6 + os.getpid()
"""A sleep time that identifies processes of this test."""


@pytest.fixture
def session() -> LocalSession:
    return LocalSession(Host("localhost", "localhost"))


def is_still_running(marker: str) -> bool:
    """Whether the process still exists after a second, since a killed process may take a moment to end."""
    require("ps")
    until = time.monotonic() + 1
    while True:
        listed = subprocess.run(["ps", "-eo", "stat=,args="], capture_output=True, text=True, check=True).stdout
        if not any(marker in line and not line.startswith("Z") for line in listed.splitlines()):
            return False
        if time.monotonic() > until:
            return True


@pytest.mark.core
def test_stdout_stderr_and_exit_code_are_captured(session: LocalSession) -> None:
    result = capture(session, Command.shell("echo out; echo err >&2; exit 7"))
    assert (result.stdout, result.stderr, result.ended.code) == (b"out\n", b"err\n", 7)


def test_a_command_runs_in_the_home_directory(session: LocalSession) -> None:
    assert capture(session, Command.argv("pwd", "-P")).stdout.decode().strip() == str(Path.home().resolve())


def test_command_ended_by_a_signal_has_its_name_and_exit_code(session: LocalSession) -> None:
    ended = capture(session, Command.shell("kill -SEGV $$")).ended
    assert (ended.code, ended.signal, str(ended)) == (139, "SEGV", "ended by SIGSEGV")


def test_stdin_is_written_while_output_is_read(session: LocalSession) -> None:
    data = os.urandom(3_000_000)
    assert capture(session, Command.argv("cat"), stdin=io.BytesIO(data)).stdout == data


def test_without_stdin_a_command_reads_end_of_file(session: LocalSession) -> None:
    assert capture(session, Command.argv("cat"), timeout=5).stdout == b""


def test_command_may_ignore_its_stdin(session: LocalSession) -> None:
    assert capture(session, Command.argv("true"), stdin=io.BytesIO(b"x" * 1_000_000)).ended.ok


def test_missing_program_has_exit_code_127_and_a_message(session: LocalSession) -> None:
    result = capture(session, Command.argv("no-such-program-here"))
    assert result.ended.code == 127
    assert b"not found" in result.stderr


@pytest.mark.core
def test_timeout_kills_all_processes_of_the_command(session: LocalSession) -> None:
    nap = f"sleep {SLEEP_SECONDS}"
    with pytest.raises(TimedOut, match=r"timed out after 0\.3 s"):
        capture(session, Command.shell(f"{nap}1 & trap '' TERM; {nap}2; {nap}3"), timeout=0.3)
    assert not is_still_running(nap)


def test_cancel_kills_all_processes_of_the_command(session: LocalSession) -> None:
    session.cancel = Cancel()
    threading.Timer(0.2, session.cancel.throw).start()
    with pytest.raises(Cancelled):
        capture(session, Command.argv("sleep", f"{SLEEP_SECONDS}9"))
    assert not is_still_running(f"sleep {SLEEP_SECONDS}9")


def test_command_is_not_started_after_cancel(session: LocalSession, tmp_path: Path) -> None:
    session.cancel = Cancel()
    session.cancel.throw()
    with pytest.raises(Cancelled):
        capture(session, Command.argv("touch", str(tmp_path / "trace")))
    time.sleep(0.1)
    assert not (tmp_path / "trace").exists()


def test_command_may_continue_after_it_closed_its_output(session: LocalSession) -> None:
    started = time.monotonic()
    assert capture(session, Command.shell("exec >/dev/null 2>&1; sleep 0.2; exit 5")).ended.code == 5
    assert time.monotonic() - started >= 0.2
    with pytest.raises(TimedOut):
        capture(session, Command.shell(f"exec >/dev/null 2>&1; exec sleep {SLEEP_SECONDS}8"), timeout=0.3)
    assert not is_still_running(f"sleep {SLEEP_SECONDS}8")


class Pieces(io.RawIOBase):
    """A stdin of some pieces, each larger than a pipe."""

    def __init__(self, count: int) -> None:
        self.left = count

    def read(self, size: int = -1) -> bytes:
        self.left -= 1
        return b"x" * (1 << 17) if self.left >= 0 else b""


SLOW_READER = "for i in 1 2 3 4 5 6 7 8; do head -c 131072 >/dev/null; sleep 0.1; done; cat >/dev/null"


@pytest.mark.parametrize(
    ("line", "stdin"),
    [("for i in 1 2 3 4 5 6 7 8; do echo; sleep 0.1; done", None), (SLOW_READER, Pieces(10))],
    ids=["prints", "reads"],
)
def test_a_step_that_prints_or_reads_is_not_silent(session: LocalSession, line: str, stdin: Pieces | None) -> None:
    started = time.monotonic()
    assert session.run(Command.shell(line), lambda *_: None, stdin=stdin, silence=0.6).code == 0
    assert time.monotonic() - started > 0.75


def test_a_step_that_neither_prints_nor_reads_is_ended(session: LocalSession) -> None:
    with pytest.raises(TimedOut) as caught:
        session.run(Command.argv("sleep", str(SLEEP_SECONDS + 9)), lambda *_: None, silence=0.3)
    assert "--timeout" in caught.value.fix
    assert not is_still_running(str(SLEEP_SECONDS + 9))
