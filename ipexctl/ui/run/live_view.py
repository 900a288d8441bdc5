"""The live view of a run: a thread that draws `RunState` five times a second and reads keys.

The terminal is restored however the view ends. Output waits in bounded memory; if that is full, the follower waits, but
never the run.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import threading
import time
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from rich.console import Console, RenderableType
from rich.control import Control
from rich.segment import Segment, Segments

from ipexctl.node.common.frames import Chunk
from ipexctl.node.common.records import RunStatus
from ipexctl.run.follow_run import RunUpdate
from ipexctl.run.ranks import EVERY_RANK, RankSet
from ipexctl.text import AS_ASCII
from ipexctl.ui.message_output import are_colors_off, fit_lines, print_message
from ipexctl.ui.run.end_of_run import end_lines
from ipexctl.ui.run.frame import Frame
from ipexctl.ui.run.state import Controls, RunState, read_keys

_TICK: Final = 0.1
"""Seconds between looks at events and keys."""
_FRAME: Final = 0.2
"""Seconds between frames."""
_MOST_WAITING: Final = 32 << 20
"""Bytes of output that may wait for the view; beyond that, the follower waits, but never the run."""
_LAST_LINES: Final = 8
"""Lines of output that are printed when the view closes."""
_LONGEST_LAST_LINE: Final = 500
"""Characters of one of these lines.

