"""Define a session, one open connection to a host, local or remote, and ways to feed a command's stdin.

Without --timeout a step may take any time, but may not be silent for an hour, because then a disk hangs. Collected
output is limited to 16 MB, because a login script may print endlessly.
"""

from __future__ import annotations

import os
import queue
import re
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from ipexctl import limits
from ipexctl.hosts.host import Host
from ipexctl.hosts.nodeset import fold
from ipexctl.limits import STEP_SILENCE
from ipexctl.node.common.frames import StreamName
from ipexctl.remote.cancel import Cancel, Deadline, cleaning
from ipexctl.remote.command import Command, FenceFilter, check_size, login_line
from ipexctl.remote.outcome import Cancelled, HostError, TimedOut, Unreachable
from ipexctl.text import printable, rough_duration

MAX_OUTPUT: Final = 16 << 20
MOST_OF_LOGIN: Final = 1 << 20
"""Bytes that a login may print before its command starts. `yes` in a startup file prints them without end."""
OVERTIME: Final = 0.2
"""Seconds to read, after a deadline, what arrived before it while this process was stopped (Ctrl-Z)."""
_STDIN_CHUNK: Final = 1 << 18

BURDEN: Final = Command.scripts(Path(__file__).with_name("burden.sh"), arguments=[], label="the load")
_LOAD_LINE: Final = re.compile(r"(\d{1,6}(?:\.\d+)?) (\d{1,5}) (\d{1,3})")
_PROGRAMS: Final = re.compile(r"^(\d{1,6}) ([RD]) +(\S{1,32}) +(.{1,15})$", re.MULTILINE)
_LITTLE_MEMORY: Final = 5
"""Percent of the memory that is left: below it, the host counts as busy."""


class Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes; empty at the end."""


class CommandEnd(NamedTuple):
    code: int
    signal: str | None = None

    @property
    def ok(self) -> bool:
        """True if the exit code was 0."""
        return self.code == 0

    def __str__(self) -> str:
        return f"ended by SIG{self.signal}" if self.signal else f"exit code {self.code}"


class CapturedOutput(NamedTuple):
    ended: CommandEnd
    stdout: bytes
    stderr: bytes


class OutputCollector:
    def __init__(self) -> None:
        self._data: dict[StreamName, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}

    def sink(self, stream: StreamName, data: bytes) -> None:
        """Keep the output. Raises a HostError for more than MAX_OUTPUT."""
        collected = self._data[stream]
        if len(collected) + len(data) > MAX_OUTPUT:
            collected.clear()  # otherwise the error's traceback keeps this collector until the command ends
            raise endless_output(stream)
        collected += data

    @property
    def stdout(self) -> bytes:
        """What has arrived on stdout."""
        return bytes(self._data["stdout"])

    @property
    def stderr(self) -> bytes:
        """What has arrived on stderr."""
        return bytes(self._data["stderr"])


def endless_output(stream: StreamName) -> HostError:
    """Return the error for a host that sends more than MAX_OUTPUT."""
    return HostError(
        f"it sent more than {MAX_OUTPUT >> 20} MB on {stream}", "check whether a login script there prints endlessly"
    )


class SlowHosts:
    """Tells a person once, for all hosts that wait for the same step, which step a call has waited for TOLD_AFTER
    seconds."""

    def __init__(self, tell: Callable[[str], None] | None = None) -> None:
        self._tell, self._lock = tell, threading.Lock()
        self._waiting: dict[tuple[str, str], float] = {}

    @contextmanager
    def waiting(self, host: Host, next_step: str, cancel: Cancel, is_slow: Callable[[], bool]) -> Iterator[None]:
        """Tell a person if the block takes long. `next_step`: what the host does next, such as `log in`. `is_slow`
        returns False if the call waits for something else, such as a person."""
        key = (next_step, host.name)

        def notice() -> None:
            long_ago = time.monotonic() - limits.TOLD_AFTER / 2
            with self._lock:
                late = [
                    late_key
                    for late_key, began in self._waiting.items()
                    if late_key[0] == next_step and began < long_ago
                ]
                is_told = key in late and is_slow() and not cancel.thrown
                for late_key in late if is_told else ():
                    del self._waiting[late_key]
            if self._tell is not None and is_told:
                self._tell(
                    f"{fold(name for _, name in late)}: slow to {next_step}: {limits.TOLD_AFTER:g} s so far, waiting "
                    f"for up to {rough_duration(limits.PATIENCE)} without an answer (Ctrl-C ends it)"
                )

        with self._lock:
            self._waiting[key] = time.monotonic()
        try:
            with Deadline(limits.TOLD_AFTER, cancel).closing(notice):
                yield
        finally:
            with self._lock:
                self._waiting.pop(key, None)


class Session(ABC):
    host: Host
    slow = SlowHosts()
    cancel: Cancel | None = None
    """Ends the commands of this session."""
    timeout: float | None = None
    """Seconds that the call allows for a step about a run; None: the step's own limit."""
    on_command: Callable[[Command, float], None] | None = None
    """Called for each finished command with its seconds."""
    has_proxy = False
    """True if a program on the control machine carries the connection."""
    is_stuck = False
    """True once a login has neither started its command nor let it be ended. No cleanup is tried there."""
    is_login = True
    """False if the host sees no login of the control machine, such as on this machine."""

    def is_limited_to_one(self) -> bool:
        """True if sshd refuses to open a second session on this connection, while a command runs (`MaxSessions 1`)."""
        return False

    def run(
        self,
        command: Command,
        sink: Callable[[StreamName, bytes], None],
        *,
        stdin: Readable | None = None,
        timeout: float | None = None,
        deadline: Deadline | None = None,
        silence: float | None = None,
    ) -> CommandEnd:
        """Run a command in the account's home and forward its output as it arrives. Raises HostError if the connection
        is lost, on timeout and on cancellation, after ending the command's processes.

        `deadline` replaces `timeout` and the session's `cancel`; the sink may change it. `silence` limits the seconds
        in which the command neither prints nor reads.
        """
        started, is_measured = time.monotonic(), deadline is None
        if deadline is None:
            is_of_silence = timeout is None and silence is not None
            deadline = Deadline(silence if is_of_silence else timeout, self.cancel, is_of_silence=is_of_silence)
        if deadline.is_of_silence:
            sink = _restarting(deadline, sink)
            stdin = None if stdin is None else _WatchedStdin(deadline, stdin)
        if deadline.cancelled:
            raise Cancelled("stopped before it began")
        try:
            return self._run(command, sink, stdin, deadline)
        except TimedOut as error:
            is_measured = is_measured and deadline.is_of_silence and not self.is_stuck
            if not is_measured or not (burden := self.burden()):
                raise
            again = TimedOut(f"{error.reason}; {burden}", "run it again when that is over", option=error.option)
            again.left_running = error.left_running
            raise again from None
        finally:
            if self.on_command is not None:
                self.on_command(command, time.monotonic() - started)

    def burden(self) -> str:
        """Return what keeps the host busy now, as a clause; empty if nothing does, or if the host does not tell."""
        output = OutputCollector()
        with suppress(HostError):
            self._run(BURDEN, output.sink, None, Deadline(limits.CHECKED_BURDEN, self.cancel))
        return describe_burden(output.stdout.decode(errors="replace"))

    def slow_start(self, call: LoginCommand) -> AbstractContextManager[None]:
        """Tell a person if the login shell does not start the command."""
        next_step, cancel = "start a command in its login shell", call.start.cancel
        return self.slow.waiting(
            self.host, next_step, cancel, lambda: not call.has_started and call.start.is_of_silence
        )

    @abstractmethod
    def _run(
        self, command: Command, sink: Callable[[StreamName, bytes], None], stdin: Readable | None, deadline: Deadline
    ) -> CommandEnd: ...

    @abstractmethod
    def close(self) -> None:
        """Close the connection. Commands that run there end."""


