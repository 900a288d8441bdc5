"""Faults during runs on real hosts with Intel MPI: no processes remain, and the report is correct."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from faults.fault_cases import FAULT_CASES, FaultCase
from faults.play import FaultRound
from faults.stage import FaultLab
from ipexctl.lab import Lab, LabSpec, break_host, mend_host
from lab_run_helpers import Cluster, by_rank, new_cluster

MPI_LAB = LabSpec(hosts=3, name=f"endlab-{os.getpid()}")
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]
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


@pytest.mark.parametrize("happening", FAULT_CASES, ids=lambda happening: happening.name.replace(" ", "-"))
def test_reported_run_result_matches_the_injected_fault(stage: FaultLab, happening: FaultCase) -> None:
    if happening.needs_memory and not stage.groups:
        pytest.skip("no memory cgroup of version 1 here that we may write to")
    assert FaultRound(stage, happening, random.Random(happening.name)).play().gone >= 0


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
