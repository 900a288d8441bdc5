"""Write output that is safe for a terminal, in a way that a slow or closed reader cannot block.

Output of hosts is neutralised for terminals; pipes and files get the raw bytes. If the buffer of a writer thread is
full, the hosts' output waits, but signals do not. If a write fails, the call is cancelled. A progress bar rewrites its
line with `\\r`; only its last state counts as the line.
"""

from __future__ import annotations

import io
import os
import re
import sys
import threading
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, TextIO

from ipexctl.node.common.frames import last_state
from ipexctl.text import AS_ASCII, is_ascii_locale, neutralise, printable, safe_lines
from ipexctl.ui.message_output import paint, wants_color

if TYPE_CHECKING:
    from ipexctl.node.common.frames import StreamName
    from ipexctl.remote.cancel import Cancel


MOST: Final = 8 << 20
"""Bytes that wait for the writer. If they are reached, `write` blocks, and so does the host's output."""
_POLL_SECONDS: Final = 0.1
"""Seconds between looks at a cancellation."""
_CANCELLED_PATIENCE: Final = 1.0
"""Seconds for a slow reader after a cancellation."""


def for_terminal(data: bytes, stream: TextIO) -> bytes:
    """Return the bytes, neutralised if the stream is a terminal."""
    if not stream.isatty():
        return data
    encoding = "utf-8" if stream.encoding in (None, "ascii") else stream.encoding
    return neutralise(data.decode(errors="replace")).encode(encoding, "replace")


class _TerminalText(io.TextIOWrapper):
    """A text stream that neutralises what is written."""

    def write(self, text: str) -> int:
        """Write the neutralised text."""
        return super().write(neutralise(text))


