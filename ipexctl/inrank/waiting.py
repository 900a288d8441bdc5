"""Waiting for other ranks of the host: a short spin, then a futex that sleeps at most a second at a time.

In comes a number that another rank's PROGRESS must reach; `wait` returns once it has. A rank that has ended raises a
RuntimeError, with gloo's words, as does one that lets this rank wait longer than its process group's timeout. The rule:
a rank that waits leaves its core to the others, and signal handlers of the script run.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple, Sequence

if TYPE_CHECKING:
    from .segment import Segment

MASK, HALF = 0xFFFFFFFF, 0x80000000
SPINS = 600
"""Readings of the word before a rank sleeps: about 40 µs, as long as waking it takes."""
SLEEP = 1.0
"""Seconds of a sleep, after which the other rank is looked at."""


class Peer(NamedTuple):
    """A process: its number in the world, its id, and when it started, so that its id isn't taken for another's."""

    rank: int
    pid: int
    started: int


def read_state(pid: int) -> tuple[str, int]:
    """The state of a process, and when it started; ("", 0) when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return fields[0].decode(), int(fields[19])
    except (OSError, IndexError, ValueError):
        return "", 0


def is_alive(peer: Peer) -> bool:
    """Whether that process still runs; also true for one that is stopped."""
    state, started = read_state(peer.pid)
    return started == peer.started and state not in ("", "Z", "X")


class Waiter:
    """Waits for the ranks of one host."""

    def __init__(self, own: Segment, segments: Sequence[Segment], peers: Sequence[Peer], timeout: float) -> None:
        self.timeout = timeout
        self.spins = SPINS
        self.own, self._segments, self._peers = own, segments, peers
        self._words = [segment.progress for segment in segments]

    def wait_for_all(self, target: int) -> None:
        """Wait until each rank of the host has reached that number."""
        for number, word in enumerate(self._words):
            if (word[0] - target) & MASK >= HALF:
                self._wait(number, target)

    def _wait(self, number: int, target: int) -> None:
        word = self._words[number]
        for _ in range(self.spins):
            if (word[0] - target) & MASK < HALF:
                return
        self.wait_in_all_reduce(number, target)

    def wait_in_all_reduce(self, number: int, target: int) -> None:
        """Sleep until that rank of the host has reached the number."""
        word, segment, peer = self._words[number], self._segments[number], self._peers[number]
        begun, pause = time.monotonic(), SLEEP
        self.own.waits_for[0] = peer.rank + 1
        try:
            while True:
                value = word[0]
                if (value - target) & MASK < HALF:
                    return
                segment.sleep(value, pause)
                waited = time.monotonic() - begun
                if waited < pause:
                    continue
                if (word[0] - target) & MASK >= HALF and not is_alive(peer):
                    raise RuntimeError(
                        f"Connection closed by peer: rank {peer.rank} ended while all-reduce waited for it"
                    )
                if waited > self.timeout:
                    raise RuntimeError(
                        f"Timed out waiting {self.timeout * 1000:.0f}ms for rank {peer.rank} in all-reduce"
                    )
        finally:
            self.own.waits_for[0] = 0
