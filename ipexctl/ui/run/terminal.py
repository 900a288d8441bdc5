"""The terminal of the live view: takes the screen, paints frames of rich Text, reads keys, restores the screen."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import threading
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from rich.text import Text

_ENTER: Final = b"\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
_LEAVE: Final = b"\x1b[?2026l\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
_BEGIN_FRAME: Final = b"\x1b[?2026h"
_END_FRAME: Final = b"\x1b[?2026l"
"""Synchronized output: terminals that support it show a frame at once, others ignore the sequences."""
_PIECE: Final = 1024
"""Bytes that a terminal reported as writable takes without blocking."""
_OWN_MODES: Final = termios.ECHO | termios.ICANON


class Terminal:
    """The terminal on stdout, and on stdin if that is one, too. One thread paints; any thread may call `leave`."""

    def __init__(self, *, no_color: bool = False) -> None:
        from rich.console import Console

        self._out = sys.stdout.fileno()
        self.keyboard: int | None = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._encoding = sys.stdout.encoding or "ascii"
        self._console = Console(file=sys.stdout, force_terminal=True, no_color=no_color or None, highlight=False)
        self._lock = threading.RLock()
        self._before: list[Any] | None = None
        self._entered = False
        self._must_leave = False
        self._shown: list[Hashable] = []
        self._size = (0, 0)
        self._pending = memoryview(b"")

    @property
    def unicode(self) -> bool:
        return self._encoding.lower().replace("-", "") == "utf8"

    @property
    def size(self) -> tuple[int, int]:
        with contextlib.suppress(OSError):
            width, height = os.get_terminal_size(self._out)
            if width and height:
                return width, height
        return 80, 24

    @property
    def in_foreground(self) -> bool:
        """True if this process is in the foreground: a background job must neither paint nor change modes."""
        try:
            return os.tcgetpgrp(self._out) == os.getpgrp()
        except OSError:  # not the controlling terminal, so no other job uses it
            return True

    @property
    def entered(self) -> bool:
        return self._entered

    @property
    def free(self) -> bool:
        """True if the last frame is written completely."""
        return not self._pending

    def enter(self) -> None:
        """Take the screen; call it again after another program used the screen."""
        with self._lock:
            if self.keyboard is not None:
                modes = termios.tcgetattr(self.keyboard)
                if not self._entered:
                    self._before = [*modes[:6], list(modes[6])]
                # Signals stay on: Ctrl-C and Ctrl-Z are handled by the caller. Ctrl-S is off: it would stop the frames.
                modes[0] &= ~termios.IXON
                modes[3] &= ~_OWN_MODES
                modes[6][termios.VMIN], modes[6][termios.VTIME] = 1, 0
                termios.tcsetattr(self.keyboard, termios.TCSANOW, modes)
            self._entered = True
            self._shown, self._size = [], (0, 0)
            self._pending = memoryview(_ENTER)

    def leave(self, patience: float | None = 0.5) -> None:
        """Restore the screen. If the terminal blocks, a later call with more patience restores it."""
        acquired = self._lock.acquire(timeout=0.5)
        try:
            if self._entered:
                self._entered, self._must_leave = False, True
                self._pending = memoryview(b"")
                self._restore_modes()
            with contextlib.suppress(OSError):
                if self._must_leave and select.select([], [self._out], [], patience)[1]:
                    self._must_leave = False
                    os.write(self._out, _LEAVE)
        finally:
            if acquired:
                self._lock.release()

    def _restore_modes(self) -> None:
        if self.keyboard is not None and self._before is not None:
            with contextlib.suppress(termios.error, OSError):
                termios.tcflush(self.keyboard, termios.TCIFLUSH)  # keys typed for the view must not reach the shell
                termios.tcsetattr(self.keyboard, termios.TCSANOW, self._before)

    def paint(self, lines: Sequence[Text], width: int, height: int) -> None:
        """Start to write the lines that changed since the last frame."""
        with self._lock:
            if not self._entered:
                return
            out: list[str] = []
            if self._size != (width, height):
                self._shown, self._size = [], (width, height)
                out.append("\x1b[0m\x1b[2J")
            keys: list[Hashable] = [(line.plain, str(line.style), tuple(line.spans)) for line in lines]
            for number, (line, key) in enumerate(zip(lines, keys, strict=True)):
                if number >= len(self._shown) or self._shown[number] != key:
                    out.append(f"\x1b[{number + 1};1H{self._escaped(line)}\x1b[0m")
                    out.append("\x1b[K" if line.cell_len < width else "")
            if len(lines) < len(self._shown):
                out.append(f"\x1b[{len(lines) + 1};1H\x1b[J")
            self._shown = keys
            frame = "".join(out).encode(self._encoding, "replace")
            self._pending = memoryview(bytes(self._pending) + _BEGIN_FRAME + frame + _END_FRAME)
            self._push()

    def wait(self, seconds: float, wake: int) -> bytes:
        """The bytes typed within `seconds`; meanwhile the rest of a frame is written. `wake` ends the wait."""
        readers = [wake] if self.keyboard is None or not self._entered else [wake, self.keyboard]
        readable, writable, _ = select.select(readers, [self._out] if self._pending else [], [], seconds)
        if writable:
            with self._lock:
                self._push()
        if self.keyboard is None or self.keyboard not in readable or not self.in_foreground:
            return b""
        data = os.read(self.keyboard, 1024)
        if not data:  # hung up
            self.keyboard = None
        return data

    def _push(self) -> None:
        while self._pending and select.select([], [self._out], [], 0)[1]:
            self._pending = self._pending[os.write(self._out, self._pending[:_PIECE]) :]

    def _escaped(self, line: Text) -> str:
        with self._console.capture() as captured:
            self._console.print(line, end="", soft_wrap=True, markup=False, emoji=False)
        return captured.get()