All that is printed at the end fits the buffer of a stuck terminal: 4 KiB and more.
"""


class LiveRun:
    """Shows a run until it ends or the user detaches. Leaving the context restores the terminal.

    `watch` takes chunks from one thread, notices from any. `on_stop` and `on_detach` are called from the view's thread,
    once per key. Enter the context in the main thread, for Ctrl-Z.
    """

    figures_interval: Final = 0.5
    drops_output: Final = False
    broken: Final = None
    """stdout is a terminal; if it is lost, SIGHUP comes."""

    def __init__(
        self,
        status: RunStatus,
        on_stop: Callable[[], None],
        on_detach: Callable[[], None],
        *,
        ranks: RankSet = EVERY_RANK,
        tag: str = "",
    ) -> None:
        self._terminal = Terminal()
        controls = Controls(ranks, keys=self._terminal.keyboard is not None)
        self.state = RunState(status, controls, tag)
        self.detached = False
        self._frame = Frame(self.state)
        self._on_stop = on_stop
        self._on_detach = on_detach
        self._events: deque[RunUpdate] = deque()
        self._bytes_received = self._bytes_processed = 0
        self._size = (0, 0)
        self._drained = threading.Event()
        self._closing = False
        self._suspended = False
        self._must_reenter = False
        self._error: BaseException | None = None
        self._wake, self._waker = os.pipe()
        self._thread = threading.Thread(target=self._show, name="live view", daemon=True)
        self._handlers: dict[int, Any] = {}
        self._offset = time.time() - time.monotonic()  # a clock change does not change elapsed times

    def __enter__(self) -> LiveRun:
        if threading.current_thread() is threading.main_thread():
            self._handlers = {
                signal.SIGTSTP: signal.signal(signal.SIGTSTP, self._suspend),
                signal.SIGCONT: signal.signal(signal.SIGCONT, self._resume),
            }
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self._closing = True
            os.write(self._waker, b"x")
            self._thread.join(2.0)
        finally:
            self._terminal.leave()
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            if not self._thread.is_alive():
                os.close(self._wake)
                os.close(self._waker)
                self._terminal.close()
        if kind is None and self._error is not None:
            raise self._error
        if kind is None:
            self._print_end()

    def watch(self, event: RunUpdate) -> None:
        """Take an update. Blocks while too much output waits. Raises the error of the view's thread."""
        if self._error is not None:
            raise self._error
        if not self._thread.is_alive():
            return
        self._events.append(event)
        if isinstance(event, Chunk):
            self._bytes_received += len(event.data)
            while self._bytes_received - self._bytes_processed > _MOST_WAITING and self._thread.is_alive():
                self._drained.clear()
                self._drained.wait(_TICK)

    def stopping(self) -> None:
        """Show that the run is being stopped. Safe in a signal handler; text that the handler wrote is painted over."""
        self.state.controls.stopping = True
        self._must_reenter = True

    def not_stopping(self) -> None:
        """Show that the run goes on."""
        self.state.controls.stopping = False
        self.state.changed = True

    def abandon(self) -> None:
        """Restore the terminal, for a signal handler that is about to end the process."""
        self._suspended = True
        self._terminal.leave(0.1)

    def finish(self, exit_code: int, status: RunStatus | None, reason: str = "", fix: str = "") -> None:
        """Do nothing: the end of the run was printed when the terminal was restored."""

    def _show(self) -> None:
        """Draw until the view closes. The view's thread."""
        try:
            self._loop()
        except OSError:  # the terminal is gone; its SIGHUP is handled elsewhere
            self._on_detach()
        except BaseException as error:  # noqa: BLE001  # carried to the caller's thread and raised there
            self._error = error
        finally:
            self._terminal.leave()

    def _loop(self) -> None:
        """Take updates, draw, and read keys, until the run ends or the view closes."""
        drawn = -1.0
        second = -1
        while True:
            self._process_events()
            now = time.monotonic()
            self.state.tick(now + self._offset)
            if self.state.ended is not None or self._closing:
                return
            if self._ready():
                must_redraw = self._terminal.size != self._size or int(now) != second
                if (self.state.changed or must_redraw) and now - drawn >= _FRAME and self._terminal.free:
                    self._size = width, height = self._terminal.size
                    self.state.changed = False
                    self._terminal.paint(self._frame.compose(width, height, now + self._offset), width, height)
                    drawn, second = now, int(now)
            for key in read_keys(self._terminal.wait(_TICK, self._wake)):
                self._handle_key(key)
                drawn = -1.0
            if self.detached:
                return

    def _ready(self) -> bool:
        """True if the view may draw: the process is in the foreground and has the screen."""
        if self._suspended or not self._terminal.in_foreground:
            return False
        if not self._terminal.entered or self._must_reenter:
            self._must_reenter = False
            self._terminal.enter()
            self.state.changed = True
        return True

    def _process_events(self) -> None:
        """Take the updates that have come."""
        processed = 0
        for _ in range(len(self._events)):
            event = self._events.popleft()
            if isinstance(event, Chunk):
                processed += len(event.data)
            self.state.feed(event)
        self._bytes_processed += processed
        self._drained.set()

    def _handle_key(self, key: str) -> None:
        """React to a key."""
        action = self.state.controls.press(key)
        self.state.changed = True
        if action == "stop":
            self._on_stop()
        elif action == "detach":
            self.detached = True
            self._on_detach()

    def _suspend(self, number: int, _: FrameType | None) -> None:
        """Leave the screen for Ctrl-Z, and stop the process."""
        self._suspended = True
        self._terminal.leave()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)  # the process stops here until SIGCONT
        signal.signal(number, self._suspend)
        self._suspended = False

    def _resume(self, *_: object) -> None:
        """Draw everything again after SIGCONT."""
        self._must_reenter = True

    def _print_end(self) -> None:
        """Print the last lines of output and the end of the run."""
        ended = self.state.ended
        if ended is not None:
            for line in self.state.last_lines(_LAST_LINES):
                print_message(line[:_LONGEST_LAST_LINE])
            print_message(*fit_lines(end_lines(ended.status or self.state.status, ended.exit_code)))


