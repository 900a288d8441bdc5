"""Run programs until they exit, time out, or the control machine is gone. No program survives the call.

Each program has a process group of its own, which `Child.close` kills. A program that reports something does it on a
separate pipe, because libraries print to stdout.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from typing import BinaryIO, Callable, Sequence

from ipexctl.node.common.answer import AgentError, check_stopped
from ipexctl.node.common.clock import Countdown, Stopwatch
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.processes import Delays, end_with_parent

_LAP = 1.0
"""Seconds between two looks at how long other programs kept ours waiting."""
KEPT = 2048, 4096
"""Bytes kept of the beginning and of the end of a program's output."""


def own_group() -> Callable[[], None]:
    """Return a preexec_fn: the program leads a new process group, and gets SIGTERM when this process exits."""
    set_signal = end_with_parent(signal.SIGTERM)

    def prepare() -> None:
        os.setpgid(0, 0)
        set_signal()

    return prepare


class Child:
    """A running program, its output and its report. Raises an AgentError if it can't be started.

    `pipe`: a pipe's two ends; the program gets the second one and reports there. `stdout`: a file for its stdout;
    `output` is then stderr alone. `kept`: bytes that `text` has of the beginning and of the end of the output.
    """

    def __init__(
        self,
        argv: Sequence[str],
        env: dict[str, str],
        pipe: tuple[int, int] | None = None,
        cwd: str | None = None,
        stdout: BinaryIO | None = None,
        kept: tuple[int, int] = KEPT,
    ) -> None:
        self.runtime = Stopwatch()
        self.output = b""
        self.report = b""
        self._head, self._tail = kept
        self.ended = False
        self._pipe = pipe[0] if pipe else None
        try:
            self.process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=stdout or subprocess.PIPE,
                stderr=subprocess.STDOUT if stdout is None else subprocess.PIPE,
                env=env,
                cwd=cwd,
                pass_fds=[pipe[1]] if pipe else [],
                preexec_fn=own_group(),
            )
        except OSError as error:
            raise AgentError(f"{argv[0]} can't be run: {error.strerror}", Fix("see: `ipexctl doctor`")) from None
        finally:
            if pipe:
                os.close(pipe[1])
        stream = self.process.stdout if stdout is None else self.process.stderr
        assert stream is not None
        self._stream = stream
        self.fds = {stream.fileno()} | ({self._pipe} if self._pipe is not None else set())

    def receive(self, fd: int) -> None:
        """Read what has arrived. Of long output, the middle is dropped, so that memory stays bounded."""
        data = os.read(fd, 65536)
        if not data:
            self.fds.discard(fd)
        elif fd == self._pipe:
            self.report += data
        elif len(self.output) < self._head:
            self.output += data
        else:
            self.output = self.output[: self._head] + (self.output[self._head :] + data)[-2 * self._tail :]

    def end(self, *, hard: bool = False) -> None:
        """Send SIGTERM to the process group, or SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL if hard else signal.SIGTERM)

    def close(self) -> None:
        """End the program and all of its process group: SIGTERM if it runs, and SIGKILL after at most 2 s."""
        if self.process.poll() is None:
            self.end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(2)
        self.end(hard=True)
        self.process.wait()
        self._stream.close()
        if self._pipe is not None:
            os.close(self._pipe)

    @property
    def text(self) -> str:
        """Return the beginning and the end of the output, with `...` between them if something is left out."""
        text = self.output
        if len(text) > self._head + self._tail:
            text = text[: self._head] + b"\n...\n" + text[-self._tail :]
        return text.decode(errors="replace").strip()


def watch(children: Sequence[Child], timeout: float) -> bool:
    """Wait until all programs have exited; False if they have not in time. Then all of them are ended.

    Once a program failed, the others have 5 s left. The clock stands still while other programs keep these from a
    processor, or while they read from a disk. Raises Stopped if the control machine is gone.
    """
    countdown, delays, lap = Countdown(timeout), Delays(), Stopwatch()
    try:
        while True:
            check_stopped()
            if countdown.is_over or lap.seconds > _LAP:
                countdown.extend(delays.seconds())
                lap.restart()
            open_fds = {fd: child for child in children for fd in child.fds}
            alive = [child for child in children if child.process.poll() is None]
            if not alive or not open_fds:
                countdown.shorten(0.5)  # a grandchild may hold the pipe open
                if not alive and not open_fds:
                    return True
            elif len(alive) < len(children) and any(child.process.poll() for child in children):
                countdown.shorten(5)
            if countdown.is_over:
                return not alive
            poller = select.poll()
            poller.register(1, 0)
            for fd in open_fds:
                poller.register(fd, select.POLLIN)
            for fd, _ in poller.poll(min(countdown.left, 1.0 if open_fds else 0.01) * 1000):
                if fd != 1:
                    open_fds[fd].receive(fd)
    finally:
        for child in children:
            child.close()
