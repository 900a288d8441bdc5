"""A rank's part of the shared memory: a memfd that the other ranks of its host map through /proc, and its words.

A memfd has no name: nothing stays in /dev/shm when a rank is killed, and its size is not limited by that of /dev/shm,
which is 64 MB in a container. A rank that can open `/proc/PID/fd/NUMBER` of another and finds the nonce there is on the
same host, in the same PID namespace, of the same user. The rank keeps the descriptor of its own: `process_stacks.py`
reads WAITS_FOR there.

    bytes 0 to 127     PROGRESS: 32 bits, the futex on which others wait; written by the segment's own rank alone
    bytes 128 to 255   WAITS_FOR: 32 bits, the number of the rank that its rank waits for, and 1; 0: for none
    bytes 256 to 383   CHECKS: 64 bits for each slot, the size and type of what the rank adds up there
    bytes 384 to 415   the nonce
    from byte 4096     the slots

Each word has one writer and a cache line of its own, and is stored by one aligned instruction. On x86-64, stores become
visible in the order in which they are made, and loads are made in order, so that a rank that reads a new PROGRESS also
reads what was written before it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import weakref

PROGRESS, WAITS_FOR, CHECKS, NONCE = 0, 128, 256, 384
NONCE_SIZE = 32
HEADER = 4096
NAME = "ipexctl-allreduce"
_MADV_DONTFORK = 10
_MEMFD_CREATE = 319
_FUTEX = 202
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1
_MAP_FAILED = ctypes.c_void_p(-1).value


class SegmentError(Exception):
    """Shared memory can't be used here; the text is the reason."""


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


def is_supported() -> bool:
    """Whether the numbers of system calls and the order of stores are known here."""
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


def create_memfd(size: int) -> int:
    """A descriptor of new shared memory that only this user can open."""
    # Pythons built for an old glibc, as conda's, have no os.memfd_create.
    number = int(_libc.syscall(ctypes.c_long(_MEMFD_CREATE), ctypes.c_char_p(NAME.encode()), ctypes.c_long(1)))
    if number < 0:
        raise _failed("memfd_create")
    try:
        os.fchmod(number, 0o600)
        os.ftruncate(number, size)
    except OSError as error:
        os.close(number)
        raise SegmentError(f"memfd: {error.strerror}") from None
    return number


class Segment:
    """Shared memory that this process has mapped, its own or another rank's, until nothing refers to it any more.

    Forked children don't have it.
    """

    def __init__(self, number: int, size: int) -> None:
        if os.fstat(number).st_size != size:
            raise SegmentError("the shared memory of another rank has another size")
        address = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, number, 0)
        if address in (None, _MAP_FAILED):
            raise _failed("mmap")
        self._address, self.size = int(address), size
        array = (ctypes.c_ubyte * size).from_address(self._address)
        weakref.finalize(array, _libc.munmap, self._address, size).atexit = False
        if _libc.madvise(self._address, size, _MADV_DONTFORK):
            raise _failed("madvise")
        self.bytes = memoryview(array).cast("B")
        self.progress = self.bytes[PROGRESS : PROGRESS + 4].cast("I")
        self.waits_for = self.bytes[WAITS_FOR : WAITS_FOR + 4].cast("I")
        self.checks = self.bytes[CHECKS : CHECKS + 16].cast("Q")
        self._futex = ctypes.c_void_p(self._address + PROGRESS)

    @property
    def nonce(self) -> bytes:
        return bytes(self.bytes[NONCE : NONCE + NONCE_SIZE])

    @nonce.setter
    def nonce(self, value: bytes) -> None:
        self.bytes[NONCE : NONCE + NONCE_SIZE] = value

    def wake(self) -> None:
        """Wake the ranks that sleep until PROGRESS changes."""
        _libc.syscall(_NUMBER, self._futex, _WAKE, _EVERYONE, _NOTHING, _NOTHING, _NOTHING)

    def sleep(self, value: int, seconds: float) -> None:
        """Sleep while PROGRESS has that value, at most that long; also returns on a signal."""
        until = _Timespec(int(seconds), int(seconds % 1 * 1e9))
        _libc.syscall(_NUMBER, self._futex, _WAIT, ctypes.c_ulong(value), ctypes.byref(until), _NOTHING, _NOTHING)
