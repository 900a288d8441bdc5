"""A rank's part of the shared memory: a memfd that the other ranks of its host map through /proc.

A memfd has no name, so a killed rank leaves nothing behind, and the size of /dev/shm (64 MB in a container) is no
limit. If a rank can open another rank's `/proc/PID/fd/NUMBER` and finds the nonce there, both are on the same host, in
the same PID namespace, and have the same user. `process_stacks.py` reads WAITS_FOR.

    byte 0      WRITTEN: 32 bits, number of pieces that the rank has written; a futex on which other ranks wait
    byte 128    WAITS_FOR: 32 bits, 1 + the number of the rank that this rank waits for; 0 for none
    byte 256    SUMMED: as WRITTEN, number of pieces of which the rank has summed its shard
    byte 384    the nonce, 32 bytes
    byte 512    COPIED: as WRITTEN, number of pieces that the rank does not read any more
    byte 576    LEFT: 32 bits, 1 once the rank has left the process group, or one of its calls failed
    byte 640    AWAITED: 64 bits, what the rank sleeps for: rank, counter and the counter's value; 0 for nothing
    byte 1024   PIECES: 64 bits for each of the last 64 pieces: size, type and slot
    byte 4096   the slots

Only the segment's own rank writes the words, each with one aligned instruction. Each counter has its own cache line. On
x86-64, stores become visible in order after earlier loads, and loads are in order, so a rank that reads a new counter
also reads what was written before it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import stat
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Collection, Mapping


LINE = 64
"""Bytes of a cache line. No two ranks write to the same line."""


def shard_bounds(elements: int, ranks: int, itemsize: int) -> list[int]:
    """Return the bounds of each rank's shard of a piece: one number more than ranks. Shards begin at cache lines, so
    that no two ranks write to the same line; some may be empty."""
    step = max(LINE // itemsize, 1)
    lines = -(-elements // step)
    return [min(lines * rank // ranks * step, elements) for rank in range(ranks)] + [elements]


def pieces(elements: int, itemsize: int, limit: int) -> list[tuple[int, int]]:
    """Return begin and end of the pieces of a tensor, about equal and each of at most `limit` bytes; empty for an empty
    tensor."""
    step = max(LINE // itemsize, 1)
    maximum = limit // itemsize // step * step
    count = max(-(-elements // maximum), 1)
    size = min(-(-elements // count // step) * step, maximum) if count > 1 else elements
    return [(start, min(start + size, elements)) for start in range(0, elements, size)] if elements else []


def find_hosts(mapped: Mapping[int, Collection[int]], fewest: int = 2) -> list[list[int]]:
    """Return the ranks of each host. `mapped`: rank → ranks whose memory it has mapped, including itself. Raises a
    ValueError if hosts differ in their number of ranks, or all have fewer than `fewest`."""
    hosts: list[list[int]] = []
    for rank in sorted(mapped):
        ranks = sorted(mapped[rank])
        if rank == ranks[0]:
            hosts.append(ranks)
        elif ranks not in hosts:
            raise ValueError(f"rank {rank} and the other ranks of its host can't all map each other's memory")
    if sorted(rank for ranks in hosts for rank in ranks) != sorted(mapped):
        raise ValueError("not all ranks of a host can map each other's memory")
    sizes = {len(ranks) for ranks in hosts}
    if sizes == {1} and fewest > 1:
        raise ValueError("each host has only one rank")
    if len(sizes) > 1:
        raise ValueError("the hosts have different numbers of ranks")
    return hosts


WAITS_FOR, NONCE, LEFT, AWAITED, PIECES = 128, 384, 576, 640, 1024
COUNTERS = (0, 256, 512)
WRITTEN, SUMMED, COPIED = 0, 1, 2
NONCE_SIZE = 32
MOST_PIECES = 64
HEADER = 4096
NAME = "ipexctl-allreduce"
_MADV_DONTFORK = 10
_MEMFD_CREATE, _CLOEXEC, _ALLOW_SEALING = 319, 1, 2
_FUTEX = 202
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1
_MAP_FAILED = ctypes.c_void_p(-1).value


class SegmentError(Exception):
    """The text is the reason."""


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


def is_supported() -> bool:
    """True if system call numbers and the order of stores are known here."""
    return platform.system() == "Linux" and platform.machine() == "x86_64"


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.syscall.restype = ctypes.c_long
_NUMBER, _WAIT, _WAKE = ctypes.c_long(_FUTEX), ctypes.c_long(_FUTEX_WAIT), ctypes.c_long(_FUTEX_WAKE)
_EVERYONE, _NOTHING = ctypes.c_long(0x7FFFFFFF), ctypes.c_void_p(None)


def _failed(what: str) -> SegmentError:
    return SegmentError(f"{what}: {os.strerror(ctypes.get_errno())}")


def create_memfd(size: int, name: str = NAME) -> int:
    """Return the descriptor of a new memory of this size, which only this account may open. Raises a SegmentError if
    the kernel refuses."""
    # Pythons built for an old glibc, such as conda's, have no os.memfd_create.
    flags = ctypes.c_long(_CLOEXEC | _ALLOW_SEALING)
    number = int(_libc.syscall(ctypes.c_long(_MEMFD_CREATE), ctypes.c_char_p(name.encode()), flags))
    if number < 0:
        raise _failed("memfd_create")
    try:
        os.fchmod(number, 0o600)
        os.ftruncate(number, size)
    except OSError as error:
        os.close(number)
        raise SegmentError(f"memfd: {error.strerror}") from None
    return number


def open_memfd(pid: object, number: object, name: str = NAME) -> int | None:
    """Open the memfd of another process of this user, and return its descriptor; None if there is no such memfd. The
    numbers are checked, because anybody on the ranks' network may write into their store."""
    if type(pid) is not int or type(number) is not int:
        return None
    path = f"/proc/{pid}/fd/{number}"
    try:
        if not os.readlink(path).startswith(f"/memfd:{name}"):
            return None  # another process reused that number
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    status = os.fstat(descriptor)
    if status.st_uid == os.geteuid() and stat.S_ISREG(status.st_mode):
        return descriptor
    os.close(descriptor)
    return None


