"""Causes of a slow rank: a table of signatures over what was measured. Pure.

In: `Evidence`, what the rank and its host had more of than the others in the windows in which it was slow, and what was
seen on its host if it was looked at. Out: the `SlowCause` of the first signature in `SIGNATURES` that fits. The rules:
a cause must explain at least EXPLAINS of the rank's additional own time; a rank with more work waits longer for crowded
cores, too, which shows no other program; what concerns a whole host counts only if the other ranks of that host are
slow, too; a cause that others resemble is `possible`; without a fitting signature the
evidence is `insufficient`, and nothing is guessed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from ipexctl.node.run.replies import SuspectLook

CauseKind = Literal[
    "cgroup-limit",
    "steal",
    "other-process",
    "crowded-cores",
    "contention",
    "heat",
    "clock",
    "storage",
    "data",
    "paging",
    "far-memory",
    "more-samples",
    "work-or-bandwidth",
    "unknown",
    "all-wait-for-data",
]
Confidence = Literal["likely", "possible", "insufficient"]
EXPLAINS: Final = 0.5
UNSEEN_SHARE: Final = 0.2
"""Of a processor: time without a visible process is the difference of rough figures."""
LOWER_CLOCK: Final = 0.95
BUSY_DISK: Final = 0.8
PRESSED_DISK: Final = 0.1
FAULTS: Final = 10.0
"""Major faults a second more than the others."""
FAR_MEMORY: Final = 0.3
MORE_SAMPLES: Final = 1.05


@dataclass(frozen=True, slots=True)
class Evidence:
    """Of one rank in the windows in which it was slow. `…_more`: than the median of the others; None: not known."""

    own: float
    """Own time, in parts of a step."""
    usual_own: float
    """The median of the other ranks."""
    cpu_more: float | None = None
    queue_more: float | None = None
    data_more: float | None = None
    disk_more: float | None = None
    usual_cpu: float | None = None
    usual_queue: float | None = None
    samples_ratio: float | None = None
    """Samples a second by those of the others."""
    faults_more: float | None = None
    is_whole_host: bool = True
    """Whether the other ranks of its host, if any, are slow, too."""
    throttled_more: float | None = None
    steal_more: float | None = None
    mhz: float | None = None
    usual_mhz: float | None = None
    hot: float | None = None
    """Thermal throttle events a second."""
    usual_hot: float | None = None
    io_pressure: float | None = None
    disk_busy: float | None = None
    look: SuspectLook | None = None

    @property
    def more(self) -> float:
        return self.own - self.usual_own

    @property
    def crowding(self) -> float | None:
        """Time in the run queue, less what the other ranks wait for the same work."""
        if self.queue_more is None or self.cpu_more is None or self.usual_queue is None or not self.usual_cpu:
            return self.queue_more
        return self.queue_more - self.usual_queue * self.cpu_more / self.usual_cpu

    def explains(self, part: float | None) -> bool:
        return part is not None and part >= EXPLAINS * self.more


class SlowCause(NamedTuple):
    kind: CauseKind
    confidence: Confidence


class Signature(NamedTuple):
    cause: SlowCause
    fits: Callable[[Evidence], bool]


def find_cause(evidence: Evidence) -> SlowCause:
    """The cause of the first signature that fits."""
    return next((signature.cause for signature in SIGNATURES if signature.fits(evidence)), _UNKNOWN)


def needs_look(cause: SlowCause) -> bool:
    """Whether a look at the rank's host can say more."""
    return cause.kind in ("contention", "work-or-bandwidth", "unknown", "clock", "steal")


def _is_limited(evidence: Evidence) -> bool:
    if evidence.is_whole_host and evidence.explains(evidence.throttled_more):
        return True
    look = evidence.look
    return look is not None and look.throttled is not None and evidence.explains(look.throttled)


def _is_stolen(evidence: Evidence) -> bool:
    return evidence.is_whole_host and evidence.explains(evidence.steal_more)


def _has_other_process(evidence: Evidence) -> bool:
    look = evidence.look
    if look is None or not _waits_for_processor(evidence):
        return False
    foreign = sum(process.share for process in look.others if not process.is_of_run)
    unseen = look.unseen_share or 0.0
    return evidence.explains(foreign) or (unseen >= UNSEEN_SHARE and evidence.explains(unseen))


def _shares_with_run(evidence: Evidence) -> bool:
    look = evidence.look
    if look is None or not _waits_for_processor(evidence):
        return False
    return evidence.explains(sum(process.share for process in look.others if process.is_of_run))


def _waits_for_processor(evidence: Evidence) -> bool:
    return evidence.explains(evidence.crowding)


def _computes_longer(evidence: Evidence) -> bool:
    return evidence.explains(evidence.cpu_more)


def _is_hot(evidence: Evidence) -> bool:
    events = (evidence.hot or 0.0) > 0 and not evidence.usual_hot
    seen = evidence.look is not None and (evidence.look.hot or 0) > 0 and not evidence.usual_hot
    return _computes_longer(evidence) and (events or seen)


def _has_lower_clock(evidence: Evidence) -> bool:
    mhz, usual = evidence.mhz, evidence.usual_mhz
    if not mhz or not usual or mhz > LOWER_CLOCK * usual or not _computes_longer(evidence):
        return False
    return evidence.explains((usual / mhz - 1.0) * (evidence.usual_cpu or evidence.usual_own))


def _waits_for_data(evidence: Evidence) -> bool:
    return evidence.explains(evidence.data_more) or evidence.explains(evidence.disk_more)


def _waits_for_storage(evidence: Evidence) -> bool:
    pressed = (evidence.io_pressure or 0.0) >= PRESSED_DISK or (evidence.disk_busy or 0.0) >= BUSY_DISK
    return _waits_for_data(evidence) and (pressed or evidence.explains(evidence.disk_more))


def _pages(evidence: Evidence) -> bool:
    return (evidence.faults_more or 0.0) >= FAULTS


def _has_far_memory(evidence: Evidence) -> bool:
    look = evidence.look
    return _computes_longer(evidence) and look is not None and (look.far_memory or 0.0) >= FAR_MEMORY


def _has_more_samples(evidence: Evidence) -> bool:
    return _computes_longer(evidence) and (evidence.samples_ratio or 0.0) >= MORE_SAMPLES


_UNKNOWN: Final = SlowCause("unknown", "insufficient")
SIGNATURES: Final = (
    Signature(SlowCause("cgroup-limit", "likely"), _is_limited),
    Signature(SlowCause("steal", "likely"), _is_stolen),
    Signature(SlowCause("other-process", "likely"), _has_other_process),
    Signature(SlowCause("crowded-cores", "likely"), _shares_with_run),
    Signature(SlowCause("contention", "possible"), _waits_for_processor),
    Signature(SlowCause("heat", "likely"), _is_hot),
    Signature(SlowCause("clock", "possible"), _has_lower_clock),
    Signature(SlowCause("storage", "likely"), _waits_for_storage),
    Signature(SlowCause("data", "likely"), _waits_for_data),
    Signature(SlowCause("paging", "possible"), _pages),
    Signature(SlowCause("far-memory", "possible"), _has_far_memory),
    Signature(SlowCause("more-samples", "likely"), _has_more_samples),
    Signature(SlowCause("work-or-bandwidth", "possible"), _computes_longer),
)
"""The more specific before those that resemble them: throttled time is also time in the run queue."""
