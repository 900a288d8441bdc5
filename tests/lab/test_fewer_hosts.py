"""A run that loses a host goes on with the others, with an mpirun and without."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from agent_helpers import wait_until
from faults.lost_node import CASES, LossRound
from faults.rounds import chance_of, play_round
from faults.stage import FaultLab
from ipexctl.extras.lab.lab_plan import LabSpec
from ipexctl.extras.lab.lab_record import Lab
from ipexctl.node.common.liveness import LEASE_LIMITS
from lab_run_helpers import WAIT_SCRIPT, new_cluster
from message_data import missing

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


def test_host_that_waits_keeps_its_tree_until_the_run_is_over(stage: FaultLab) -> None:
    cluster = stage.cluster
    cluster.write("wait.py", WAIT_SCRIPT)
    began = cluster.begin("--ppn", "1", "--spares", "1", "--max-restarts", "1", "--checkpoint", "kept", "wait.py")
    began.wait_for("here", times=3)
    reserved = f".ipexctl/runs/{began.id}/reserved"
    assert cluster.on(3, f"ls {reserved}").strip() == reserved
    where = ("-H", cluster.lab.hostfile, "-l", "node4")
    refused = cluster.call("uninstall", *where, "--dry-run")
    assert missing(refused.err + refused.out, f"alive ipexctl stop {began.id}") == []
    time.sleep(LEASE_LIMITS.files + 1)
    cluster.write("wait.py", f"# changed\n{WAIT_SCRIPT}")
    cluster.good("sync", *where)
    assert len(cluster.on(3, "ls -d .ipexctl/code/project-*").split()) == 2, "the run may still begin there"
    cluster.good("stop", began.id)
    assert began.end() == 143
    wait_until(lambda: not cluster.on(3, f"ls {reserved} 2>/dev/null || true"))
