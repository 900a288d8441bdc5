"""The live view's terminal: takes the screen, paints rich renderables, reads keys, restores the screen.

No write waits for the terminal, and a stuck terminal can still be left; modes and screen are restored; a background job
neither paints nor reads. Not `rich.live.Live`: it writes with its lock held, so a stuck terminal blocks its `stop`.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import threading
from typing import Any, Final

from rich.console import Console, RenderableType
from rich.control import Control
from rich.segment import Segment, Segments

from ipexctl.text import AS_ASCII

_ENTER: Final = b"\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
_LEAVE: Final = b"\x1b[?2026l\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
_BEGIN_FRAME: Final = b"\x1b[?2026h"
_END_FRAME: Final = b"\x1b[?2026l"
"""Synchronized output: supporting terminals show a frame at once, others ignore it."""
_PIECE: Final = 256
"""Bytes of one write. If the descriptor can block, a writable terminal mostly has this much room."""
_OWN_MODES: Final = termios.ECHO | termios.ICANON


class Terminal:
    """On stdout, and on stdin if that is one too. One thread paints; any thread may call `leave`."""

    def __init__(self, *, no_color: bool = False) -> None:
        self._out = _non_blocking(sys.stdout.fileno())
        self.keyboard: int | None = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._console = Console(file=sys.stdout, force_terminal=True, no_color=no_color or None, highlight=False)
        self._lock = threading.RLock()
        self._before: list[Any] | None = None
        self.entered = False
        self._shown: list[list[Segment]] = []
        self._size = (0, 0)
        self._pending = memoryview(b"")

    @property
    def size(self) -> tuple[int, int]:
        with contextlib.suppress(OSError):
            width, height = os.get_terminal_size(self._out)
            if width and height:
                return width, height
        return 80, 24

    @property
    def in_foreground(self) -> bool:
        """False for a background job, which must neither paint nor change modes."""
        try:
            return os.tcgetpgrp(self._out) == os.getpgrp()
        except OSError:  # not the controlling terminal, so no other job uses it
            return True

    @property
    def free(self) -> bool:
        return not self._pending

    def enter(self) -> None:
        """Take the screen; again after another program used it."""
        with self._lock:
            if self.keyboard is not None:
                modes = termios.tcgetattr(self.keyboard)
                if not self.entered:
                    self._before = [*modes[:6], list(modes[6])]
                # Signals stay on: Ctrl-C and Ctrl-Z are handled by the caller. Ctrl-S is off: it would stop the frames.
                modes[0] &= ~termios.IXON
                modes[3] &= ~_OWN_MODES
                modes[6][termios.VMIN], modes[6][termios.VTIME] = 1, 0
                termios.tcsetattr(self.keyboard, termios.TCSANOW, modes)
            self.entered = True
            self._shown, self._size = [], (0, 0)
            self._pending = memoryview(_ENTER)

    def leave(self, patience: float = 0.5) -> None:
        """Restore the screen; drops output not taken after `patience` seconds, to make room for what follows."""
        acquired = self._lock.acquire(timeout=0.5)
        try:
            if not self.entered:
                return
            self.entered, self._pending = False, memoryview(b"")
            self._restore_modes()
            with contextlib.suppress(OSError, termios.error):
                if not self._is_writable(patience):
                    termios.tcflush(self._out, termios.TCOFLUSH)
                if self._is_writable(0):
                    os.write(self._out, _LEAVE)
        finally:
            if acquired:
                self._lock.release()

    def _restore_modes(self) -> None:
        if self.keyboard is not None and self._before is not None:
            with contextlib.suppress(termios.error, OSError):
                termios.tcflush(self.keyboard, termios.TCIFLUSH)  # keys typed for the view must not reach the shell
                termios.tcsetattr(self.keyboard, termios.TCSANOW, self._before)

    def paint(self, renderable: RenderableType, width: int, height: int) -> None:
        lines = self._console.render_lines(renderable, self._console.options.update_dimensions(width, height))
        with self._lock:
            if not self.entered:
                return
            changes: list[Segment] = []
            if self._size != (width, height):
                self._shown, self._size = [], (width, height)
                changes.append(Control.clear().segment)
            for number, line in enumerate(lines):
                if number >= len(self._shown) or self._shown[number] != line:
                    changes += [Control.move_to(0, number).segment, *line]
            self._shown = lines
            with self._console.capture() as captured:
                self._console.print(Segments(changes), end="", crop=False, soft_wrap=True)
            frame = captured.get().encode(self._console.encoding, AS_ASCII)
            self._pending = memoryview(bytes(self._pending) + _BEGIN_FRAME + frame + _END_FRAME)
            self._push()

    def wait(self, seconds: float, wake: int) -> bytes:
        """Bytes typed within `seconds`; meanwhile writes the rest of a frame. `wake` ends the wait."""
        readers = [wake] if self.keyboard is None or not self.entered else [wake, self.keyboard]
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
        with contextlib.suppress(BlockingIOError):
            while self._pending and self._is_writable(0):
                self._pending = self._pending[os.write(self._out, self._pending[:_PIECE]) :]

    def close(self) -> None:
        if self._out != sys.stdout.fileno():
            os.close(self._out)

    def _is_writable(self, patience: float) -> bool:
        return bool(select.select([], [self._out], [], patience)[1])


def _non_blocking(descriptor: int) -> int:
    """A non-blocking descriptor of the same terminal; `descriptor` is shared with other processes."""
    try:
        return os.open(os.ttyname(descriptor), os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:  # the terminal belongs to another account: after `su`, for example
        return descriptor
