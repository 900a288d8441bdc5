"""The example of fewer hosts: three, then two, then three again train as three that are not disturbed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final

import pytest
from real_helpers import EXAMPLES, real_lab

from ipexctl.extras.lab.fault_injection import break_host, mend_host
from lab_run_helpers import Cluster, new_cluster

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

DISK_NEEDED: Final = 9e9
STEPS: Final = 600
_LOSS: Final = re.compile(r"step (\d+)/\d+ loss (\d\.\d+)")
_START: Final = re.compile(r"(\d) of 3 ranks go on from step (\d+)")


def losses(out: str) -> dict[int, list[float]]:
    """Of each step as often as it was trained."""
    found: dict[int, list[float]] = {}
    for step, loss in _LOSS.findall(out):
        found.setdefault(int(step), []).append(float(loss))
    return found


def test_a_host_is_lost_and_comes_back_and_the_losses_go_on(tmp_path: Path) -> None:
    with real_lab("fewer", 3, disk=DISK_NEEDED) as lab:
        cluster: Cluster = new_cluster(lab, tmp_path)
        hosts = ("-H", lab.hostfile)
        cluster.good("trust", *hosts)
        cluster.good("install", *hosts, "--stack", "torch", timeout=600)
        script = ("fewer_hosts.py", "--steps", STEPS)
        options = ("--plain", "--ppn", "1", "-x", "OMP_NUM_THREADS=1")
        (tmp_path / "alone").mkdir()
        alone = new_cluster(lab, tmp_path / "alone")
        for project in (cluster.project, alone.project):
            shutil.copy(EXAMPLES / "fewer_hosts.py", project)
        undisturbed = losses(alone.run(*options, *script).out)

        pooled = ("--min-hosts", "2", "--rejoin", "--max-restarts", "5", "--checkpoint", "checkpoints")
        began = cluster.begin(*options, *pooled, *script, "--pace", "0.2")
        began.wait_for("step 60/")
        lost = break_host(lab.hosts[2], "link-down")
        began.wait_for("2 of 3 ranks go on from step", timeout=120)
        began.wait_for("step", times=began.said().count("step") + 1)
        mend_host(lost, "link-down")
        began.wait_for("3 of 3 ranks go on from step", times=2, timeout=120)
        assert began.end(timeout=200) == 0, began.said()

        starts = [(int(ranks), int(step)) for ranks, step in _START.findall(began.said())]
        assert [ranks for ranks, _ in starts] == [3, 2, 3]
        assert 0 == starts[0][1] < 60 <= starts[1][1] < starts[2][1]
        trained = losses(began.said())
        assert trained.keys() == undisturbed.keys()
        for step, found in trained.items():
            assert found == pytest.approx(undisturbed[step] * len(found), abs=2e-3), step
