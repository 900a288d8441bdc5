"""The rates of a rank or a host in a window, and an entry of fixed size for them in the record. Pure.

In come `RankRates` and `HostRates`; out go entries for `window_file.py`, and windows that were merged because the file
was full. The rules: None is what can't be known there, and is another thing than zero; an entry of zeros is a window of
which nothing arrived; a number outside its range becomes the nearest inside.

    number     2 bytes   a logarithm, from 2**-12 to 2**52, at most 0.04 % off
    roughly    1 byte    the same from 2**-4 to 2**46, at most 8 % off
    share      1 byte    0 to 1 in steps of 1/200
    flag       1 byte
"""

from __future__ import annotations

import math
import struct
from typing import Any, Callable, Dict, Generic, Mapping, NamedTuple, Sequence, TypeVar

Rates = TypeVar("Rates", bound="RankRates | HostRates")

_SHARE_STEPS = 200


class RankRates(NamedTuple):
    """One rank, over a window. Threads: the one that steps the optimizer, and those that torch makes for backward."""

    steps_per_s: float = 0.0
    samples_per_s: float | None = None
    data_wait: float | None = None
    """The part of the steps' time in which the rank waited for its DataLoader."""
    by_metric: bool = False
    """The samples are from the script's output."""
    cores: float | None = None
    """Processor time by time, of the rank's processes."""
    rss: float | None = None
    """Bytes of its processes."""
    main_cpu: float | None = None
    """The part of the time in which the thread was on a processor."""
    main_queue: float | None = None
    """The part in which it could run, and another thread had the processor."""
    backward_cpu: float | None = None
    backward_queue: float | None = None
    reduce_wait: float | None = None
    """The part of the time in which it waited for other ranks in the all-reduce in shared memory."""
    io_wait: float | None = None
    """The part in which the thread waited for a disk; None where the kernel does not account for that."""
    read_per_s: float | None = None
    """Bytes from and to disks."""
    write_per_s: float | None = None
    switches_per_s: float | None = None
    """Context switches of the thread: it waited for something."""
    forced_switches_per_s: float | None = None
    """Another thread got its processor."""
    major_faults_per_s: float | None = None
    """Pages read from a disk."""
    transfer_cpu: float | None = None
    """Processors that gloo's threads were on: they send, receive and add up. More than one counts as one."""


class HostRates(NamedTuple):
    """One host, over a window."""

    busy: float | None = None
    """The part of all processors' time in use."""
    load: float | None = None
    cpu_pressure: float | None = None
    """The part of the time in which some process waited for a processor, memory, a disk (PSI)."""
    memory_pressure: float | None = None
    io_pressure: float | None = None
    steal: float | None = None
    """The part of all processors' time that the hypervisor gave to others."""
    throttled: float | None = None
    """Of the periods of the ranks' cgroup, those in which it had used up its processor time."""
    mhz: float | None = None
    """The mean over some processors of the ranks."""
    lowest_mhz: float | None = None
    hot_per_s: float | None = None
    """How often a processor slowed down because of its temperature."""
    memory_used: float | None = None
    """Bytes."""
    swap_per_s: float | None = None
    """Bytes in and out."""
    received_per_s: float | None = None
    """Bytes over the run's interface; over all but the loopback, if the run names none."""
    sent_per_s: float | None = None
    other_per_s: float | None = None
    """Bytes in and out, over all other interfaces but the loopback."""
    retransmits_per_s: float | None = None
    """TCP segments that were sent again."""
    read_per_s: float | None = None
    """Bytes from and to all disks."""
    write_per_s: float | None = None
    disk_busy: float | None = None
    """Of the busiest disk."""
    peak_sent_per_s: float | None = None
    """Bytes over the run's interface, in the busiest moment that was looked at."""


class _Code(NamedTuple):
    format: str
    encode: Callable[[Any], int]
    decode: Callable[[int], Any]


def _logarithm(format_: str, lowest: int, highest: int, per_octave: int) -> _Code:
    """0 is None, and 1 is zero."""
    largest = (highest - lowest) * per_octave + 2

    def encode(value: float | None) -> int:
        if value is None:
            return 0
        if not value > 0:
            return 1
        return max(2, min(largest, 2 + round((math.log2(value) - lowest) * per_octave)))

    def decode(code: int) -> float | None:
        return None if not code else 0.0 if code == 1 else float(2.0 ** ((code - 2) / per_octave + lowest))

    return _Code(format_, encode, decode)


def _encode_share(value: float | None) -> int:
    return 0 if value is None else 1 + round(max(0.0, min(1.0, value)) * _SHARE_STEPS)


def _decode_share(code: int) -> float | None:
    return None if not code else min(1.0, (code - 1) / _SHARE_STEPS)