def _restarting(deadline: Deadline, sink: Callable[[StreamName, bytes], None]) -> Callable[[StreamName, bytes], None]:
    """Return a sink that passes output on and restarts the deadline at each output on stdout."""

    def forward(stream: StreamName, data: bytes) -> None:
        sink(stream, data)
        if stream == "stdout":  # errors without an end are no sign of work
            deadline.restart()

    return forward


class _WatchedStdin:
    def __init__(self, deadline: Deadline, stdin: Readable) -> None:
        self._deadline, self._stdin = deadline, stdin

    def read(self, size: int = -1) -> bytes:
        data = self._stdin.read(size)
        self._deadline.restart()
        return data


class Wakeup:
    def __enter__(self) -> Wakeup:
        self.reader, self._writer = os.pipe()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.reader)
        os.close(self._writer)

    def wake(self) -> None:
        """Wake the thread that waits for `reader`; may be called from any thread."""
        os.write(self._writer, b"x")


def timeout_error(deadline: Deadline) -> TimedOut:
    """Return the error for a deadline that passed, with the option that allows more time."""
    if deadline.is_of_silence:
        return TimedOut(
            f"nothing has arrived from it for {rough_duration(deadline.seconds or 0)}",
            "log in there to see what it waits for",
            option="--timeout S sets another limit",
        )
    return TimedOut(f"timed out after {deadline.seconds:g} s", option="for a longer wait: --timeout S")


@contextmanager
def ending(end: Callable[[], str]) -> Iterator[None]:
    """End the command's processes if the block is cancelled, times out or breaks. `end` does so and returns the number
    of survivors as text, empty if it is unknown; the error of the block tells it."""
    try:
        yield
    except (Cancelled, TimedOut) as error:
        with cleaning("processes"):
            count = end()
        left = f"{count} of its processes could not be ended" if count else "its processes may still be running there"
        reason = error.reason if count == "0" else f"{error.reason}; {left}"
        ended = type(error)(reason, error.advice, option=error.option)
        ended.left_running = count != "0"
        raise ended from None
    except HostError:
        raise
    except BaseException:
        with cleaning("processes"):
            end()
        raise


RETRY_INTERVALS: Final = (0.05, 0.1, 0.2)
"""Seconds between attempts to open a session if no other is open: sshd frees the session of a finished command a moment
later."""
MORE_SESSIONS: Final = "raise MaxSessions in its sshd_config, or its process limit"


def connection_lost(detail: object = None) -> Unreachable:
    """Return the error for a connection that broke. `detail`: the library's own words, if any."""
    shown = f" ({detail})" if detail and str(detail) else ""
    return Unreachable(f"the connection was lost{shown}", "check the machine and the network, then run it again")


class LoginCommand:
    """A command that a login shell starts: its line for sshd, its output behind the fence, its current deadline."""

    def __init__(self, command: Command, sink: Callable[[StreamName, bytes], None], deadline: Deadline) -> None:
        nonce = secrets.token_hex(8)
        self.line = check_size(login_line(command, nonce))
        self._sink, self._deadline = sink, deadline
        self._before = 0
        """Bytes before the command's own output."""
        self._filters: dict[StreamName, FenceFilter] = {"stdout": FenceFilter(nonce), "stderr": FenceFilter(nonce)}

    def forward(self, stream: StreamName, data: bytes) -> None:
        """Take output of the session: pass on what the command prints, and count what the login prints before."""
        output = self._filters[stream]
        self._before += 0 if output.passed else len(data)
        if data := output.feed(data):
            self._sink(stream, data)
        elif self._before > MOST_OF_LOGIN and not output.passed:
            raise HostError(
                f"its login prints more than {MOST_OF_LOGIN >> 20} MB before it runs a command",
                "check what its startup files, such as ~/.bashrc, print",
            )

    @property
    def has_started(self) -> bool:
        """True once the login shell has begun to run the command."""
        return self._filters["stdout"].passed

    @property
    def deadline(self) -> Deadline:
        """The deadline that holds now: of the login shell, then of the command."""
        return self._deadline if self.has_started else self.start

    @cached_property
    def start(self) -> Deadline:
        """The deadline for the login shell to start the command."""
        if self._deadline.seconds is not None and not self._deadline.is_of_silence:
            return self._deadline
        return Deadline(limits.PATIENCE, self._deadline.cancel, is_of_silence=True)

    @property
    def session_id(self) -> int | None:
        """The command's session on the host, by which its processes are ended; None if it has not told it."""
        tag = self._filters["stdout"].tag
        return int(tag) if tag.isdigit() else None

    def timeout_error(self) -> TimedOut:
        """Return the error for the deadline that holds now."""
        if self.has_started:
            return timeout_error(self.deadline)
        return TimedOut(
            f"its login shell has not started the command within {self.deadline.seconds:g} s",
            "log in there to see what its startup files, such as ~/.bashrc, wait for",
            option="--timeout S sets another limit",
        )

    def end(self, code: int, signal: str | None = None) -> CommandEnd:
        """Return how the command ended. Raises a HostError if the login shell never ran it."""
        if self.has_started:
            return CommandEnd(code, signal)
        noise = self._filters["stderr"].noise or self._filters["stdout"].noise
        lines = noise.decode(errors="replace").strip().splitlines()
        raise HostError(
            f"the login shell never ran the command (exit code {code}"
            + (f"; its output: {lines[-1].strip()})" if lines else ")"),
            "check that the account has a shell, and that its startup files do not exit when there is no terminal",
        )


