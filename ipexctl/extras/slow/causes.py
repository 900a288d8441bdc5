"""Causes of a slow rank: a table of signatures over what was measured. Pure.

The first signature in `SIGNATURES` that fits the `Evidence` names the cause. A cause must explain at least EXPLAINS of
the rank's additional own time. A rank with more work waits longer for crowded cores, too, which does not prove another
program. A cause that others resemble is `possible`; without a fitting signature the evidence is `insufficient`, and
nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from ipexctl.node.run.replies import SuspectLook

CauseKind = Literal["other-programs", "slower-cores", "data", "memory", "more-work", "unknown"]
Confidence = Literal["likely", "possible", "insufficient"]
EXPLAINS: Final = 0.5
UNSEEN_SHARE: Final = 0.2
"""Of a processor: time without a visible process is the difference of rough figures."""
LOWER_CLOCK: Final = 0.95
FAULTS: Final = 10.0
"""Per second, more than the others."""
MORE_SAMPLES: Final = 1.05


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one rank used in its slow windows. `…_more`: the difference to the median of the others; None if unknown."""

    own: float
    """In parts of a step."""
    usual_own: float
    cpu_more: float | None = None
    queue_more: float | None = None
    data_more: float | None = None
    usual_cpu: float | None = None
    usual_queue: float | None = None
    samples_ratio: float | None = None
    """Samples per second, relative to the others."""
    faults_more: float | None = None
    mhz: float | None = None
    usual_mhz: float | None = None
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

    @property
    def has_more_samples(self) -> bool:
        return (self.samples_ratio or 0.0) >= MORE_SAMPLES

    def explains(self, part: float | None) -> bool:
        return part is not None and part >= EXPLAINS * self.more


class SlowCause(NamedTuple):
    kind: CauseKind
    confidence: Confidence


class Signature(NamedTuple):
    cause: SlowCause
    fits: Callable[[Evidence], bool]


def find_cause(evidence: Evidence) -> SlowCause:
    return next((signature.cause for signature in SIGNATURES if signature.fits(evidence)), _UNKNOWN)


def needs_look(cause: SlowCause) -> bool:
    return cause == _CONTENTION


def _has_other_programs(evidence: Evidence) -> bool:
    look = evidence.look
    if look is None or not _waits_for_processor(evidence):
        return False
    unseen = look.unseen_share or 0.0
    seen = sum(process.share for process in look.others)
    return evidence.explains(seen) or (unseen >= UNSEEN_SHARE and evidence.explains(unseen))


def _waits_for_processor(evidence: Evidence) -> bool:
    return evidence.explains(evidence.crowding)


def _computes_longer(evidence: Evidence) -> bool:
    return evidence.explains(evidence.cpu_more)


def _has_lower_clock(evidence: Evidence) -> bool:
    mhz, usual = evidence.mhz, evidence.usual_mhz
    if not mhz or not usual or mhz > LOWER_CLOCK * usual or not _computes_longer(evidence):
        return False
    return evidence.explains((usual / mhz - 1.0) * (evidence.usual_cpu or evidence.usual_own))


def _waits_for_data(evidence: Evidence) -> bool:
    return evidence.explains(evidence.data_more)


def _lacks_memory(evidence: Evidence) -> bool:
    return (evidence.faults_more or 0.0) >= FAULTS


def _has_more_samples(evidence: Evidence) -> bool:
    return _computes_longer(evidence) and evidence.has_more_samples


_UNKNOWN: Final = SlowCause("unknown", "insufficient")
_CONTENTION: Final = SlowCause("other-programs", "possible")
SIGNATURES: Final = (
    Signature(SlowCause("other-programs", "likely"), _has_other_programs),
    Signature(_CONTENTION, _waits_for_processor),
    Signature(SlowCause("slower-cores", "possible"), _has_lower_clock),
    Signature(SlowCause("data", "likely"), _waits_for_data),
    Signature(SlowCause("memory", "possible"), _lacks_memory),
    Signature(SlowCause("more-work", "likely"), _has_more_samples),
    Signature(SlowCause("more-work", "possible"), _computes_longer),
)
"""Specific signatures come before those that resemble them."""
