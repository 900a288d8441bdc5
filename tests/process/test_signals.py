"""Signals and keys at each call that follows a run: its exit code, its last words, and what becomes of the run."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from attach_helpers import IGNORE_TERM_SCRIPT, IPEXCTL, Attached

from agent_helpers import wait_until
from ipexctl.homes.registry import RunRegistry
from ipexctl.node.common.processes import command_lines
from message_data import missing

pytestmark = pytest.mark.signals
pytest_plugins = ["run_fixtures", "attach_fixtures"]
INT, TERM, HUP = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
END_OF_SCREEN = b"\x1b[?1049l"


def check_state(attached: Attached, state: str) -> None:
    """A run that goes on prints, too."""
    wait_until(lambda: attached.run.status["state"] == state, 20)
    if state == "running":
        before = attached.run.output()
        wait_until(lambda: len(attached.run.output()) > len(before), 20)


@pytest.mark.parametrize(
    ("call", "sent", "rc", "said", "state"),
    [
        ("attach last", [(0, INT)], 130, "again to leave without waiting", "stopped"),
        ("attach last", [(0, INT), (0.003, INT), (0.003, INT)], 130, "again to leave without waiting", "stopped"),
        ("attach last", [(0, INT), (0.06, INT)], -INT, "ID is being stopped ipexctl why ID", "stopped"),
        ("attach last", [(0, INT), (0.5, INT)], -INT, "ID is being stopped ipexctl why ID", "stopped"),
        ("attach last", [(0, TERM)], 143, "detached ipexctl attach ID ipexctl stop", "running"),
        ("attach last", [(0, TERM), (0.003, TERM), (0.003, TERM)], 143, "detached", "running"),
        ("attach last", [(0, HUP)], 129, "ipexctl attach", "running"),
        ("nohup attach last", [(0, HUP), (0.5, TERM)], 143, "detached", "running"),
        ("logs last -f", [(0, INT)], 130, None, "running"),
        ("wait last", [(1.5, INT)], 130, "", "running"),
        ("wait last", [(1.5, TERM)], 143, "", "running"),
        ("wait last", [(1.5, HUP)], 129, "", "running"),
    ],
)
def test_signals_at_a_call_end_it_and_only_ctrl_c_at_attach_stops_the_run(
    attach: Callable[..., Attached],
    call: str,
    sent: Sequence[tuple[float, signal.Signals]],
    rc: int,
    said: str | None,
    state: str,
) -> None:
    """The same signal within some milliseconds counts once: `timeout` sends its own to the group as well."""
    attached = attach(IGNORE_TERM_SCRIPT)
    through = ["nohup"] if call.startswith("nohup ") else []
    process = attached.begin(*call.removeprefix("nohup ").split(), through=through)
    attached.run.wait_for_all(b"still here")
    if not call.startswith("wait"):
        assert process.stdout is not None
        process.stdout.readline()
    for pause, number in sent:
        time.sleep(pause)
        assert process.poll() is None
        process.send_signal(number)
    out, err = process.communicate(timeout=3 if rc < 0 else 30)
    assert process.returncode == rc, err
    if said is None:
        assert err == b""
    else:
        assert missing(err.decode(), said.replace("ID", attached.run.id)) == []
    check_state(attached, state)
    if rc == 130 and state == "stopped":  # it followed the run to its end
        assert b"was stopped" in err
        assert [out.count(b"[%d] told to go" % rank) for rank in (0, 1)] == [1, 1]
        assert out.splitlines()[-1].endswith(b"still here")


def test_second_ctrl_c_exits_at_once_and_the_run_is_stopped(attach: Callable[..., Attached], tmp_path: Path) -> None:
    """Though node0 has no request yet."""
    attached = attach(IGNORE_TERM_SCRIPT)
    slow = tmp_path / "slow-python"
    slow.write_text(f'#!/bin/sh\n[ ! -e {tmp_path}/is-slow ] || sleep 3\nexec {sys.executable} "$@"\n')
    slow.chmod(0o755)
    RunRegistry(attached.copies).save(replace(attached.run.record, python=str(slow)))
    process = attached.begin_and_read("attach", "last")
    (tmp_path / "is-slow").touch()
    process.send_signal(INT)
    time.sleep(0.2)
    process.send_signal(INT)
    _, err = process.communicate(timeout=2)
    assert process.returncode == -INT
    assert missing(err.decode(), f"{attached.run.id} is being stopped in the background ipexctl why") == []
    check_state(attached, "stopped")


@pytest.mark.parametrize(
    ("steps", "rc", "after", "state"),
    [
        pytest.param([(b"still here", TERM)], 143, b"", "running", marks=pytest.mark.core),
        ([(b"still here", b"s"), (b"y/n", b"y")], 130, b"was stopped", "stopped"),
        ([(b"still here", b"\x03"), (b"stopping", b"\x03")], -INT, b"ipexctl why", "stopped"),
        (
            [(b"still here", b"\x03"), *((said, b"") for said in (b"stopping", b"Ctrl-C again", b"told to go"))],
            130,
            b"was stopped",
            "stopped",
        ),
    ],
    ids=["sigterm", "stop-key", "two-ctrl-c", "ctrl-c"],
)
def test_signals_and_keys_at_the_live_view_restore_the_terminal(
    attach: Callable[..., Attached],
    steps: Sequence[tuple[bytes, bytes | signal.Signals]],
    rc: int,
    after: bytes,
    state: str,
) -> None:
    attached = attach(IGNORE_TERM_SCRIPT)
    shown = attached.show()
    for seen, sent in steps:
        assert shown.until_seen(seen)
        assert END_OF_SCREEN not in shown.seen
        if isinstance(sent, bytes):
            shown.type(sent)
        else:
            shown.process.send_signal(sent)
    assert shown.until_gone() == rc
    assert shown.restored
    assert after in shown.seen[shown.seen.rfind(END_OF_SCREEN) :]
    check_state(attached, state)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The call of a run that ignores SIGTERM, after its first line."""
    project = tmp_path / "project"
    project.mkdir()
    (project / ".ipexctlignore").touch()
    (project / "waits.py").write_text(IGNORE_TERM_SCRIPT)
    home = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"), "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [*IPEXCTL, "run", "--hosts", "localhost", "--python", sys.executable, "-n", "1", "waits.py"],
        env={**os.environ, **home}, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == b"[0] here\n"
    yield process
    process.kill()
    process.communicate()
    subprocess.run([*IPEXCTL, "stop", "last"], env={**os.environ, **home}, check=False, capture_output=True, timeout=60)


