"""Creates and reads the step meter's ring in the rank wrapper; `inrank/meter.py` has its layout.

The rank's processes may write anything into it, at any time. A record counts only if two readings agree and its check
word fits.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from typing import NamedTuple

SLOTS = 1024
RECORD_SIZE = 72
RING_SIZE = SLOTS * RECORD_SIZE
DOCUMENT = RING_SIZE + 4096
FILE_SIZE = DOCUMENT + 8192
SALT = 0x69706578_6D657472
_RECORD = struct.Struct("@9Q")
NAME = "ipexctl-meter"
_MEMFD_CREATE = {"x86_64": 319, "aarch64": 279}
_CLOEXEC = 1


class StepRecord(NamedTuple):
    """Times in nanoseconds. `steps` to `reduce` are sums since the meter started."""

    wall: int
    steps: int
    samples: int
    wait: int
    reduce: int
    flags: int
    training: int = 0

    @property
    def group(self) -> int:
        """Ranks in the rank's process group, 1 without one; 0 before 20 steps or if unknown."""
        return self.training & 0xFFFFFFFF

    @property
    def is_unused(self) -> bool:
        """True if the process has ended without a backward, though its script has one."""
        return bool(self.training >> 32 & 1)

    @property
    def is_apart(self) -> bool:
        """True if the rank has exchanged nothing with others since its first step; false before 20 steps or if
        unknown."""
        return bool(self.training >> 33 & 1)

    @property
    def nan_since(self) -> int:
        """The first step since which the loss is nan; 0 if it is a number or unknown."""
        return self.training >> 40

    @property
    def unknown(self) -> int:
        """Nonzero if the number of samples since the last record is unknown."""
        return self.flags & 0x3F

    @property
    def is_paused(self) -> bool:
        """True if the time until the next record does not count, nor do its steps."""
        return bool(self.flags & 0x40)

    @property
    def is_fp32(self) -> bool:
        """True if matrices are multiplied in fp32; false if they are not, or that is unknown."""
        return bool(self.flags & 0x80)

    @property
    def gradients(self) -> float:
        """Bytes of the DDP models' gradients, in units of 64 KB; 0 without such a model."""
        return float((self.flags >> 8 & 0xFFFFFF) << 16)

    @property
    def thread(self) -> int:
        """The kernel's number of the thread that stepped the optimizer."""
        return self.flags >> 32


class MeterReader:
    def __init__(self, number: int) -> None:
        self.number = number
        self._last = 0

    @classmethod
    def create(cls) -> MeterReader | None:
        """Create a ring. Return None if memory is short or the system has no memfd."""
        number = _create_memfd()
        if number < 0:
            return None
        try:
            os.fchmod(number, 0o600)
            os.ftruncate(number, FILE_SIZE)
        except OSError:
            os.close(number)
            return None
        return cls(number)

    @property
    def path(self) -> str:
        """Path for the rank's processes, which need not inherit the descriptor."""
        return f"/proc/{os.getpid()}/fd/{self.number}"

    def read(self) -> list[StepRecord]:
        """Return the records since the last call, in order; empty if there are none, or the ring can't be read.

        A record that is being written is returned by the next call. Records that were overwritten since the last call
        are lost.
        """
        try:
            if not self._has_next():
                return []
            first = os.pread(self.number, RING_SIZE, 0)
            again = os.pread(self.number, RING_SIZE, 0)
        except OSError:
            return []
        if len(first) != RING_SIZE or len(again) != RING_SIZE:
            return []
        pairs = zip(_RECORD.iter_unpack(first), _RECORD.iter_unpack(again))
        records = {
            fields[0]: StepRecord(*fields[1:8])
            for slot, (fields, repeated) in enumerate(pairs)
            if fields == repeated
            and self._last < fields[0]
            and (fields[0] - 1) % SLOTS == slot
            and _is_complete(fields)
        }
        self._last = max(records, default=self._last)
        return [records[number] for number in sorted(records)]

    def _has_next(self) -> bool:
        """True if the ring has a newer record. Reads only one word, because most scripts have no steps."""
        data = os.pread(self.number, 8, self._last % SLOTS * RECORD_SIZE)
        return int.from_bytes(data, sys.byteorder) > self._last

    def steps_made(self) -> int:
        """Return how many optimizer steps the process that trains has made, also those that were profiled."""
        return int.from_bytes(os.pread(self.number, 8, RING_SIZE + 8), sys.byteorder)

    def document(self) -> bytes:
        """Return the newest document of the process that trains, which may be half-written; empty without one."""
        return os.pread(self.number, FILE_SIZE - DOCUMENT, DOCUMENT).partition(b"\0")[0]

    def ask_for_profile(self, after_step: int, path: str) -> None:
        """Ask the process that trains to profile the steps after `after_step`, and to write the profile to the path."""
        os.pwrite(self.number, os.fsencode(path)[: DOCUMENT - RING_SIZE - 17] + b"\0", RING_SIZE + 16)
        os.pwrite(self.number, after_step.to_bytes(8, sys.byteorder), RING_SIZE)

    def close(self) -> None:
        """Close the ring. The command's processes can't open it then."""
        os.close(self.number)


def _create_memfd() -> int:
    call = _MEMFD_CREATE.get(os.uname().machine)
    if call is None:
        return -1
    # Pythons built for an old glibc, such as conda's, have no os.memfd_create.
    libc = ctypes.CDLL(None)
    libc.syscall.restype = ctypes.c_long
    return int(libc.syscall(ctypes.c_long(call), ctypes.c_char_p(NAME.encode()), ctypes.c_long(_CLOEXEC)))


def _is_complete(fields: tuple[int, ...]) -> bool:
    check = SALT
    for word in fields:
        check ^= word
    return not check
