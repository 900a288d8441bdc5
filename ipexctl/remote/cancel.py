"""Cancellation: one thread requests it, many threads wait for it."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from ipexctl.remote.outcome import Cancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RETRY_INTERVALS: Final = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds before each attempt to open a lost connection again."""


class Cancel:
    """A cancellation flag. `throw` sets it for good; `waking` registers a callback for threads that block elsewhere."""

    def __init__(self) -> None:
        # Reentrant: a signal handler may call throw() in the thread that is registering a callback.
        self._lock = threading.RLock()
        self._thrown = threading.Event()
        self._wakers: list[Callable[[], None]] = []

    @property
    def thrown(self) -> bool:
        return self._thrown.is_set()

    def throw(self) -> None:
        self._thrown.set()
        with self._lock:  # held during the callbacks, so that no file descriptor they use is closed in between
            for wake in self._wakers:
                with suppress(OSError):
                    wake()

    def sleep(self, seconds: float) -> None:
        """Raises Cancelled when cancellation is requested."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.thrown:
                raise Cancelled("stopped")
            time.sleep(0.05)  # Event.wait could deadlock with a signal handler that calls throw()

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """Call `wake` when cancellation is requested within the block, or at once if it was requested before."""
        with self._lock:
            self._wakers.append(wake)
            if self.thrown:
                wake()
        try:
            yield
        finally:
            with self._lock:
                self._wakers.remove(wake)