def test_second_sigterm_at_run_after_a_while_exits_at_once(running: subprocess.Popen[bytes]) -> None:
    """The call that has started a run stops it, where `attach` only detaches."""
    running.send_signal(TERM)
    time.sleep(1.3)
    running.send_signal(TERM)
    _, err = running.communicate(timeout=30)
    assert running.returncode == -TERM
    assert missing(err.decode(), "is being stopped ipexctl why") == []


HANGS = """
import threading, time
from ipexctl.commands.interrupt import cancelling
from ipexctl.remote.cancel import Cancel, cleaning
with cancelling(Cancel(), only_waits=True):
    print("waits", flush=True)
    if CLEANS:
        with cleaning("a process"): time.sleep(4)
    while True:
        threading.Event().wait(1)
"""


@pytest.mark.parametrize(("number", "cleans", "least"), [(INT, False, 1.5), (TERM, False, 1.5), (TERM, True, 5.0)])
def test_a_signal_ends_a_call_whose_threads_hang(number: signal.Signals, cleans: bool, least: float) -> None:
    """After what it began on hosts is ended."""
    program = HANGS.replace("CLEANS", str(cleans))
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"waits\n"
        began = time.monotonic()
        process.send_signal(number)
        assert process.wait(30) == 128 + number
    assert time.monotonic() - began >= least


def check_that_sigterm_ends(argv: Sequence[str], *words: str, at: Path, path: str = os.environ["PATH"]) -> None:
    """Once each of the words is in the command line of another process, which then ends, too."""

    def found(word: str) -> bool:
        return any(word.encode() in line for pid, line in command_lines() if pid != call.pid)

    with subprocess.Popen([*IPEXCTL, *argv], stderr=subprocess.PIPE, cwd=at, env={**os.environ, "PATH": path}) as call:
        wait_until(lambda: all(map(found, words)), 30)
        call.send_signal(TERM)
        _, err = call.communicate(timeout=30)
    assert call.returncode == 143, err
    wait_until(lambda: not any(map(found, words)), 5)


@pytest.mark.needs("ssh")
@pytest.mark.parametrize("line", ['Match exec "sleep 300.{mark}"', "Include {pipe}"])
def test_a_signal_ends_ssh_that_does_not_answer_about_its_config(tmp_path: Path, line: str) -> None:
    config, pipe, mark = tmp_path / "config", tmp_path / "pipe", os.getpid()
    os.mkfifo(pipe)
    config.write_text(line.format(mark=mark, pipe=pipe))
    argv = ["exec", "--hosts", "host.invalid", "--ssh-config", str(config), "--", "true"]
    check_that_sigterm_ends(argv, str(config), *([f"300.{mark}"] if "300" in line else []), at=tmp_path)


@pytest.mark.parametrize("call", ["push file localhost:{0}/copy/", "run --hosts localhost -n 1 file.py"])
def test_a_signal_ends_a_host_whose_python_is_silent(tmp_path: Path, call: str) -> None:
    word, programs = f"300.{os.getpid()}", tmp_path / "programs"
    programs.mkdir()
    (programs / "python3").write_text(f"#!/bin/sh\nexec sleep {word}\n")
    (programs / "python3").chmod(0o700)
    for name in ("file", "file.py", ".ipexctlignore"):
        (tmp_path / name).touch()
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    check_that_sigterm_ends(call.format(tmp_path).split(), word, at=tmp_path, path=path)


def filled_pipe(process: subprocess.Popen[bytes], reader: int) -> None:
    def is_full() -> bool:
        waiting = fcntl.ioctl(reader, termios.FIONREAD, b"\0" * 4)
        return int.from_bytes(waiting, sys.byteorder) >= SMALL_PIPE

    wait_until(is_full, 30)
    assert process.poll() is None


SMALL_PIPE = 4096


@pytest.mark.parametrize(("sent", "rc", "most"), [([TERM], -TERM, 2), ([INT], 130, 10), ([INT, INT], 130, 2)])
def test_a_full_pipe_keeps_no_call_from_ending(
    tmp_path: Path, sent: list[signal.Signals], rc: int, most: float
) -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, SMALL_PIPE)
    env = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([*IPEXCTL, "run", "--help-all"], stdout=writer, stderr=subprocess.PIPE, env=env)
    os.close(writer)
    filled_pipe(process, reader)
    for number in sent:
        process.send_signal(number)
        time.sleep(0.3)
    _, err = process.communicate(timeout=most)
    os.close(reader)
    assert process.returncode == rc
    assert b"Traceback" not in err