_ENTER: Final = b"\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
_LEAVE: Final = b"\x1b[?2026l\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
_BEGIN_FRAME: Final = b"\x1b[?2026h"
_END_FRAME: Final = b"\x1b[?2026l"
"""Synchronized output: supporting terminals show a frame at once, others ignore it."""
_PIECE: Final = 256
"""Bytes of one write. If the descriptor can block, a writable terminal mostly has this much room."""
_OWN_MODES: Final = termios.ECHO | termios.ICANON


class Terminal:
    """The screen: stdout, and the keyboard if stdin is a terminal.

    One thread paints; any thread may call `leave`. No write waits for the terminal. rich's own `Live` writes with its
    lock held, so a stuck terminal would block its `stop`.
    """

    def __init__(self) -> None:
        self._out = _non_blocking(sys.stdout.fileno())
        self.keyboard: int | None = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        """Descriptor of the keyboard; None without one."""
        self._console = Console(
            file=sys.stdout, force_terminal=True, no_color=are_colors_off() or None, highlight=False
        )
        self._lock = threading.RLock()
        self._before: list[Any] | None = None
        """Modes of the terminal before the view; None before it is entered."""
        self.entered = False
        """True while the view has the screen."""
        self._shown: list[list[Segment]] = []
        self._size = (0, 0)
        self._pending = memoryview(b"")
        """What the terminal has not taken yet."""

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows."""
        with contextlib.suppress(OSError):
            width, height = os.get_terminal_size(self._out)
            if width and height:
                return width, height
        return 80, 24

    @property
    def in_foreground(self) -> bool:
        """True if the terminal belongs to this process, not to another job of the shell."""
        try:
            return os.tcgetpgrp(self._out) == os.getpgrp()
        except OSError:  # not the controlling terminal, so no other job uses it
            return True

    @property
    def free(self) -> bool:
        """True if the terminal has taken the last frame."""
        return not self._pending

    def enter(self) -> None:
        """Take the screen, also after another program used it."""
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

    def leave(self, timeout: float = 0.5) -> None:
        """Restore the screen. Output that the terminal has not taken after `timeout` seconds is dropped."""
        acquired = self._lock.acquire(timeout=0.5)
        try:
            if not self.entered:
                return
            self.entered, self._pending = False, memoryview(b"")
            self._restore_modes()
            with contextlib.suppress(OSError, termios.error):
                if not self._is_writable(timeout):
                    termios.tcflush(self._out, termios.TCOFLUSH)
                if self._is_writable(0):
                    os.write(self._out, _LEAVE)
        finally:
            if acquired:
                self._lock.release()

    def _restore_modes(self) -> None:
        """Turn echo on again, and drop keys that were typed for the view."""
        if self.keyboard is not None and self._before is not None:
            with contextlib.suppress(termios.error, OSError):
                termios.tcflush(self.keyboard, termios.TCIFLUSH)  # keys typed for the view must not reach the shell
                termios.tcsetattr(self.keyboard, termios.TCSANOW, self._before)

    def paint(self, renderable: RenderableType, width: int, height: int) -> None:
        """Write the lines that have changed since the last frame."""
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
        """Return the bytes typed within `seconds`; meanwhile, write the rest of a frame.

        `wake`: a descriptor that ends the wait.
        """
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
        """Write as much of the frame as the terminal takes."""
        with contextlib.suppress(BlockingIOError):
            while self._pending and self._is_writable(0):
                self._pending = self._pending[os.write(self._out, self._pending[:_PIECE]) :]

    def close(self) -> None:
        """Close the descriptor."""
        if self._out != sys.stdout.fileno():
            os.close(self._out)

    def _is_writable(self, timeout: float) -> bool:
        """True if the terminal takes bytes within `timeout` seconds."""
        return bool(select.select([], [self._out], [], timeout)[1])


def _non_blocking(descriptor: int) -> int:
    """Return a non-blocking descriptor of the same terminal. `descriptor` itself is shared with other processes."""
    try:
        return os.open(os.ttyname(descriptor), os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:  # the terminal belongs to another account: after `su`, for example
        return descriptor
