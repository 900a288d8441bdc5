"""A session: one open connection to a host, local or over ssh; and the ways to feed a command's stdin.

Every command goes through `Session.run`: a command and a sink in, an `Ended` out. It raises a HostError if the
connection is lost, the time is up or the call is cancelled; in the last two cases all processes of the command were
ended before. Without --timeout a step may take as long as it works, but not be silent for an hour: then a disk hangs.
Output that is collected is bounded (16 MB), as a login script may print without end.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ipexctl.limits import STEP_SILENCE
from ipexctl.remote.cancel import Deadline
from ipexctl.remote.outcome import Cancelled, HostError, TimedOut
from ipexctl.text import rough_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ipexctl.hosts.host import Host
    from ipexctl.node.common.frames import StreamName
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.command import Command

MAX_OUTPUT: Final = 16 << 20
"""Bytes of output that are collected of one command."""
OVERTIME: Final = 0.2
"""Seconds to read, after a deadline, what came before it while this process was stopped (Ctrl-Z)."""
_STDIN_CHUNK: Final = 1 << 18


class Readable(Protocol):
    """The stdin of a command. `read` returns any number of bytes, and none at the end."""

    def read(self, size: int = -1, /) -> bytes: ...


class Ended(NamedTuple):
    """The exit code of a command, 128+N if signal N ended it, and that signal's name."""

    code: int
    signal: str | None = None

    @property
    def ok(self) -> bool:
        return self.code == 0

    def __str__(self) -> str:
        return f"ended by SIG{self.signal}" if self.signal else f"exit code {self.code}"


class Captured(NamedTuple):
    """A command's exit code and its complete output, for output that is known to be short."""

    ended: Ended
    stdout: bytes
    stderr: bytes


class OutputCollector:
    """A sink for output that is known to be short. Raises a HostError when a host sends more than MAX_OUTPUT."""

    def __init__(self) -> None:
        self._data: dict[StreamName, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}

    def sink(self, stream: StreamName, data: bytes) -> None:
        collected = self._data[stream]
        if len(collected) + len(data) > MAX_OUTPUT:
            collected.clear()  # the error keeps its frames, and these this collector, until the command ends
            raise HostError(f"it sends more than {MAX_OUTPUT >> 20} MB on {stream}", "does a login script there print?")
        collected += data

    @property
    def stdout(self) -> bytes:
        return bytes(self._data["stdout"])

    @property
    def stderr(self) -> bytes:
        return bytes(self._data["stderr"])


class Session(ABC):
    """One open connection to one host. `close` it once."""

    host: Host
    on_command: Callable[[Command, float], None] | None = None
    """Called for each command that ended, with the seconds it took."""
    has_proxy = False
    """The connection goes through a program on the control machine."""

    @property
    @abstractmethod
    def server_key(self) -> tuple[str, bytes] | None:
        """The verified host key of this connection: its type and its bytes. None without ssh."""

    def run(
        self,
        command: Command,
        sink: Callable[[StreamName, bytes], None],
        *,
        stdin: Readable | None = None,
        timeout: float | None = None,
        cancel: Cancel | None = None,
        deadline: Deadline | None = None,
        silence: float | None = None,
    ) -> Ended:
        """Run a command in the account's home and forward its output in pieces as they come.

        Raises HostError if the connection is lost, the time is up or the command is cancelled; in the last two
        cases all processes the command has started are ended first. `deadline` replaces `timeout` and `cancel`; the
        sink may change it. Without `timeout`, `silence` limits the seconds in which the command neither prints nor
        reads.
        """
        started = time.monotonic()
        if deadline is None and timeout is None and silence is not None:
            deadline = Deadline(silence, cancel, is_of_silence=True)
            sink = _restarting(deadline, sink)
            stdin = None if stdin is None else _WatchedStdin(deadline, stdin)
        deadline = deadline or Deadline(timeout, cancel)
        if deadline.cancelled:
            raise Cancelled("stopped before it began")
        try:
            return self._run(command, sink, stdin, deadline)
        finally:
            if self.on_command is not None:
                self.on_command(command, time.monotonic() - started)

    @abstractmethod
    def _run(
        self, command: Command, sink: Callable[[StreamName, bytes], None], stdin: Readable | None, deadline: Deadline
    ) -> Ended: ...

    @abstractmethod
    def close(self) -> None: ...


def _restarting(deadline: Deadline, sink: Callable[[StreamName, bytes], None]) -> Callable[[StreamName, bytes], None]:
    def forward(stream: StreamName, data: bytes) -> None:
        sink(stream, data)
        deadline.restart()

    return forward


class _WatchedStdin:
    """A stdin of which each piece that the host takes restarts the deadline."""

    def __init__(self, deadline: Deadline, stdin: Readable) -> None:
        self._deadline, self._stdin = deadline, stdin

    def read(self, size: int = -1) -> bytes:
        data = self._stdin.read(size)
        self._deadline.restart()
        return data


class Wakeup:
    """A pipe that ends a wait on file descriptors from another thread."""

    def __enter__(self) -> Wakeup:
        self.reader, self._writer = os.pipe()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.reader)
        os.close(self._writer)

    def wake(self) -> None:
        os.write(self._writer, b"x")


def timed_out(deadline: Deadline) -> TimedOut:
    if deadline.is_of_silence:
        return TimedOut(
            f"nothing has come from it for {rough_duration(deadline.seconds or 0)}",
            "does a disk of that host hang?",
            option="--timeout S sets another limit",
        )
    return TimedOut(f"not finished within {deadline.seconds:g} s", option="--timeout S gives it longer")


def copy_stdin(
    source: Readable,
    send: Callable[[bytes], None],
    end: Callable[[], None],
    errors: tuple[type[Exception], ...],
) -> None:
    """Copy stdin to a command in a thread. If the command stops reading early, its exit code explains the rest."""

    def copy() -> None:
        with suppress(ValueError, *errors):
            for data in chunks_of(source):
                send(data)
        with suppress(ValueError, *errors):
            end()

    threading.Thread(target=copy, daemon=True).start()


def capture(
    session: Session,
    command: Command,
    *,
    stdin: Readable | None = None,
    timeout: float | None = None,
    cancel: Cancel | None = None,
) -> Captured:
    """Run a command of ipexctl and collect its output."""
    output = OutputCollector()
    ended = session.run(command, output.sink, stdin=stdin, timeout=timeout, cancel=cancel, silence=STEP_SILENCE)
    return Captured(ended, output.stdout, output.stderr)


def chunks_of(stream: Readable) -> Iterator[bytes]:
    return iter(lambda: stream.read(_STDIN_CHUNK), b"")


class ChunkStream:
    """Chunks as a stream. An error ends the stream early and is kept: the host only sees the end."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self.error: Exception | None = None
        self.read_bytes = 0

    def read(self, size: int = -1) -> bytes:
        del size
        try:
            chunk = next(self._chunks, b"")
        except Exception as error:  # noqa: BLE001  # raised by the caller, in its own thread
            self.error = error
            return b""
        self.read_bytes += len(chunk)
        return chunk


class StdinQueue:
    """`send` adds a line, `end` closes the stream; `read` blocks until there is one."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def send(self, line: bytes) -> None:
        self._lines.put(line)

    def end(self) -> None:
        self._lines.put(b"")

    def read(self, size: int = -1) -> bytes:
        del size
        return self._lines.get()