class Segment:
    """A mapping of this rank's or another rank's memory, while it is referenced. Forked children do not have it."""

    def __init__(self, number: int, size: int) -> None:
        if os.fstat(number).st_size != size:
            raise SegmentError("another rank's shared memory has the wrong size")
        address = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, number, 0)
        if address in (None, _MAP_FAILED):
            raise _failed("mmap")
        self._address, self.size = int(address), size
        array = (ctypes.c_ubyte * size).from_address(self._address)
        weakref.finalize(array, _libc.munmap, self._address, size).atexit = False
        if _libc.madvise(self._address, size, _MADV_DONTFORK):
            raise _failed("madvise")
        self.bytes = memoryview(array).cast("B")
        self.counters = [self.bytes[at : at + 4].cast("I") for at in COUNTERS]
        self.waits_for = self.bytes[WAITS_FOR : WAITS_FOR + 4].cast("I")
        self.is_left = self.bytes[LEFT : LEFT + 4].cast("I")
        self.awaited = self.bytes[AWAITED : AWAITED + 8].cast("Q")
        self.pieces = self.bytes[PIECES : PIECES + 8 * MOST_PIECES].cast("Q")
        self._futexes = [ctypes.c_void_p(self._address + at) for at in COUNTERS]

    @property
    def nonce(self) -> bytes:
        """Return the random bytes by which another rank knows the segment again."""
        return bytes(self.bytes[NONCE : NONCE + NONCE_SIZE])

    @nonce.setter
    def nonce(self, value: bytes) -> None:
        """Write the random bytes, before another rank is told of the segment."""
        self.bytes[NONCE : NONCE + NONCE_SIZE] = value

    def leave(self) -> None:
        """Tell the other ranks that this one takes no part any more, and wake those that wait for it."""
        self.is_left[0] = 1
        for counter in range(len(COUNTERS)):
            self.wake(counter)

    def wake(self, counter: int) -> None:
        """Wake the ranks that sleep on this counter."""
        _libc.syscall(_NUMBER, self._futexes[counter], _WAKE, _EVERYONE, _NOTHING, _NOTHING, _NOTHING)

    def sleep(self, counter: int, value: int, seconds: float) -> None:
        """Sleep while the counter has this value; a signal ends the sleep."""
        until = _Timespec(int(seconds), int(seconds % 1 * 1e9))
        futex = self._futexes[counter]
        _libc.syscall(_NUMBER, futex, _WAIT, ctypes.c_ulong(value), ctypes.byref(until), _NOTHING, _NOTHING)
