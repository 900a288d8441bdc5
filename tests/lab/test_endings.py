"""The ends of runs on real hosts with Intel MPI: nothing is left, and the verdict is right."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

from faults.happenings import HAPPENINGS
from faults.play import Play
from faults.stage import Stage
from ipexctl.lab import LabSpec, break_host, mend_host
from lab_run_helpers import Cluster, by_rank, lab_with_mpi, new_cluster, session_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from faults.happenings import Happening
    from ipexctl.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]
NUMBERED = """\
import os, sys, time
for n in range(int(sys.argv[1])):
    print("line", n, flush=True)
    time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def stage(make_lab: Callable[[LabSpec], Lab], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    lab = lab_with_mpi(make_lab(LabSpec(hosts=3, name=f"endlab-{os.getpid()}")), session_dir(tmp_path_factory))
    base = tmp_path_factory.mktemp("endings")
    (base / "project").mkdir()
    stage = Stage(Cluster(lab, base / "project", base / "state"))
    stage.prepare()
    yield stage
    stage.release()


@pytest.fixture
def cluster(stage: Stage, tmp_path: Path) -> Cluster:
    return new_cluster(stage.cluster.lab, tmp_path)


@pytest.mark.parametrize("happening", HAPPENINGS, ids=lambda happening: happening.name.replace(" ", "-"))
def test_what_is_said_of_a_run_is_what_happened_to_it(stage: Stage, happening: Happening) -> None:
    if happening.needs_memory and not stage.groups:
        pytest.skip("no memory cgroup of version 1 here that we may write to")
    assert Play(stage, happening, random.Random(happening.name)).play().gone >= 0


def test_a_node0_that_cannot_be_reached_is_attached_to_once_it_can(cluster: Cluster) -> None:
    cluster.write("numbered.py", NUMBERED)
    run = cluster.run("--ppn", "1", "--detach", "numbered.py", "200").out.strip()
    node0 = cluster.lab.hosts[0]
    break_host(node0, "sshd-dead")
    try:
        refused = cluster.call("attach", run)
    finally:
        mend_host(cluster.lab.host(node0.name) or node0)
    assert refused.rc == 3, refused.err
    attached = cluster.call("attach", run)
    assert attached.rc == 0, attached.err
    assert by_rank(attached.out) == {rank: [f"line {n}" for n in range(200)] for rank in range(3)}
