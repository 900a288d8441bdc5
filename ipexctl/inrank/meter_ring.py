"""The ring of the step meter, as its rank writes it: a small shared file with the newest records.

The rank wrapper makes the file (path in $IPEXCTL_METER) and reads it (`node/run/meter_reader.py`). Its one writer holds
its lock. Totals continue from the newest record when another process takes over, so a missed record costs resolution
but no step. A record is 8 words of 64 bits in machine order, in the next of SLOTS places:

    NUMBER, WALL, STEPS, SAMPLES, WAIT, REDUCE, FLAGS, CHECK

NUMBER counts the records from 1; a record's place is (NUMBER - 1) % SLOTS. WALL is CLOCK_MONOTONIC in nanoseconds, WAIT
the time spent waiting for data, REDUCE that for other ranks in the all-reduce in shared memory. FLAGS has why samples
can't be known since the record before, in its lowest byte; the bytes of gradients of models with DDP, by 65,536, in the
next three; and in its upper half the thread that stepped. CHECK is the exclusive or of the
other words and of SALT. The writer clears NUMBER, writes the other words, then NUMBER: x86-64 shows stores to others in
this order, and a reader that meets a record halfway sees NUMBER 0, two different readings, or a CHECK that is wrong.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from typing import NamedTuple

SLOTS = 1024
WORDS = 8
RECORD_SIZE = 8 * WORDS
RING_SIZE = SLOTS * RECORD_SIZE
SALT = 0x69706578_6D657472
LINK = "/memfd:ipexctl-meter"
MASK = (1 << 64) - 1
_RECORD = struct.Struct("@8Q")
_BODY = struct.Struct("@7Q")


class Totals(NamedTuple):
    """Times in ns; all but `wall` and `flags` are sums since the meter began."""

    wall: int
    steps: int = 0
    samples: int = 0
    wait: int = 0
    reduce: int = 0
    flags: int = 0
    """Not a sum. `meter.py` has the bits of the lower half."""


class RingError(Exception):
    """This process can't write the ring; the text is the reason."""


def check_of(number: int, totals: Totals) -> int:
    check = SALT ^ number
    for word in totals:
        check ^= word
    return check & MASK


class RingWriter:
    def __init__(self, path: str) -> None:
        # In a container with its own pids, the path may belong to another file.
        if not os.readlink(path).startswith(LINK):
            raise RingError("the path of the step meter is that of another file")
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(self._file).st_size != RING_SIZE:
                raise RingError("the file of the step meter has another size")
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RingError("another process of this rank has the step meter") from None
            self._map = mmap.mmap(self._file, RING_SIZE)
        except BaseException:
            os.close(self._file)
            raise
        self._words = memoryview(self._map).cast("Q")
        self._number, self.before = self._find_newest()

    def _find_newest(self) -> tuple[int, Totals]:
        newest, totals = 0, Totals(0)
        for fields in _RECORD.iter_unpack(self._map[:]):
            number, found = fields[0], Totals(*fields[1:7])
            if number > newest and check_of(number, found) == fields[7]:
                newest, totals = number, found
        return newest, totals

    def write(self, totals: Totals) -> None:
        number = self._number + 1
        offset = (number - 1) % SLOTS * RECORD_SIZE
        check = check_of(number, totals)
        self._words[offset // 8] = 0
        _BODY.pack_into(self._map, offset + 8, *totals, check)
        self._words[offset // 8] = number
        self._number = number

    def close(self) -> None:
        self._words.release()
        self._map.close()
        os.close(self._file)
