"""Faults during runs on real hosts with Intel MPI: no processes remain, and the report is correct."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator

import pytest

from faults.fault_cases import FAULT_CASES, FaultCase
from faults.play import FaultRound, WrongReport
from faults.random_cases import RANDOM_CASES
from faults.rounds import play_round
from faults.stage import FaultLab
from faults.transfers import TRANSFER_CASES
from ipexctl.lab import Lab, LabSpec, break_host, mend_host
from lab_run_helpers import Cluster, by_rank, new_cluster

MPI_LAB = LabSpec(hosts=3, name=f"endlab-{os.getpid()}")
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]
SEED = int(os.environ.get("IPEXCTL_TESTS_SEED") or time.time())
"""Decides the moments of the faults; a failure prints it."""
NUMBERED = """\
import os, sys, time
for n in range(int(sys.argv[1])):
    print("line", n, flush=True)
    time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def stage(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultLab]:
    stage = FaultLab(new_cluster(lab, tmp_path_factory.mktemp("endings")))
    stage.prepare()
    yield stage
    stage.release()


@pytest.mark.parametrize("case", FAULT_CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_reported_run_result_matches_the_injected_fault(stage: FaultLab, case: FaultCase) -> None:
    if case.needs_memory and not stage.groups:
        pytest.skip("no memory cgroup of version 1 here that we may write to")
    try:
        FaultRound(stage, case, random.Random(f"{SEED}/{case.name}")).play()
    except WrongReport as wrong:
        pytest.fail(f"IPEXCTL_TESTS_SEED={SEED}: {wrong}")


@pytest.mark.parametrize(
    "name",
    [
        "it is stopped from elsewhere",
        "connections are reset",
        "ranks fail and it restarts",
        "it is stopped between two attempts",
        "the call gets SIGINT as it starts the run",
        "sync is disturbed",
    ],
    ids=lambda name: name.replace(" ", "-"),
)
def test_random_moment_of_a_fault_leaves_the_right_report_and_nothing_else(stage: FaultLab, name: str) -> None:
    case = next(case for case in (*RANDOM_CASES, *TRANSFER_CASES) if case.name == name)
    played = play_round(stage, case, SEED, 1)
    assert played.wrong == "", f"IPEXCTL_TESTS_SEED={SEED}: {played.line}"


def test_attach_works_after_node0_is_reachable_again(cluster: Cluster) -> None:
    cluster.write("numbered.py", NUMBERED)
    run = cluster.run("--ppn", "1", "--detach", "numbered.py", "200").out.strip()
    node0 = cluster.lab.hosts[0]
    break_host(node0, "sshd-dead")
    try:
        refused = cluster.call("attach", run)
    finally:
        mend_host(cluster.lab.host(node0.name) or node0)
    assert refused.rc == 3, refused.err
    assert by_rank(cluster.good("attach", run)) == {rank: [f"line {n}" for n in range(200)] for rank in range(3)}