def copy_stdin(
    source: Readable,
    send: Callable[[bytes], None],
    end: Callable[[], None],
    errors: tuple[type[Exception], ...],
) -> None:
    """Feed stdin in a thread. If the command stops reading early, its exit code explains why."""

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
    deadline: Deadline | None = None,
    silence: float = STEP_SILENCE,
) -> CapturedOutput:
    """Run the command and return its output and its end, whatever its exit code."""
    output = OutputCollector()
    ended = session.run(command, output.sink, stdin=stdin, timeout=timeout, deadline=deadline, silence=silence)
    return CapturedOutput(ended, output.stdout, output.stderr)


def chunks_of(stream: Readable) -> Iterator[bytes]:
    """Yield the stream in pieces until its end."""
    return iter(lambda: stream.read(_STDIN_CHUNK), b"")


class ChunkStream:
    """Chunks as a stream. An error ends it early and is kept, because the host only sees the end."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self.error: Exception | None = None
        self.read_bytes = 0

    def read(self, size: int = -1) -> bytes:
        """Return the next chunk, whatever its size; empty at the end or after an error."""
        del size
        try:
            chunk = next(self._chunks, b"")
        except Exception as error:  # noqa: BLE001  # raised by the caller, in its own thread
            self.error = error
            return b""
        self.read_bytes += len(chunk)
        return chunk


class StdinQueue:
    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def send(self, line: bytes) -> None:
        """Add a line. May be called while another thread reads."""
        self._lines.put(line)

    def end(self) -> None:
        """Add the end."""
        self._lines.put(b"")

    def read(self, size: int = -1) -> bytes:
        """Return the next line, waiting for it; empty at the end."""
        del size
        return self._lines.get()


def describe_burden(text: str) -> str:
    """Return the answer of `BURDEN` as a clause; empty for a host that is not busy."""
    figures = _LOAD_LINE.match(text)
    if figures is None:
        return ""
    load, cores, memory = float(figures[1]), int(figures[2]), int(figures[3])
    programs: dict[str, str] = {}
    for state in "RD":
        rows = [row for row in _PROGRAMS.findall(text) if row[1] == state]
        if rows:
            programs[state] = ", ".join(
                f"{count} {printable(name)} of {printable(user)}" for count, _, user, name in rows
            )
    parts = []
    if load >= 2 * cores:
        computing = f" ({programs['R']} compute now)" if "R" in programs else ""
        parts.append(f"its load is {load:.0f} on {cores} core{'s' * (cores != 1)}{computing}")
    if memory < _LITTLE_MEMORY:
        parts.append(f"{memory} % of its memory is left")
    if "D" in programs:
        parts.append(f"{programs['D']} wait for a disk or file server")
    return ", ".join(parts)
