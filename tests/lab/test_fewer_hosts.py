"""A run that loses a host goes on with the others, with an mpirun and without."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from faults.lost_node import CASES, LossRound
from faults.rounds import chance_of, play_round
from faults.stage import FaultLab
from ipexctl.addons.lab.lab_plan import LabSpec
from ipexctl.addons.lab.lab_record import Lab
from lab_run_helpers import new_cluster

MPI_LAB = LabSpec(hosts=4)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]
SEED = int(os.environ.get("IPEXCTL_TESTS_SEED") or time.time())
"""Decides the host and the moment; a failure prints it."""


@pytest.fixture(scope="module")
def stage(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultLab]:
    stage = FaultLab(new_cluster(lab, tmp_path_factory.mktemp("losses")))
    stage.prepare()
    yield stage
    stage.release()


@pytest.mark.parametrize(
    ("by", "name"),
    [
        ("mpirun", "a host is lost in a step"),
        ("direct", "a host is lost in a step"),
        ("mpirun", "node0 is cut off, and goes on alone"),
    ],
)
def test_run_that_loses_a_host_goes_on_with_the_others(stage: FaultLab, by: str, name: str) -> None:
    found = next(case for case in CASES if case.name == name)
    case = replace(found, by=by)
    played = play_round(LossRound(stage, case, chance_of(case, SEED, 1)), 1)
    assert not played.wrong, f"IPEXCTL_TESTS_SEED={SEED}\n{played.line}"