_NUMBER, _ROUGH = _logarithm("H", -12, 52, 1023), _logarithm("B", -4, 46, 5)
_SHARE = _Code("B", _encode_share, _decode_share)
_FLAG = _Code("B", int, bool)


class _Values(Dict[int, Any]):
    """Code → value, of those that have occurred: a page decodes a quarter of a million windows."""

    def __init__(self, code: _Code) -> None:
        super().__init__()
        self._code = code

    def __missing__(self, code: int) -> Any:
        value = self[code] = self._code.decode(code)
        return value


class WindowKind(Generic[Rates]):
    """How the windows of a kind are kept: an entry, a file's beginning, and how many."""

    def __init__(self, rates: Any, *, magic: bytes, capacity: int, size: int, codes: Mapping[str, _Code]) -> None:
        self.magic, self.capacity, self.size = magic, capacity, size
        self._rates: Callable[..., Rates] = rates
        self._codes = [codes[name] for name in rates._fields]
        self._values = [_Values(code) for code in self._codes]
        packed = "<" + "".join(code.format for code in self._codes)
        self._entry = struct.Struct(f"{packed}{size - struct.calcsize(packed)}x")

    def encode(self, window: Rates | None) -> bytes:
        if window is None:
            return bytes(self.size)
        return self._entry.pack(*(code.encode(value) for code, value in zip(self._codes, window)))

    def decode(self, entry: bytes) -> Rates | None:
        """None if nothing is known of that window."""
        if not any(entry):
            return None
        return self._rates(*(values[code] for values, code in zip(self._values, self._entry.unpack(entry))))

    def merge(self, windows: Sequence[Rates | None]) -> Rates | None:
        """One window in place of several of the same length, which follow each other."""
        known = [window for window in windows if window is not None]
        if len(known) < 2:
            return known[0] if known else None
        values = {name: _mean([getattr(window, name) for window in known]) for name in known[0]._fields}
        if isinstance(known[0], RankRates):
            values.update(_merged_steps([window for window in known if isinstance(window, RankRates)]))
        else:
            lowest = [getattr(window, "lowest_mhz") for window in known]  # noqa: B009
            values["lowest_mhz"] = min((mhz for mhz in lowest if mhz is not None), default=None)
        return self._rates(**values)

    def merge_pairs(self, entries: bytes) -> bytes:
        """All windows of a file, as half as many of twice the length."""
        windows = [self.decode(entries[at : at + self.size]) for at in range(0, len(entries), self.size)]
        windows += [None] * (len(windows) % 2)
        return b"".join(self.encode(self.merge(pair)) for pair in zip(windows[::2], windows[1::2]))


def _merged_steps(windows: Sequence[RankRates]) -> dict[str, Any]:
    """Samples are unknown if they are in one window, but for values that a script prints, now and then."""
    samples = [window.samples_per_s for window in windows if window.samples_per_s is not None]
    by_metric = any(window.by_metric for window in windows)
    is_known = samples and (by_metric or len(samples) == len(windows))
    with_steps = [window.data_wait for window in windows if window.steps_per_s] or [w.data_wait for w in windows]
    return {
        "samples_per_s": sum(samples) / len(samples) if is_known else None,
        "data_wait": None if None in with_steps else _mean(with_steps),
        "by_metric": by_metric,
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _table(numbers: str, roughly: str, shares: str, flags: str = "") -> dict[str, _Code]:
    kinds = ((numbers, _NUMBER), (roughly, _ROUGH), (shares, _SHARE), (flags, _FLAG))
    return {name: code for names, code in kinds for name in names.split()}


RANK_WINDOWS: WindowKind[RankRates] = WindowKind(
    RankRates,
    magic=b"ipexrnk1",
    capacity=2160,
    size=24,
    codes=_table(
        "steps_per_s samples_per_s cores rss main_cpu main_queue",
        "read_per_s write_per_s switches_per_s forced_switches_per_s major_faults_per_s",
        "data_wait backward_cpu backward_queue reduce_wait io_wait transfer_cpu",
        "by_metric",
    ),
)
"""Six hours in windows of ten seconds, and 52 kB."""
HOST_WINDOWS: WindowKind[HostRates] = WindowKind(
    HostRates,
    magic=b"ipexhst1",
    capacity=720,
    size=32,
    codes=_table(
        "load mhz lowest_mhz memory_used received_per_s sent_per_s other_per_s retransmits_per_s "
        "read_per_s write_per_s peak_sent_per_s",
        "hot_per_s swap_per_s",
        "busy cpu_pressure memory_pressure io_pressure steal throttled disk_busy",
    ),
)
"""Two hours, and 23 kB: with 64 ranks on 64 hosts a record has less than 5 MB."""
