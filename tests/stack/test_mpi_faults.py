"""A fault with the mpirun of Intel MPI or of Open MPI, another one each day: `python -m tools.faults mpi` plays all."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from real_helpers import require_lab, require_package

from faults import mpi
from faults.rounds import chance_of, choose, play_round

pytestmark = [pytest.mark.stack, pytest.mark.timeout(600)]


def test_what_a_fault_of_an_mpi_leaves_and_reports_is_true(tmp_path: Path) -> None:
    require_lab()
    require_package("impi-rt")
    seed = int(time.time() // 86_400)
    case = choose(mpi.KIND.cases, seed, 1)
    with mpi.KIND.stage(tmp_path) as stage:
        played = play_round(mpi.KIND.new_round(stage, case, chance_of(case, seed, 1)), 1)
    assert not played.wrong or played.excuse, f"seed {seed}: {played.line}"
