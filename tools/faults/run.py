"""Rounds of runs, syncs and installs on three hosts, at random moments."""

from __future__ import annotations

import random

from lab_run_helpers import lab_with_mpi

from .breaks import BREAKS
from .fault_cases import FAULT_CASES, FaultCase
from .play import FaultRound
from .random_cases import RANDOM_CASES
from .rounds import Kind
from .stage import FaultLab, new_stage
from .transfers import TRANSFER_CASES, TransferCase, TransferRound

CASES = (*FAULT_CASES, *RANDOM_CASES, *TRANSFER_CASES)


def new_round(stage: FaultLab, case: FaultCase | TransferCase, chance: random.Random) -> FaultRound | TransferRound:
    if isinstance(case, TransferCase):
        return TransferRound(stage, case, chance)
    return FaultRound(stage, case, chance, is_thorough=True, ppn=chance.choice([1, 2]))


KIND = Kind(
    "runs, syncs and installs on three hosts",
    CASES,
    lambda base: new_stage(base, lambda lab: lab_with_mpi(lab, base), hosts=3),
    new_round,
    breaks=BREAKS,
)
