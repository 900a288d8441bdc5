"""Wait for other ranks of the host: a short spin, then a futex that sleeps at most a second at a time. If the other
rank has exited, or the process group's timeout is over, raise a RuntimeError with gloo's words."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Callable, NamedTuple, Sequence

from .segment import COUNTERS
from .tcp_store import NAME

if TYPE_CHECKING:
    from .segment import Segment

MASK, HALF = 0xFFFFFFFF, 0x80000000
SPINS = 600
"""Readings of a counter before a rank sleeps: about 40 µs, which is how long waking up takes."""
SLEEP = 1.0
slept = [0]
"""Nanoseconds slept by this process's main thread, for the step meter."""


class Peer(NamedTuple):
    """A rank of this host: number, pid, and start time, because the pid may be reused."""

    rank: int
    pid: int
    started: int


def read_state(pid: int) -> tuple[str, int]:
    """Return the state of a process, such as `S`, and its start time. The state is empty if the process is gone, or
    only keeps its store for other ranks."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            name, _, rest = file.read().rpartition(b")")
        fields = rest.split()
        # A rank that only keeps its store takes no part any more.
        return "" if name.endswith(b"(" + NAME) else fields[0].decode(), int(fields[19])
    except (OSError, IndexError, ValueError):
        return "", 0


def is_alive(peer: Peer) -> bool:
    """True if the rank's process runs, and is not another one with the same pid."""
    state, started = read_state(peer.pid)
    return started == peer.started and state not in ("", "Z", "X")


def awaited_key(place: int, counter: int) -> int:
    """Return the number of a rank's counter, as AWAITED has it."""
    return (place + 1) << 8 | counter


class Waiter:
    """Waits for the counters of the other ranks of a host, and raises this rank's own."""

    def __init__(
        self, own: Segment, segments: Sequence[Segment], peers: Sequence[Peer], timeout: Callable[[], float]
    ) -> None:
        self._timeout = timeout
        self.spins = SPINS
        self.own, self._segments, self._peers = own, segments, peers
        self._barrier = threading.Lock()
        place = segments.index(own)
        self._keys = [awaited_key(place, counter) for counter in range(len(COUNTERS))]
        self._counters = list(zip(*(segment.counters for segment in segments)))

    def count_up(self, counter: int, number: int) -> None:
        """Set a counter of this rank, and wake the ranks that wait for this number."""
        self.own.counters[counter][0] = number
        with self._barrier:  # the lock's atomic instruction orders the store before the loads, as in the waiting rank
            pass
        for segment in self._segments:
            awaited = segment.awaited[0]
            if awaited and awaited >> 32 == self._keys[counter] and (number - awaited) & MASK < HALF:
                self.own.wake(counter)
                return

    def have_reached(self, counter: int, target: int) -> bool:
        """True if the counters of all ranks have reached the target. Counters begin anew after 32 bits."""
        return all((word[0] - target) & MASK < HALF for word in self._counters[counter])

    def has_reached(self, number: int, counter: int, target: int) -> bool:
        """True if the counter of one rank has reached the target. `number`: its place on the host."""
        return bool((self._counters[counter][number][0] - target) & MASK < HALF)

    def wait_for_all(self, counter: int, target: int, limit: float = 0.0) -> None:
        """Wait until the counters of all ranks have reached the target. `limit`: as of `wait_for`."""
        self.wait_for(range(len(self._segments)), counter, target, limit)

    def wait_for(self, numbers: Sequence[int], counter: int, target: int, limit: float = 0.0) -> None:
        """Wait until the counters of these ranks have reached the target. `limit`: seconds, or 0 for the group's.
        Raises a RuntimeError after that, or if a rank has left."""
        for number in numbers:
            if not self.has_reached(number, counter, target):
                self._wait(number, counter, target, limit)

    def _wait(self, number: int, counter: int, target: int, limit: float) -> None:
        """Wait for one counter: first by reading it some times, then asleep."""
        word = self._counters[counter][number]
        for _ in range(self.spins):
            if (word[0] - target) & MASK < HALF:
                return
        self.wait_in_all_reduce(number, counter, target, limit)

    def wait_in_all_reduce(self, number: int, counter: int, target: int, limit: float) -> None:
        """Sleep until one rank's counter has reached the target. Raises a RuntimeError, with gloo's words, after the
        limit or if that rank has left."""
        segment, peer = self._segments[number], self._peers[number]
        word = segment.counters[counter]
        begun, timeout = time.monotonic(), limit or self._timeout()
        pause = min(SLEEP, timeout)
        self.own.waits_for[0] = peer.rank + 1
        self.own.awaited[0] = awaited_key(number, counter) << 32 | target
        with self._barrier:
            pass
        try:
            while True:
                value = word[0]
                if (value - target) & MASK < HALF:
                    return
                segment.sleep(counter, value, pause)
                waited = time.monotonic() - begun
                is_left = segment.is_left[0]
                if waited < pause and not is_left:
                    continue
                if (word[0] - target) & MASK >= HALF and (is_left or not is_alive(peer)):
                    raise RuntimeError(
                        f"Connection closed by peer: rank {peer.rank} left while it was awaited in shared memory"
                    )
                timeout = limit or self._timeout()  # a script may have changed it
                if waited > timeout:
                    raise RuntimeError(
                        f"Timed out waiting {timeout * 1000:.0f}ms for rank {peer.rank} in shared memory"
                    )
        finally:
            self.own.awaited[0] = self.own.waits_for[0] = 0
            if threading.current_thread() is threading.main_thread():
                slept[0] += int((time.monotonic() - begun) * 1e9)
