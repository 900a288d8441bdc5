"""The time limit and the cancellation of one step on one host."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ipexctl.remote.cancel import Cancel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Deadline:
    """Starts when it is created. Without `seconds` it never expires, without `cancel` it can't be cancelled."""

    def __init__(self, seconds: float | None, cancel: Cancel | None = None) -> None:
        self.seconds = seconds
        self.cancel = cancel or Cancel()
        self._lock = threading.Lock()
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._paused_at: float | None = None

    @property
    def cancelled(self) -> bool:
        return self.cancel.thrown

    @property
    def over(self) -> bool:
        left = self.left()
        return left is not None and left <= 0

    def left(self, most: float | None = None) -> float | None:
        """Seconds until the deadline, at most `most`; None if there is neither."""
        with self._lock:
            if self._deadline is None:
                return most
            now = time.monotonic() if self._paused_at is None else self._paused_at
            left = max(0.0, self._deadline - now)
        return left if most is None else min(left, most)

    def restart(self) -> None:
        """Set the full time again."""
        with self._lock:
            if self.seconds is not None:
                self._deadline = time.monotonic() + self.seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the time within the block, while the user types a passphrase."""
        with self._lock:
            self._paused_at = started = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._paused_at = None
                if self._deadline is not None:
                    self._deadline += time.monotonic() - started

    @contextmanager
    def closing(self, close: Callable[[], None]) -> Iterator[None]:
        """Call `close` from another thread if the deadline passes or is cancelled within the block.

        It ends a wait inside a library that knows neither: the library's connection is closed.
        """
        done = threading.Event()

        def watch() -> None:
            while not done.wait(self.left()):
                if self.over:
                    close()
                    return

        if self.seconds is not None:
            threading.Thread(target=watch, name="clock", daemon=True).start()
        try:
            with self.cancel.waking(close):
                yield
        finally:
            done.set()
