"""Rounds of syncs, pushes, fetches and installs on three hosts, at random moments."""

from __future__ import annotations

from lab_run_helpers import lab_with_mpi

from .rounds import Kind
from .stage import new_stage
from .transfers import TRANSFER_CASES, TransferRound

KIND = Kind(
    "syncs, pushes, fetches and installs on three hosts",
    TRANSFER_CASES,
    lambda base: new_stage(base, lambda lab: lab_with_mpi(lab, base), hosts=3),
    TransferRound,
)
