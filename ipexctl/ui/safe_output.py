"""Output that is safe for a terminal, and writes that a slow or closed reader can't block. Output of hosts is
neutralised for terminals; pipes and files get the raw bytes. If a writer thread's buffer is full, the hosts' output
waits, but signals do not. If a write fails, the call is cancelled.
"""

from __future__ import annotations

import io
import os
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Final, TextIO

from ipexctl.text import AS_ASCII, is_ascii_locale, neutralise
from ipexctl.ui.messages import paint, wants_color

if TYPE_CHECKING:
    from ipexctl.node.common.frames import StreamName
    from ipexctl.remote.cancel import Cancel

MOST: Final = 8 << 20
"""If it is full, `write` blocks, and so does the host's output."""
_POLL_SECONDS: Final = 0.1
_CANCELLED_PATIENCE: Final = 1.0
"""Seconds for a slow reader after cancellation."""


def for_terminal(data: bytes, stream: TextIO) -> bytes:
    if not stream.isatty():
        return data
    encoding = "utf-8" if stream.encoding in (None, "ascii") else stream.encoding
    return neutralise(data.decode(errors="replace")).encode(encoding, "replace")


class _TerminalText(io.TextIOWrapper):
    def write(self, text: str) -> int:
        return super().write(neutralise(text))


def guard_stdout() -> None:
    """Print only ASCII in the locale C, and neutralise text that goes to a terminal by `sys.stdout`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="ascii" if is_ascii_locale(os.environ) else None, errors=AS_ASCII)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.isatty():
        sys.stdout = _TerminalText(sys.stdout.buffer, sys.stdout.encoding, AS_ASCII, line_buffering=True)


class Pipe:
    """A stream with its own writer thread. An unscrolled pager stops the hosts' output, but not Ctrl-C: after
    cancellation, `write` drops what does not fit. If writing fails, it cancels, and `broken` is the error.
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
        data = for_terminal(data, self._stream)
        with self._cancel.waking(self._wake), self._changed:
            self._changed.wait_for(lambda: self._size < MOST or self.broken or self._cancel.thrown)
            if self.broken or self._size >= MOST:
                return
            self._waiting.append(data)
            self._size += len(data)
            self._changed.notify_all()

    def finish(self, timeout: float | None) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        if timeout is None:
            while self._writer.is_alive() and not self._cancel.thrown:
                self._writer.join(_POLL_SECONDS)
            timeout = _CANCELLED_PATIENCE
        self._writer.join(timeout)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _write_all(self) -> None:
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
    """stdout and stderr with prefixed lines. If one can't be written, the call is cancelled; `broken` is the error."""

    def __init__(self, cancel: Cancel, *, no_color: bool = False) -> None:
        self._cancel = cancel
        streams: dict[StreamName, TextIO] = {"stdout": sys.stdout, "stderr": sys.stderr}
        self._pipes = {name: Pipe(stream, cancel) for name, stream in streams.items()}
        self._tinted = {name: wants_color(stream, no_color=no_color) for name, stream in streams.items()}

    @property
    def broken(self) -> OSError | None:
        return self._pipes["stdout"].broken or self._pipes["stderr"].broken

    def write(self, stream: StreamName, lines: bytes) -> None:
        if lines:
            self._pipes[stream].write(lines)

    def prefix(self, stream: StreamName, label: str) -> bytes:
        text = paint(label, "36" if stream == "stdout" else "33", on=self._tinted[stream])
        return f"{text} ".encode()

    def close(self) -> None:
        """Wait until everything is written, but at most one second after a cancellation."""
        for pipe in self._pipes.values():
            pipe.finish(1.0 if self._cancel.thrown else None)
