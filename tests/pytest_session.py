"""Runs pytest as a child and leaves nothing of it behind, however it ends: finished, interrupted or killed.

In: pytest's arguments. Out: its exit code, or 128 plus the signal that this process got. SIGINT, SIGTERM and SIGHUP end
the tests once: pytest gets one SIGINT, so that fixtures are torn down; the second signal kills it. Then, in any case,
what descends from it is removed: labs with hosts that do, and processes; also temporary labs of ended processes. Rule:
nothing else is touched. Orphans stay descendants, because this process is their "subreaper".

pytest has a process group of its own: Ctrl-C reaches this process alone, and what the caller ignores (nohup, `&` in a
script) stays ignored here while the tests have the default.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from ipexctl.addons.lab import lab_system
from ipexctl.addons.lab.down import down, labs_of, remove_abandoned
from ipexctl.errors import UserError
from ipexctl.node.common.processes import ProcessIdentity, all_processes, end_with_parent, read_text

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SUBREAPER = 36
_TO_TEAR_DOWN = 60.0
"""Seconds until a pytest that was interrupted is killed."""
_TO_END = 3.0
"""Seconds for processes that are about to end by themselves."""


class Interrupted(Exception):
    """This process got a signal to end; `code` is its exit code then."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.code = 128 + number


def run_pytest(args: Sequence[str]) -> int:
    """pytest's exit code; raises Interrupted after a signal, when everything is removed."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)  # orphans become children of this process
    heeded = {number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*heeded, signal.SIGCHLD})
    try:
        code, received = _run(args, heeded, before)
        left = _remove_what_is_left(0.0 if received else _TO_END)
    finally:
        while signal.sigtimedwait(heeded, 0):
            continue  # a further one changes nothing
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if received:
        raise Interrupted(received)
    if left:
        _say(f"left by the tests, and removed: {', '.join(left)}")
    return code


def _run(args: Sequence[str], heeded: set[signal.Signals], mask: set[Any]) -> tuple[int, int | None]:
    """pytest's exit code, and the first signal to this process."""
    end_with_this = end_with_parent(signal.SIGINT)

    def prepare() -> None:
        os.setpgid(0, 0)
        end_with_this()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    argv = [sys.executable, "-m", "pytest", *args]
    pytest = subprocess.Popen(argv, stdin=subprocess.DEVNULL, preexec_fn=prepare)
    received: int | None = None
    deadline = float("inf")
    while True:
        info = signal.sigtimedwait({*heeded, signal.SIGCHLD}, 1.0)
        if (code := _reap(pytest.pid)) is not None:
            pytest.returncode = code
            return code, received
        is_stop = info is not None and info.si_signo != signal.SIGCHLD
        if is_stop and received is None and info is not None:
            received, deadline = info.si_signo, time.monotonic() + _TO_TEAR_DOWN
            _say("\nstopping the tests and removing their labs")
            os.killpg(pytest.pid, signal.SIGINT)
        elif is_stop or time.monotonic() >= deadline:
            deadline = float("inf")
            os.killpg(pytest.pid, signal.SIGKILL)


def _reap(pid: int) -> int | None:
    """Take leave of every child that ended; the exit code of that one, 128 and more for a signal."""
    code = None
    with contextlib.suppress(ChildProcessError):
        while True:
            ended, status = os.waitpid(-1, os.WNOHANG)
            if not ended:
                break
            if ended == pid:
                code = os.waitstatus_to_exitcode(status)
    return 128 - code if code is not None and code < 0 else code


def _remove_what_is_left(seconds: float) -> list[str]:
    """Remove labs and processes that descend from this one; returns what they were.

    `seconds`: how long processes may take to end by themselves.
    """
    left = []
    with contextlib.suppress(UserError):  # no lab can be made here
        lab_system.require()
        for name in _own_labs():
            down(name)
            left.append(f"lab {name}")
        left += [f"lab {name}" for name in remove_abandoned().labs]
    deadline = time.monotonic() + seconds
    killed: dict[ProcessIdentity, str] = {}
    while True:
        _reap(0)
        found = _descendants()
        if not found:
            return [*left, *killed.values()]
        if time.monotonic() >= deadline:
            killed.update(found)
            for process in found:
                process.send_signal(signal.SIGKILL)
        time.sleep(0.05)


def _own_labs() -> list[str]:
    pids = {process.pid for process in _descendants()}
    spaces = lab_system.in_namespaces(lab_system.namespaces())
    return sorted(labs_of([name for name, members in spaces.items() if pids.intersection(members)]))


def _descendants() -> dict[ProcessIdentity, str]:
    """Living processes below this one, with their command lines."""
    stats = all_processes()
    below = {os.getpid()}
    while more := {stat.pid for stat in stats if stat.parent in below} - below:
        below |= more
    return {
        ProcessIdentity(stat.pid, stat.start): _command_line(stat.pid)
        for stat in stats
        if stat.pid in below - {os.getpid()} and stat.is_alive
    }


def _command_line(pid: int) -> str:
    return f"process {pid}: {read_text(f'/proc/{pid}/cmdline').replace(chr(0), ' ').strip()[:100]}"


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal may be closed
        print(text, file=sys.stderr, flush=True)
