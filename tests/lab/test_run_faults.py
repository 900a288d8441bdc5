"""Faults during runs on real hosts with Intel MPI: no processes remain, and the report is correct."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from faults.fault_cases import FAULT_CASES, FaultCase
from faults.play import FaultRound
from faults.rounds import Round, chance_of, play_round
from faults.run import CASES, new_round
from faults.stage import FaultLab
from ipexctl.addons.lab.lab_plan import LabSpec
from ipexctl.addons.lab.lab_record import Lab
from lab_run_helpers import new_cluster

MPI_LAB = LabSpec(hosts=3)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]
SEED = int(os.environ.get("IPEXCTL_TESTS_SEED") or time.time())
"""Decides the moments of the faults; a failure prints it."""
PROVEN_ELSEWHERE = {
    "nothing": "test_run.py; what a run that ends well leaves is compared here after the call was killed",
    "a rank raises": "test_run.py; its report and the end of the others are compared here beside a full disk",
    "a rank is killed": "test_run.py, and here for want of memory",
    "the call gets SIGINT": "test_run.py; to the run it is as if it is stopped from elsewhere",
    "a wrapper is told to end": "process/test_supervisor.py",
    "node0's disk is full for a while": "process/test_supervisor.py, and here as a rank raises",
    "node0 is cut off": "unit/node/run/decisions/test_verdict.py: the verdict; process/test_rank.py: ranks that "
    "lose it; test_run_followed.py: the call. A round waits for a minute",
    "a rank exits 3": "test_run.py, with 7, and its report is that of a rank that raises",
    "a rank raises and doesn't end": "process/test_stack_dumps.py; it then ends as a rank that raises",
    "all hang, and it is stopped": "test_why.py and process/test_run_lifecycle.py",
    "the call is hung up on": "process/test_attach.py; to the run it is as if the call is killed",
    "the call gets SIGTERM": "process/test_signals.py; to the run it is as if it is stopped from elsewhere",
    "mpirun is told to end": "here as mpirun is killed",
    "node0's disk is full to the end": "process/test_supervisor.py and process/test_attach.py",
}
"""Cases that only `python -m tools.faults run` plays, and which tests have what they would show here."""
assert PROVEN_ELSEWHERE.keys() <= {case.name for case in FAULT_CASES}


@pytest.fixture(scope="module")
def stage(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultLab]:
    stage = FaultLab(new_cluster(lab, tmp_path_factory.mktemp("endings")))
    stage.prepare()
    yield stage
    stage.release()


@pytest.mark.parametrize(
    "case",
    [case for case in FAULT_CASES if case.name not in PROVEN_ELSEWHERE],
    ids=lambda case: case.name.replace(" ", "-"),
)
def test_reported_run_result_matches_the_injected_fault(stage: FaultLab, case: FaultCase) -> None:
    if not case.is_possible:
        pytest.skip("no memory cgroup of version 1 here that we may write to")
    check(FaultRound(stage, case, chance_of(case, SEED, 1)), 1)


@pytest.mark.parametrize(
    ("name", "rounds"),
    [
        ("it is stopped from elsewhere", 1),
        ("connections are reset", 1),
        ("ranks fail and it restarts", 1),
        ("it is stopped between two attempts", 1),
        ("the call gets SIGINT as it starts the run", 2),
        ("sync is disturbed", 1),
    ],
    ids=lambda given: str(given).replace(" ", "-"),
)
def test_random_moment_of_a_fault_leaves_the_right_report_and_nothing_else(
    stage: FaultLab, name: str, rounds: int
) -> None:
    case = next(case for case in CASES if case.name == name)
    for number in range(1, rounds + 1):
        check(new_round(stage, case, chance_of(case, SEED, number)), number)


def check(round_: Round, number: int) -> None:
    played = play_round(round_, number)
    assert played.wrong == "", f"IPEXCTL_TESTS_SEED={SEED}: {played.line}"
