"""Cancellation: one thread requests it, many threads wait for it."""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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
