"""The live view on a real terminal: it always restores the terminal and prints the summary of the run."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent_helpers import wait_until
from ipexctl.errors import UserError
from ipexctl.ui.run.plain import check_terminal, wants_live
from terminals import TerminalProgram

PROGRAM = """
import signal, sys, threading, time
from ipexctl.run.follow_run import RunEnded
from ipexctl.node.common.frames import Chunk
from ipexctl.node.common.records import RankStatus, RunStatus
from ipexctl.remote.outcome import Notice
from ipexctl.ui.run.live_view import LiveRun

def status(state):
    ranks = tuple(RankStatus(rank, "here", state) for rank in range(2))
    return RunStatus("r1", state, "train.py", "default", 1, 2, time.time(), ranks=ranks)

over = threading.Event()
with LiveRun(status("running"), lambda: print("asked to stop"), over.set) as view:
    view.watch(Chunk(0, "stdout", b"hello\\n"))
    view.watch(Chunk(1, "stdout", b"hello\\n"))
    {body}
"""
WAIT = "over.wait(20)"
END = 'time.sleep(0.2); view.watch(RunEnded(0, status("ok")))'


@pytest.fixture
def show() -> Iterator[Callable[[str], TerminalProgram]]:
    made: list[TerminalProgram] = []

    def make(body: str) -> TerminalProgram:
        made.append(TerminalProgram([sys.executable, "-c", PROGRAM.format(body=body)]))
        return made[-1]

    yield make
    for shown in made:
        shown.close()


def test_ended_run_leaves_its_last_lines_and_the_summary(show: Callable[[str], TerminalProgram]) -> None:
    shown = show(END)
    assert shown.until_gone() == 0
    assert shown.restored
    after = shown.seen[shown.seen.rfind(b"\x1b[?1049l") :]
    assert b"[0-1] hello" in after
    assert b"run r1 succeeded: 2 ranks on 1 node" in after


@pytest.mark.core
def test_ctrl_c_restores_the_terminal(show: Callable[[str], TerminalProgram]) -> None:
    shown = show(WAIT)
    assert shown.until_seen(b"hello")
    assert not shown.restored
    shown.type(b"\x03")
    assert shown.until_gone() not in {None, 0}
    assert shown.restored


def test_exception_restores_the_terminal(show: Callable[[str], TerminalProgram]) -> None:
    shown = show('time.sleep(0.2); raise ValueError("odd")')
    assert shown.until_gone() == 1
    assert shown.restored
    last_line = shown.seen[shown.seen.rfind(b"\x1b[?1049l") :].splitlines()[-1]
    assert re.sub(rb"\x1b\[[0-9;]*m", b"", last_line) == b"ValueError: odd"  # Python 3.13 colors it


def test_error_in_the_view_is_raised_and_restores_the_terminal(show: Callable[[str], TerminalProgram]) -> None:
    shown = show("view.state.tick = None; view.watch(Notice('x')); time.sleep(0.5)")
    assert shown.until_gone() == 1
    assert shown.restored
    assert b"TypeError" in shown.seen[shown.seen.rfind(b"\x1b[?1049l") :]


def test_abandon_restores_the_terminal_before_sigkill(show: Callable[[str], TerminalProgram]) -> None:
    shown = show("time.sleep(0.2); view.stopping(); time.sleep(0.2); view.abandon(); signal.raise_signal(9)")
    assert shown.until_gone() == -9
    assert b"stopping" in shown.seen
    assert shown.restored


def test_sigtstp_restores_the_terminal_and_sigcont_resumes_the_view(show: Callable[[str], TerminalProgram]) -> None:
    shown = show(WAIT)
    assert shown.until_seen(b"hello")
    # SIGTSTP cannot stop an orphaned process group such as this one, so only the return of the view is checked.
    shown.process.send_signal(signal.SIGTSTP)
    assert shown.until_seen(b"\x1b[?1049l")
    assert shown.until(lambda: shown.seen.rfind(b"\x1b[?1049h") > shown.seen.rfind(b"\x1b[?1049l"))
    shown.process.send_signal(signal.SIGCONT)
    shown.seen = b""
    assert shown.until_seen(b"hello")
    shown.type(b"d")
    assert shown.until_gone() == 0
    assert shown.restored


def test_resized_terminal_is_redrawn(show: Callable[[str], TerminalProgram]) -> None:
    shown = show(WAIT)
    assert shown.until_seen(b"hello")
    shown.seen = b""
    shown.resize(100, 30)
    assert shown.until_seen(b"\x1b[30;1H")
    shown.resize(20, 5)
    assert shown.until_seen(b"\x1b[5;1H")
    shown.type(b"q")
    assert shown.until_gone() == 0


def test_blocked_terminal_does_not_delay_the_run_output(show: Callable[[str], TerminalProgram], tmp_path: Path) -> None:
    through = tmp_path / "through"
    shown = show(
        "flood = [view.watch(Chunk(0, 'stdout', b'%d' % i * 99 + b'\\n')) or time.sleep(0.001) for i in range(1500)];"
        f"open({str(through)!r}, 'w').close(); view.watch(RunEnded(0, status('ok')))"
    )
    wait_until(through.exists, 60)  # nothing is read meanwhile
    time.sleep(0.2)
    assert shown.until_gone() == 0
    assert shown.restored


@pytest.mark.parametrize(("ending", "code"), [(END, 0), ("over.wait(20)", 0), ("over.wait(20)", -9)])
def test_blocked_terminal_does_not_delay_the_exit(
    show: Callable[[str], TerminalProgram], tmp_path: Path, ending: str, code: int
) -> None:
    through = tmp_path / "through"
    flood = "[view.watch(Chunk(0, 'stdout', b'%d' % i * 99 + b'\\n')) or time.sleep(0.001) for i in range(900)]; "
    flood += f"open({str(through)!r}, 'w').close(); "
    shown = show(
        flood + ("signal.signal(2, lambda *_: (view.abandon(), signal.raise_signal(9))); " * (code < 0)) + ending
    )
    assert shown.until_seen(b"hello")
    wait_until(through.exists, 60)  # nothing is read meanwhile: the buffer of the terminal is full
    if ending != END:
        shown.type(b"\x03" if code < 0 else b"d")
    assert shown.process.wait(20) == code  # still without reading: a process waiting for the terminal would not exit
    shown.seen = b"\x1b[?1049h\x1b[?25l\x1b[?7l"
    assert shown.until(lambda: shown.restored)
    if ending == END:
        shown.until(lambda: False, 0.2)
        assert b"succeeded" in shown.seen


@pytest.mark.parametrize(
    ("terminal", "term", "plain", "wanted"),
    [
        (True, "xterm", False, True),
        (True, "xterm", True, False),
        (True, "dumb", False, False),
        (True, "", False, False),
        (False, "xterm", False, False),
    ],
)
def test_live_view_needs_a_capable_terminal(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, term: str, plain: bool, wanted: bool
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal, raising=False)
    monkeypatch.setenv("TERM", term)
    assert wants_live(plain=plain) == wanted


def test_live_option_without_a_terminal_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: False, raising=False)
    with pytest.raises(UserError) as refused:
        check_terminal()
    assert "--live" in refused.value.message
