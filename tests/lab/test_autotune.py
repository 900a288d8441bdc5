"""Trials on real hosts: what they measure, what they refuse, and that nothing of them stays."""

from __future__ import annotations

import hashlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_helpers import wait_until
from cli_helpers import processes_with
from ipexctl.extras.lab.labs import LabSpec
from lab_run_helpers import Cluster

MPI_LAB = LabSpec(hosts=3)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

TRAIN = """\
import importlib, os, sys, threading, time
sys.path.append(os.environ["IPEXCTL_RUN_DIR"].replace("/results/", "/runs/") + "/shim")
module = importlib.import_module("ipexctl_inrank.meter_ring")  # the package beside the hooks of a rank
RingWriter, Totals = module.RingWriter, module.Totals
ring, step = RingWriter(os.environ["IPEXCTL_METER"]), 0
begun, thread = time.monotonic_ns(), threading.get_native_id() << 32
length = 0.19 if os.environ["OMP_NUM_THREADS"] == "1" else 0.2
assert os.environ["WANDB_MODE"] == "disabled"
open("checkpoint", "x").close()
for step in range(1, 101):
    ring.write(Totals(begun + int(step * length * 1e9), step, 8 * step, 0, 0, thread))
time.sleep(600)
"""
"""With one thread a step is a little shorter; all steps are there at once."""


@pytest.fixture
def cluster(cluster: Cluster) -> Iterator[Cluster]:
    cluster.write("train.py", TRAIN)
    yield cluster
    for run in cluster.runs():
        cluster.call("stop", run["id"])


def content(project: Path) -> str:
    files = sorted(path for path in project.rglob("*") if path.is_file())
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(project)} {path.stat().st_mtime_ns}".encode() + path.read_bytes())
    return digest.hexdigest()


def remains(cluster: Cluster) -> list[str]:
    """What is left of trials on the hosts."""
    found = "ls -d ~/.ipexctl/code/*trial* ~/.ipexctl/runs/train-* ~/.ipexctl/results/train-* 2>/dev/null"
    return [*(line for index in range(3) for line in cluster.on(index, f"{found}; :").split()), *processes(cluster)]


def processes(cluster: Cluster) -> list[str]:
    return processes_with(cluster.lab, "train.py")


def options(cluster: Cluster) -> tuple[object, ...]:
    return ("autotune", "-H", cluster.lab.hostfile, "--ppn", "1", "--omp", "2", "--only", "omp", "--budget", "1")


def test_trials_measure_and_leave_nothing(cluster: Cluster) -> None:
    before = content(cluster.project)
    found = json.loads(cluster.good(*options(cluster), "--json", "train.py"))
    rates = {trial["settings"].get("omp", "2"): trial["steps_per_s"] for trial in found["trials"]}
    assert rates == {"1": pytest.approx(1 / 0.19), "2": pytest.approx(5.0)}
    assert {trial["samples_per_step"] for trial in found["trials"]} == {24.0}
    assert found["ending"] == "no-better-candidate"  # the budget is too short for a second block
    assert content(cluster.project) == before
    assert remains(cluster) == []
    assert cluster.runs() == []


def test_a_path_that_trials_could_write_is_refused(cluster: Cluster) -> None:
    for argument in ("--out=/tmp", "../out"):
        refused = cluster.call(*options(cluster), "train.py", argument)
        assert refused.rc == 2
        assert argument.removeprefix("--out=") in refused.err
        foreseen = cluster.call(*options(cluster), "--dry-run", "train.py", argument)
        assert (foreseen.rc, foreseen.out) == (2, "")
        assert foreseen.err.endswith(refused.err[-100:])
    nothing = cluster.call(*options(cluster), "--dry-run", "--resume", "train.py")
    assert (nothing.rc, "leave out --resume" in nothing.err) == (2, True)
    assert remains(cluster) == []


def test_ctrl_c_ends_the_trial(cluster: Cluster) -> None:
    running = cluster.begin_call(*options(cluster), "train.py")
    wait_until(lambda: len(processes(cluster)) >= 3, 60, running.said)
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(60) == 130, running.said()
    assert "--resume" in running.out.read_text()
    wait_until(lambda: remains(cluster) == [], 20, lambda: remains(cluster))
    assert cluster.runs() == []


def test_a_killed_call_leaves_nothing_that_the_next_one_does_not_remove(cluster: Cluster) -> None:
    before = content(cluster.project)
    running = cluster.begin_call(*options(cluster), "train.py")
    wait_until(lambda: "[1, " in running.said() and len(processes(cluster)) >= 3, 60, running.said)
    second = cluster.call(*options(cluster), "train.py")
    assert second.rc == 2, "a project has one search at a time"
    running.process.kill()
    running.process.wait(10)
    assert cluster.runs() != []
    found = json.loads(cluster.good(*options(cluster), "--resume", "--json", "train.py"))
    assert (found["ending"], len(found["trials"])) == ("no-better-candidate", 2)
    assert remains(cluster) == []
    assert cluster.runs() == []
    assert content(cluster.project) == before
