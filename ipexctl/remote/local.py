"""A session on the control machine: the same commands, without ssh and login shell. A command is over when both streams
and the process have ended, because a background process may hold either."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import IO

from ipexctl.hosts.host import Host
from ipexctl.node.common.frames import StreamName
from ipexctl.remote.cancel import Deadline
from ipexctl.remote.command import Command, end_session_script
from ipexctl.remote.outcome import Cancelled, HostError
from ipexctl.remote.session import OVERTIME, Ended, Readable, Session, Wakeup, copy_stdin, timed_out
from ipexctl.text import home_directory

_POLL_INTERVAL = 0.02
"""Seconds between checks for the exit of a command with closed streams."""

_READ = 1 << 18


class LocalSession(Session):
    server_key = None

    def __init__(self, host: Host) -> None:
        self.host = host

    def _run(
        self, command: Command, sink: Callable[[StreamName, bytes], None], stdin: Readable | None, deadline: Deadline
    ) -> Ended:
        process = _start(command, stdin)
        try:
            with Wakeup() as wakeup, deadline.cancel.waking(wakeup.wake):
                return _follow(process, sink, wakeup, deadline)
        except BaseException:
            _end_processes(process)
            raise
        finally:
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()

    def close(self) -> None:
        """Does nothing, because nothing is open between commands."""


def _start(command: Command, stdin: Readable | None) -> subprocess.Popen[bytes]:
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", command.script],
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=_home(),
            start_new_session=True,
        )
    except OSError as error:
        raise HostError(f"the command can't be started: {error.strerror or error}") from None
    if stdin is not None and process.stdin is not None:
        _copy_stdin(stdin, process.stdin)
    return process


def _home() -> Path:
    home = home_directory()
    return home if home.is_dir() else Path("/")


def _copy_stdin(source: Readable, target: IO[bytes]) -> None:
    def send(data: bytes) -> None:
        target.write(data)
        target.flush()

    copy_stdin(source, send, target.close, (OSError,))


def _follow(
    process: subprocess.Popen[bytes], sink: Callable[[StreamName, bytes], None], wakeup: Wakeup, deadline: Deadline
) -> Ended:
    assert process.stdout is not None
    assert process.stderr is not None
    names: dict[int, StreamName] = {process.stdout.fileno(): "stdout", process.stderr.fileno(): "stderr"}
    with selectors.DefaultSelector() as selector:
        for descriptor in (*names, wakeup.reader):
            selector.register(descriptor, selectors.EVENT_READ)
        overtime: Deadline | None = None
        # Streams may end long before the command, so the loop waits for both.
        while names or process.poll() is None:
            if deadline.cancelled:
                raise Cancelled("stopped")
            overtime = (overtime or Deadline(OVERTIME)) if deadline.over else None
            if overtime is not None and overtime.over:
                raise timed_out(deadline)
            for key, _ in selector.select((overtime or deadline).left(None if names else _POLL_INTERVAL)):
                if key.fd not in names:
                    continue
                if data := os.read(key.fd, _READ):
                    sink(names[key.fd], data)
                else:
                    selector.unregister(key.fd)
                    del names[key.fd]
    code = process.wait()
    if code < 0:
        return Ended(128 - code, signal.Signals(-code).name.removeprefix("SIG"))
    return Ended(code)


def _end_processes(process: subprocess.Popen[bytes]) -> None:
    argv = ["/bin/sh", "-c", end_session_script(process.pid)]
    with contextlib.suppress(OSError):
        try:
            subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=10)
        except subprocess.TimeoutExpired:
            if process.poll() is None:  # its pid is not reused yet
                os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1)
