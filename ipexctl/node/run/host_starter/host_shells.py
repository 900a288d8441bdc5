"""Lines of mpirun that a host's starter runs, each in a session of its own, with /dev/null as stdin."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
import signal
import subprocess
from typing import Callable, Mapping

from ipexctl.node.common.processes import command_lines, kill_sessions

READ_SIZE = 4096
_LAST_READS = 17
"""Most reads after a line has exited: what a full pipe holds. Processes that it left may print without end."""


class HostShells:
    def __init__(self, on_output: Callable[[int, str, bytes], None]) -> None:
        """`on_output` is called with the line's number, the name of the stream, and each piece of output."""
        self._on_output = on_output
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._namespaces: set[str] = set()
        """Of the mpiruns of Open MPI that have started lines."""
        self._pipes: dict[int, tuple[int, str]] = {}
        """Descriptor → number of the line, and name of the stream."""

    @property
    def is_empty(self) -> bool:
        """True if no line is running."""
        return not self._running

    def readers(self) -> list[int]:
        """Return the descriptors with output of lines, for the caller to wait for."""
        return list(self._pipes)

    def start(self, number: int, line: str, environ: Mapping[str, str], cwd: str) -> None:
        """Start a line in a session of its own. Raises an OSError if it can't be started."""
        process = subprocess.Popen(
            ["/bin/sh", "-c", line],
            cwd=cwd,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._running[number] = process
        self._namespaces.update(re.findall(r"prterun-[\w.-]+@\d+", line))
        for pipe, name in ((process.stdout, "out"), (process.stderr, "err")):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            self._pipes[pipe.fileno()] = (number, name)

    def read_output(self) -> None:
        """Hand on what the running lines have printed, without waiting."""
        for descriptor in list(self._pipes):
            self._read(descriptor)

    def take_ended(self) -> dict[int, int]:
        """Return number → `Popen.returncode` of each line that exited since the last call. Its output is read before,
        except what processes that it left print later."""
        codes = {number: process.poll() for number, process in self._running.items()}
        ended = {number: code for number, code in codes.items() if code is not None}
        for number in ended:
            for descriptor in [pipe for pipe, (of, _) in self._pipes.items() if of == number]:
                for _ in range(_LAST_READS):
                    if not self._read(descriptor):
                        break
            self._forget(number)
        return ended

    def signal(self, number: int) -> None:
        """Send a signal to all running lines. One that has just exited is no error."""
        for process in self._running.values():
            with contextlib.suppress(OSError):
                os.killpg(process.pid, number)

    def end(self, number: int) -> None:
        """Send SIGTERM to a line. A line that is not running is no error."""
        if number in self._running:
            with contextlib.suppress(OSError):
                os.killpg(self._running[number].pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill all processes in the sessions of the running lines, and wait for the lines. Their last output is
        lost. What Open MPI has left of its own is ended and removed, too."""
        if not self.is_empty:
            kill_sessions({process.pid for process in self._running.values()})
        for number in list(self._running):
            self._running[number].wait()
            self._forget(number)
        while self._namespaces:
            end_open_mpi(self._namespaces.pop())

    def _read(self, descriptor: int) -> bool:
        """Read once; returns False if there is nothing now."""
        try:
            data = os.read(descriptor, READ_SIZE)
        except BlockingIOError:
            return False
        number, stream = self._pipes[descriptor]
        if data:
            self._on_output(number, stream, data)
        else:
            del self._pipes[descriptor]
        return bool(data)

    def _forget(self, number: int) -> None:
        process = self._running.pop(number)
        self._pipes = {descriptor: value for descriptor, value in self._pipes.items() if value[0] != number}
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()


def end_open_mpi(namespace: str) -> None:
    """Kill what an mpirun of Open MPI has left, and remove its directories in /tmp.

    A daemon that was stopped stays, since `prted --daemonize` leaves its session; killed programs leave directories.
    `namespace`: of that mpirun, such as `prterun-node1-240@0`.
    """
    for pid, line in command_lines():
        if f"\0{namespace}\0".encode() in line:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    for directory in map(os.path.dirname, glob.glob(f"/tmp/*/pmix.*.tool.{namespace}")):  # noqa: S108
        with contextlib.suppress(OSError):  # another end of it has removed it
            if os.lstat(directory).st_uid == os.getuid():
                shutil.rmtree(directory, ignore_errors=True)
