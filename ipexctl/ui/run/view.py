"""The live view of a run: a thread that draws `RunState` five times a second and reads keys; a `RunView`.

The terminal is restored however the view ends, also by Ctrl-Z, an exception or a second Ctrl-C. Output waits in bounded
memory, then the follower waits, but never the run. Keys are answered at once.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from ipexctl.node.common.frames import Chunk
from ipexctl.run.ranks import EVERY_RANK, RankSet
from ipexctl.ui.messages import fitted, print_message
from ipexctl.ui.run.frame import Frame
from ipexctl.ui.run.keys import Controls, read_keys
from ipexctl.ui.run.state import RunState
from ipexctl.ui.run.summary import end_lines, left_text
from ipexctl.ui.run.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from ipexctl.node.common.records import RunStatus
    from ipexctl.run.follow import RunUpdate

_TICK: Final = 0.1
_FRAME: Final = 0.2
"""Seconds between frames. A key is answered at once."""
_MOST_WAITING: Final = 32 << 20
"""Bytes of output that may wait for the view; beyond that, the follower waits, but never the run."""
_LAST_LINES: Final = 8
_LONGEST_LAST_LINE: Final = 500
"""Characters. All that is printed at the end fits a stuck terminal's buffer: 4 KiB and more."""


class LiveRun:
    """Shows a run until it ends or the user detaches; leaving the context restores the terminal.

    `watch` takes chunks from one thread, notices from any. `on_stop` and `on_detach` are called from the view's thread,
    once per key; after a detach nothing more is shown. Enter it in the main thread, for Ctrl-Z.
    """

    figures_interval: Final = 0.5
    drops_output: Final = False
    broken: Final = None
    """A lost terminal sends SIGHUP."""

    def __init__(
        self,
        status: RunStatus,
        on_stop: Callable[[], None],
        on_detach: Callable[[], None],
        *,
        ranks: RankSet = EVERY_RANK,
        no_color: bool = False,
    ) -> None:
        self._terminal = Terminal(no_color=no_color)
        controls = Controls(ranks, keys=self._terminal.keyboard is not None)
        self.state = RunState(status, controls)
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
        """Safe in a signal handler; text that the handler wrote is painted over."""
        self.state.controls.stopping = True
        self._must_reenter = True

    def not_stopping(self) -> None:
        self.state.controls.stopping = False
        self.state.changed = True

    def abandon(self) -> None:
        """Restore the terminal, for a signal handler that is about to end the process."""
        self._suspended = True
        self._terminal.leave(0.1)

    def finish(self, exit_code: int, status: RunStatus | None, reason: str = "", fix: str = "") -> None:
        """The end was printed when the screen was restored."""

    def _show(self) -> None:
        try:
            self._loop()
        except OSError:  # the terminal is gone; its SIGHUP is handled elsewhere
            self._on_detach()
        except BaseException as error:  # noqa: BLE001  # carried to the caller's thread and raised there
            self._error = error
        finally:
            self._terminal.leave()

    def _loop(self) -> None:
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
        if self._suspended or not self._terminal.in_foreground:
            return False
        if not self._terminal.entered or self._must_reenter:
            self._must_reenter = False
            self._terminal.enter()
            self.state.changed = True
        return True

    def _process_events(self) -> None:
        processed = 0
        for _ in range(len(self._events)):
            event = self._events.popleft()
            if isinstance(event, Chunk):
                processed += len(event.data)
            self.state.feed(event)
        self._bytes_processed += processed
        self._drained.set()

    def _handle_key(self, key: str) -> None:
        action = self.state.controls.press(key)
        self.state.changed = True
        if action == "stop":
            self._on_stop()
        elif action == "detach":
            self.detached = True
            self._on_detach()

    def _suspend(self, number: int, _: FrameType | None) -> None:
        self._suspended = True
        self._terminal.leave()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)  # the process stops here until SIGCONT
        signal.signal(number, self._suspend)
        self._suspended = False

    def _resume(self, *_: object) -> None:
        self._must_reenter = True

    def _print_end(self) -> None:
        ended = self.state.ended
        if ended is not None:
            for line in self.state.last_lines(_LAST_LINES):
                print_message(line[:_LONGEST_LAST_LINE])
            print_message(fitted(end_lines(ended.status or self.state.status, ended.exit_code)))
        elif self.detached:
            print_message(left_text(self.state.status.id))
