"""How long one step may take on one host, and the switch that ends it early: whatever waits, waits by a Clock."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ipexctl.remote.cancel import Cancel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Deadline:
    """Runs from when it is made. Without `seconds` it never runs out, without `cancel` nobody can stop it."""

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
        """Seconds until the end, `most` at most; None where there is neither."""
        with self._lock:
            if self._deadline is None:
                return most
            now = time.monotonic() if self._paused_at is None else self._paused_at
            left = max(0.0, self._deadline - now)
        return left if most is None else min(left, most)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While inside, no time passes: somebody is being asked for a passphrase."""
        with self._lock:
            self._paused_at = began = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._paused_at = None
                if self._deadline is not None:
                    self._deadline += time.monotonic() - began

    @contextmanager
    def closing(self, close: Callable[[], None]) -> Iterator[None]:
        """Call `close` from another thread when the time is up or the switch is thrown, unless left before.

        It is how a wait inside a library that knows neither is ended: its connection is closed under it.
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
