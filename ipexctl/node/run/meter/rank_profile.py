"""The profile of a rank, in seconds and FLOP/s: written by `inrank/profiler.py`, sent by the rank wrapper, and kept on
node0 as `ranks/NNNN.profile`."""

from __future__ import annotations

import contextlib
import os
from typing import Iterable, NamedTuple

from ipexctl.node.common.files import make_private_directory, remove_file
from ipexctl.node.common.json_records import NATURAL, FieldDecoder, check_type, decode, read_json_file
from ipexctl.node.common.lever_records import WORTH

SUFFIX = ".profile"
MAX_FILE = 64 << 10
_MAX_TEXT = 400
_MOST_ROWS = 10


class StepCount(NamedTuple):
    """What a rank answers before its profile is requested."""

    id: str
    steps: int = 0
    usual: float = 0.0
    since: float = 0.0
    """As in `Stepping`, like the others."""


class OperatorTime(NamedTuple):
    name: str
    shapes: str
    dtype: str
    calls: int
    seconds: float
    """Without the operators that it calls."""


class LeverTime(NamedTuple):
    lever: str
    """Name of a rank option that is a lever."""
    now: float
    """Seconds in the window of what it changes: the matrix products, or the optimizer."""
    then: float
    """The same with it, as measured after the window on tensors of these sizes."""


class RankProfile(NamedTuple):
    note: str = ""
    """Why there is no profile; the other fields are empty then."""
    first_step: int = 0
    """Number of the first step in the window."""
    steps: int = 0
    """Whole steps; 0 if a step took too long, so that only its beginning was profiled."""
    seconds: float = 0.0
    """Length of the window. `data` to `communication` add up to it."""
    usual: float = 0.0
    """Seconds of a step before."""
    data: float = 0.0
    """Seconds that the main thread waited for data; the four after it likewise, of their part of a step."""
    forward: float = 0.0
    backward: float = 0.0
    optimizer: float = 0.0
    rest: float = 0.0
    """Of no other part."""
    communication: tuple[float, ...] = ()
    """Of each step."""
    gaps: float = 0.0
    """Time without an operator, a collective or the DataLoader."""
    cpu: float = 0.0
    """Processor time of the process in the window."""
    thread_cpu: float | None = None
    """Processor time of the main thread, which trains; None if the kernel does not tell."""
    queued: float | None = None
    """Seconds that the main thread waited for a processor; None likewise."""
    cores: int = 0
    """That the process may use."""
    threads: int = 0
    """Of torch in an operator."""
    load: float = 0.0
    """Load average of the host over a minute."""
    operators: tuple[OperatorTime, ...] = ()
    """Those that took longest, first."""
    is_compiled: bool = False
    flops: int = 0
    """Of the matrix products in the window."""
    dtype: str = ""
    """Of most FLOPs."""
    products: int = 0
    product_seconds: float = 0.0
    """Seconds in matrix products."""
    peak: float = 0.0
    """FLOP/s of the fastest matrix product of that type, measured after the window; 0 if unknown."""
    peak_spread: float = 0.0
    """How many times slower the median product of that size was."""
    levers: tuple[LeverTime, ...] = ()
    events: int = 0
    """That torch recorded."""
    trace: str = ""
    """Name of the trace, or after `!` why it is missing."""
    cost: float = 0.0
    """Seconds that profiling took from the run."""
    attempt: int = 0
    request: int = 0
    """The attempt and the number of the request that it answers, set by the rank wrapper; 0 with `run --profile`."""

    @property
    def order(self) -> tuple[int, int]:
        """Greater for a later request."""
        return self.attempt, self.request

    @property
    def speedups(self) -> dict[str, float]:
        """Lever → how many times as fast a step would be; also `fast`, if both of its parts are worth it."""
        saved = {measured.lever: measured.now - measured.then for measured in self.levers}
        factors = {name: self._speedup(seconds) for name, seconds in saved.items()}
        of_fast = [saved.get(name, 0.0) for name in ("autocast", "fused_optimizer")]
        if all(self._speedup(seconds) >= WORTH for seconds in of_fast):
            factors["fast"] = self._speedup(sum(of_fast))
        return factors

    def _speedup(self, saved: float) -> float:
        return self.seconds / max(self.seconds - saved, 0.01 * self.seconds) if self.seconds else 1.0

    @property
    def is_usable(self) -> bool:
        """True if there is a profile whose parts fit each other. False if `note` says why there is none."""
        return self.seconds > 0 and len(self.operators) <= _MOST_ROWS and len(self.communication) == max(1, self.steps)


class ProfileFile:
    """What the command writes into a file that the wrapper names."""

    VARIABLE = "IPEXCTL_PROFILE"

    def __init__(self, path: str) -> None:
        self._path = path
        self._read_at = 0

    def prepare(self) -> dict[str, str]:
        """Remove the profile before, and return the variable that names the file to the command."""
        with contextlib.suppress(OSError):
            make_private_directory(os.path.dirname(self._path))
            remove_file(self._path)
        return {self.VARIABLE: self._path}

    def read(self) -> RankProfile | None:
        """Return the profile that the command has written since the last call; None if there is none. One that is not
        valid is returned as a note."""
        try:
            changed = os.stat(self._path).st_mtime_ns
            if changed == self._read_at:
                return None
            self._read_at = changed
            return decode(RankProfile, read_json_file(self._path, MAX_FILE), "a profile")
        except OSError:
            return None
        except ValueError as error:
            return RankProfile(note=f"its document is not valid: {error}")


def _text(value: object, field: str) -> str:
    return check_type(str, value, field)[:_MAX_TEXT]


def main_profile(profiles: Iterable[RankProfile]) -> RankProfile | None:
    """Return the profile of the rank that waits least for the others, because all ranks step as fast as that one; None
    if no profile is usable."""
    usable = [profile for profile in profiles if profile.is_usable]
    return min(usable, key=lambda profile: sum(profile.communication) / max(1, profile.steps), default=None)


FIELD_DECODERS: dict[str, FieldDecoder] = {**NATURAL, "str": _text}
