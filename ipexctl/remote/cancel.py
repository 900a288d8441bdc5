"""Cancel a call from one thread for many (`Cancel`), and limit the time of one step on one host (`Deadline`).

A thread that waits in `select` is woken by a callback (`Cancel.waking`). A wait inside a library that has no timeouts
is ended by closing its connection from another thread (`Deadline.closing`).
"""

from __future__ import annotations

import _thread
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from ipexctl import limits
from ipexctl.remote.outcome import Cancelled

RETRY_INTERVALS: Final = (0.5, 1.0, 2.0, 4.0, 8.0)
_SHORTEST_WAIT: Final = 0.05
"""Seconds between checks of a deadline; the time left of a paused one does not change."""
_LONGEST_WAIT: Final = 3600.0
"""Seconds between such checks if no deadline is near."""


class Cancel:
    """A cancellation for any number of threads. Once thrown, it stays so."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thrown = False
        self._wakers: list[Callable[[], None]] = []

    @property
    def thrown(self) -> bool:
        """True once `throw` was called."""
        return self._thrown

    def throw(self) -> None:
        """Cancel. May be called in a signal handler, whose thread may hold locks that callbacks need.

        So the callbacks run in another thread. That is not a `threading.Thread`, because starting one takes a lock.
        """
        self._thrown = True
        _thread.start_new_thread(self._wake_all, ())

    def _wake_all(self) -> None:
        with self._lock:  # held during the callbacks, so that no file descriptor they use is closed meanwhile
            for wake in self._wakers:
                with suppress(OSError):
                    wake()

    def sleep(self, seconds: float) -> None:
        """Wait. Raises a Cancelled as soon as the call is cancelled."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.thrown:
                raise Cancelled("stopped")
            time.sleep(0.05)

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """Call `wake` on cancellation within the block, or at once if already cancelled."""
        with self._lock:
            self._wakers.append(wake)
            if self.thrown:
                wake()
        try:
            yield
        finally:
            with self._lock:
                self._wakers.remove(wake)


cleanups: Final[list[str]] = []
"""What hosts are ending or removing after a cancellation, for the message to a user who waits."""


own_groups: Final[set[int]] = set()
"""Process groups on this machine that end with this process, though no thread is left to end them."""


def end_own_groups() -> None:
    """Kill the process groups in `own_groups`, because nobody else will."""
    for group in tuple(own_groups):
        with suppress(OSError):
            os.killpg(group, signal.SIGKILL)


@contextmanager
def cleaning(name: str) -> Iterator[None]:
    """List the name in `cleanups` during the block."""
    cleanups.append(name)
    try:
        yield
    finally:
        cleanups.remove(name)


class Deadline:
    """A time limit of one step on one host; it never expires if `seconds` is None.

    With `is_of_silence`, it limits only how long the host may be silent: any sign of work restarts it. It pauses while
    a person answers a question.
    """

    def __init__(self, seconds: float | None, cancel: Cancel | None = None, *, is_of_silence: bool = False) -> None:
        self.seconds = seconds
        self.before_answer = seconds
        """The limit, in seconds, before `answered` changed it."""
        self.is_of_silence = is_of_silence
        self.cancel = cancel or Cancel()
        self._lock = threading.Lock()
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._paused_at: float | None = None

    @property
    def cancelled(self) -> bool:
        """True if the call is cancelled, whatever time is left."""
        return self.cancel.thrown

    @property
    def over(self) -> bool:
        """True if no time is left; never without a limit."""
        left = self.left()
        return left is not None and left <= 0

    def left(self, maximum: float | None = None) -> float | None:
        """Return the seconds left, at most `maximum`; None for no limit."""
        with self._lock:
            if self._deadline is None:
                return maximum
            now = time.monotonic() if self._paused_at is None else self._paused_at
            left = max(0.0, self._deadline - now)
        return left if maximum is None else min(left, maximum)

    def restart(self) -> None:
        """Allow the whole time again, counted from now."""
        with self._lock:
            if self.seconds is not None:
                self._deadline = time.monotonic() + self.seconds

    def answered(self) -> None:
        """Note that the port has answered. From then on only silence counts: a busy machine is slow to log in."""
        with self._lock:
            self.seconds, self.is_of_silence = limits.PATIENCE, True
        self.restart()
        _clock.wake()

    def limit(self, seconds: float) -> None:
        """Let the deadline expire in this many seconds, if it would not expire earlier."""
        with self._lock:
            until = time.monotonic() + seconds
            if self._deadline is None or until < self._deadline:
                self.seconds, self._deadline = seconds, until
        _clock.wake()

    def is_of_host(self) -> bool:
        """Return True while the call waits for a host whose port has answered, and not for a person."""
        return self.is_of_silence and self._paused_at is None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock during the block, in which a person answers a question."""
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
        """Call `close` from another thread if the deadline passes or is cancelled during the block."""
        with self.cancel.waking(close):
            if self.seconds is None:
                yield
            else:
                with _clock.watching(self, close):
                    yield


class _Clock:
    """Closes connections whose deadline has passed. One thread for all, because starting one costs 0.15 ms per host."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._watched: list[tuple[Deadline, Callable[[], None]]] = []
        self._wakes_at = 0.0
        self._is_running = False

    @contextmanager
    def watching(self, deadline: Deadline, close: Callable[[], None]) -> Iterator[None]:
        """Call `close` once if the deadline passes during the block."""
        entry = (deadline, close)
        with self._changed:
            if not self._is_running:
                threading.Thread(target=self._run, name="clock", daemon=True).start()
                self._is_running = True
            elif time.monotonic() + (deadline.left() or 0) < self._wakes_at:
                self._changed.notify()
            self._watched.append(entry)
        try:
            yield
        finally:
            with self._changed:
                if entry in self._watched:
                    self._watched.remove(entry)

    def wake(self) -> None:
        """Check again, because a watched deadline may be earlier now."""
        with self._changed:
            self._changed.notify()

    def _run(self) -> None:
        """Close each connection whose deadline has passed, then sleep until the next deadline. Runs in the clock's
        thread for ever."""
        with self._changed:
            while True:
                for entry in [entry for entry in self._watched if entry[0].over]:
                    with suppress(RuntimeError):  # no thread can be started now: retry at the next check
                        threading.Thread(
                            target=entry[1], name="close", daemon=True
                        ).start()  # closing may wait for the peer
                        self._watched.remove(entry)
                # A deadline that was paused or restarted is still watched.
                left = min((deadline.left() or 0.0 for deadline, _ in self._watched), default=_LONGEST_WAIT)
                wait = min(max(left, _SHORTEST_WAIT), _LONGEST_WAIT)
                self._wakes_at = time.monotonic() + wait
                self._changed.wait(wait)


_clock: Final = _Clock()