def guard_stdout() -> None:
    """Print only ASCII in the locale C, and neutralise what `sys.stdout` writes to a terminal."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="ascii" if is_ascii_locale(os.environ) else None, errors=AS_ASCII)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.isatty():
        sys.stdout = _TerminalText(sys.stdout.buffer, sys.stdout.encoding, AS_ASCII, line_buffering=True)


def print_document(text: str) -> None:
    """Print a script or JSON as it is; `guard_stdout` makes it safe for a terminal."""
    sys.stdout.write(text)
    sys.stdout.flush()  # later lines on stderr must not appear before it


class Pipe:
    """A stream with its own writer thread.

    A pager that is not scrolled stops the hosts' output, but not Ctrl-C: after a cancellation, `write` drops what does
    not fit. If writing fails, the call is cancelled, and `broken` is the error.
    """

    def __init__(self, stream: TextIO, cancel: Cancel) -> None:
        self.broken: OSError | None = None
        self._stream = stream
        self._cancel = cancel
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._ended = False
        self._writer = threading.Thread(target=self._write_all, name="output", daemon=True)
        self._writer.start()

    def write(self, data: bytes) -> None:
        """Hand over data to the writer. Blocks while too much waits, unless the call is cancelled."""
        data = for_terminal(data, self._stream)
        with self._cancel.waking(self._wake), self._changed:
            self._changed.wait_for(lambda: self._size < MOST or self.broken or self._cancel.thrown)
            if self.broken or self._size >= MOST:
                return
            self._waiting.append(data)
            self._size += len(data)
            self._changed.notify_all()

    def write_lines(self, lines: Iterable[str]) -> None:
        """Write text of ipexctl between the output of hosts. It is neutralised in a pipe too."""
        text = safe_lines(lines, colors=wants_color(self._stream))
        self.write(text.encode(self._stream.encoding, AS_ASCII))

    def finish(self) -> None:
        """Wait until everything is written, but at most one second after a cancellation."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        while self._writer.is_alive() and not self._cancel.thrown:
            self._writer.join(_POLL_SECONDS)
        self._writer.join(_CANCELLED_PATIENCE)

    def _wake(self) -> None:
        """Let waiting threads look again."""
        with self._changed:
            self._changed.notify_all()

    def _write_all(self) -> None:
        """Write what waits, until `finish`. The writer thread."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ended)
                if not self._waiting:
                    return
                data = b"".join(self._waiting)
                self._waiting.clear()
            try:
                # Not through Python's buffer: a write that blocks there would block the interpreter's exit, too.
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(self._stream.fileno(), rest) :]
            except OSError as error:
                self.broken = error
                self._cancel.throw()
            with self._changed:
                self._size -= len(data)
                self._changed.notify_all()
            if self.broken:
                return


class OutputPipes:
    """stdout and stderr with prefixed lines.

    If one cannot be written, the call is cancelled, and `broken` is the error.
    """

    def __init__(self, cancel: Cancel) -> None:
        self._cancel = cancel
        streams: dict[StreamName, TextIO] = {"stdout": sys.stdout, "stderr": sys.stderr}
        self._pipes = {name: Pipe(stream, cancel) for name, stream in streams.items()}
        self._tinted = {name: wants_color(stream) for name, stream in streams.items()}

    @property
    def broken(self) -> OSError | None:
        """The error of the first stream that could not be written; None without one."""
        return self._pipes["stdout"].broken or self._pipes["stderr"].broken

    def write(self, stream: StreamName, lines: bytes) -> None:
        """Write complete lines to a stream."""
        if lines:
            self._pipes[stream].write(lines)

    def print(self, *lines: str) -> None:
        """Print lines through the same pipe as the stderr of hosts. A direct write could end up inside a line."""
        self._pipes["stderr"].write_lines(lines)

    def prefix(self, stream: StreamName, label: str) -> bytes:
        """Return what is put in front of a line, in the color of its stream."""
        text = paint(printable(label), "36" if stream == "stdout" else "33", on=self._tinted[stream])
        return f"{text} ".encode()

    def close(self) -> None:
        """Wait until everything is written."""
        for pipe in self._pipes.values():
            pipe.finish()


LONGEST_LINE: Final = 1 << 20
"""Bytes of a line. Longer lines are passed on in pieces, to bound memory."""
_VIEWED: Final = 128 << 10
"""Bytes of one stream that wait for the live view; older ones would have scrolled off."""
_LONGEST_VIEWED: Final = 16 << 10
"""Bytes of a line that the live view gets."""
_LOSS: Final = re.compile(rb"(?i)loss")
_SAMPLES: Final = 16
"""Dropped lines with a loss that are kept at a time."""


class PrefixedLines:
    """Puts a prefix in front of complete lines.

    `keep_states`: pass on every state of a line that is rewritten by `\\r`, not only the last.
    """

    def __init__(self, prefix: bytes, longest: int = LONGEST_LINE, *, keep_states: bool = False) -> None:
        self.prefix = prefix
        """It may be changed before `feed`, for the lines that end there."""
        self._keep_states = keep_states
        self._longest = longest
        self._buffered: list[bytes] = []
        self._size = 0
        self._is_partly_shown = False  # pieces of the buffered line are already shown
        self._is_bar = False  # the buffered line was rewritten with \r

    def feed(self, data: bytes) -> bytes:
        """Return the lines that the data completes, with prefixes; the rest is kept."""
        has_states = not self._keep_states and (self._is_bar or b"\r" in data)
        if self._size + len(data) <= self._longest and not has_states:
            cut = data.rfind(b"\n") + 1
            if not cut:
                self._buffered.append(data)
                self._size += len(data)
                return b""
            complete = b"".join([*self._buffered, data[: cut - 1]])
            self._buffer(data[cut:])
            self._is_partly_shown = False
            return self.prefix + complete.replace(b"\n", b"\n" + self.prefix) + b"\n"
        return self._feed_slowly(data)

    @property
    def unfinished(self) -> bytes:
        """The last state of the line that is not complete yet."""
        return last_state(b"".join(self._buffered)[-_LONGEST_VIEWED:])

    def flush(self) -> bytes:
        """Return the line that is not complete yet, with its prefix; empty if there is none."""
        line = b"".join(self._buffered)
        out: list[bytes] = []
        state = self._without_returns(line)
        if state and not (self._is_bar and state.isspace()):  # a progress bar that erased itself is not shown
            self._show(self._rewritten(state, out), out)
        self._buffer(b"")
        self._is_partly_shown = self._is_bar = False
        return b"".join(out)

    def _feed_slowly(self, data: bytes) -> bytes:
        """As `feed`, for data with rewritten or very long lines."""
        out: list[bytes] = []
        *lines, rest = b"".join([*self._buffered, data]).split(b"\n")
        for line in lines:
            state = self._rewritten(self._without_returns(line), out)
            if state or not self._is_partly_shown:
                self._show(state, out)
            self._is_partly_shown = self._is_bar = False
        bare = self._without_returns(rest)
        state = self._rewritten(bare, out)
        while len(state) > self._longest:
            out.append(self.prefix + state[: self._longest] + b"\n")
            state, self._is_partly_shown = state[self._longest :], True
        self._is_bar = self._is_bar or len(bare) < len(rest)
        self._buffer(state + b"\r" if len(bare) < len(rest) else state)
        return b"".join(out)

    def _without_returns(self, line: bytes) -> bytes:
        """Return the line without `\\r` at its end, unless all states are kept."""
        return line if self._keep_states else line.rstrip(b"\r")

    def _rewritten(self, line: bytes, out: list[bytes]) -> bytes:
        """Return the last state of a line. A state that is too long to buffer is shown completely."""
        if self._keep_states or b"\r" not in line:
            return line
        self._is_bar = True
        *states, last = line.split(b"\r")
        for state in states:
            if self._is_partly_shown or len(state) > self._longest:
                self._show(state, out)
            self._is_partly_shown = False
        return last

    def _show(self, line: bytes, out: list[bytes]) -> None:
        """Add a line to `out`, in pieces if it is too long."""
        starts = range(0, len(line) or 1, self._longest)
        out.extend(self.prefix + line[start : start + self._longest] + b"\n" for start in starts)

    def _buffer(self, rest: bytes) -> None:
        """Keep the beginning of a line."""
        self._buffered, self._size = ([rest], len(rest)) if rest else ([], 0)


class NewestLines:
    """The newest lines of one stream for the live view, in bounded memory. Older ones are counted and dropped."""

    def __init__(self) -> None:
        self.lines = 0
        """Number of all lines so far."""
        self.samples: list[tuple[bytes, int]] = []
        """Samples of dropped lines with a loss, and how many lines each stands for. Cleared by the reader."""
        self._pieces: list[bytes] = []
        self._size = 0
        self._taken = 0
        self.is_bar = False
        """True if the unfinished line is a progress bar, rewritten in place."""

    def feed(self, data: bytes) -> None:
        """Add data; drop the oldest lines if too much waits."""
        self.lines += data.count(b"\n")
        self._pieces.append(data)
        self._size += len(data)
        if self._size > 2 * _VIEWED:
            buffered = b"".join(self._pieces)
            cut = buffered.rfind(b"\n", 0, len(buffered) - _VIEWED) + 1 or len(buffered) - _VIEWED
            self._sample(buffered[:cut])
            self._pieces, self._size = [buffered[cut:]], len(buffered) - cut

    def take(self, limit: int) -> tuple[list[bytes], int, bytes]:
        """Return up to `limit` complete lines since the last call, the number of dropped ones, and the unfinished
        line.
        """
        parts = b"".join(self._pieces).rsplit(b"\n", limit + 1)
        unfinished = parts.pop()
        if len(parts) > limit:
            self._sample(parts[0])
        rest = last_state(unfinished)[-_LONGEST_VIEWED:]
        self.is_bar = b"\r" in unfinished or (self.is_bar and not parts)
        buffered = rest + b"\r" if unfinished.endswith(b"\r") else rest
        self._pieces, self._size = ([buffered], len(buffered)) if buffered else ([], 0)
        fresh, self._taken = self.lines - self._taken, self.lines
        lines = parts[max(0, len(parts) - min(limit, fresh)) :]
        return [last_state(line)[:_LONGEST_VIEWED] for line in lines], fresh - len(lines), rest

    def _sample(self, dropped: bytes) -> None:
        """Keep some dropped lines with a loss.

        A late reader, such as `attach`, drops most lines, and a curve needs some of all of them.
        """
        positions = [match.start() for match in _LOSS.finditer(dropped)]
        step = len(positions) // _SAMPLES + 1
        for position in positions[::step]:
            begin, end = dropped.rfind(b"\n", 0, position) + 1, dropped.find(b"\n", position)
            line = dropped[begin : end if end >= 0 else None]
            self.samples.append((last_state(line)[:_LONGEST_VIEWED], step))
