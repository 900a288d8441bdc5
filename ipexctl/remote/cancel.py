"""A switch that one thread throws and many wait on, each in its own way."""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Cancel:
    """Thrown once. Whoever is blocked in something else than this switch registers how to be woken."""

    def __init__(self) -> None:
        # Reentrant: a signal handler may throw the switch in the very thread that is registering.
        self._lock = threading.RLock()
        self._thrown = threading.Event()
        self._wakers: list[Callable[[], None]] = []

    @property
    def thrown(self) -> bool:
        return self._thrown.is_set()

    def throw(self) -> None:
        self._thrown.set()
        with self._lock:  # held while waking, so that nobody's file descriptor is closed in between
            for wake in self._wakers:
                with suppress(OSError):
                    wake()

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """While inside, `wake` is called when the switch is thrown; at once where it was already."""
        with self._lock:
            self._wakers.append(wake)
            if self.thrown:
                wake()
        try:
            yield
        finally:
            with self._lock:
                self._wakers.remove(wake)
