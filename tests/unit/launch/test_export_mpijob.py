"""Exported MPIJobs are valid for mpi-operator, and their mpirun arguments match the plan."""

from __future__ import annotations

import shlex
import subprocess
from typing import Any

import pytest
from custom_resources import checked
from launch_helpers import IPEX, cpu, machine, plan

from ipexctl.extras.export.mpijob import label, to_mpijob
from ipexctl.node.common.asked import Export
from ipexctl.node.common.plan import Plan
from message_data import missing

TWO = (machine(cpu(4), 1), machine(cpu(4), 2))


def job_of(made: Plan, name: str = "train", **more: Any) -> dict[str, Any]:
    return checked("mpijob", to_mpijob(made, name, "me/train", **more).text)


def script_of(job: dict[str, Any]) -> str:
    (container,) = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
    shell, flag, script = container["command"]
    assert (shell, flag) == ("sh", "-c")
    done = subprocess.run(["sh", "-n"], input=script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return str(script).replace("\\\n", "")


def test_an_mpijob_has_a_worker_for_each_host() -> None:
    job = job_of(plan(*TWO, env=IPEX, ppn=2), "My_Train.py", threads_per_core=2)
    spec = job["spec"]
    assert (spec["slotsPerWorker"], spec["mpiImplementation"]) == (2, "Intel")
    launcher, worker = (spec["mpiReplicaSpecs"][name] for name in ("Launcher", "Worker"))
    assert (launcher["replicas"], worker["replicas"]) == (1, 2)
    (container,) = worker["template"]["spec"]["containers"]
    # Kubernetes counts the threads of a core
    assert container == {"name": "worker", "image": "me/train", "resources": {"limits": {"cpu": 8}}}
    words = shlex.split(script_of(job), comments=True)
    assert words[words.index("mpirun") + 1 :][:2] == ["-n", "4"]
    assert words[-4:] == ["python", "train.py", "--epochs", "3"]
    assert words[words.index("CCL_WORKER_COUNT") - 1 :][:3] == ["-genv", "CCL_WORKER_COUNT", "1"]


def test_worker_memory_limit_is_nine_tenths_of_the_smallest_host() -> None:
    worker = job_of(plan(*TWO, env=IPEX), memory=64 << 30)["spec"]["mpiReplicaSpecs"]["Worker"]
    assert worker["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"] == "57Gi"


@pytest.mark.parametrize(("flavor", "called"), [("intel", "Intel"), ("openmpi", "OpenMPI"), ("mpich", "MPICH")])
def test_mpi_implementation_and_variables_depend_on_the_flavor(flavor: str, called: str) -> None:
    made = plan(*TWO, exports=(Export("A", "-x", "it's\nx"),), time_limit=90.5)._replace(flavor=flavor)
    job = job_of(made, restarts=2)
    assert job["spec"]["mpiImplementation"] == called
    assert job["spec"]["runPolicy"] == {"cleanPodPolicy": "Running", "backoffLimit": 2, "activeDeadlineSeconds": 90}
    words = shlex.split(script_of(job), comments=True)
    assert ("A=it's\nx" in words) == (flavor == "openmpi")
    assert ("it's\nx" in words) == (flavor != "openmpi")


def test_paths_of_the_hosts_are_left_out_of_the_job() -> None:
    made = plan(*TWO, ppn=2)
    found = to_mpijob(made, "train", "me/train")
    assert made.python.removesuffix("/bin/python") not in found.text
    assert any("I_MPI_ROOT" in note for note in found.notes)


@pytest.mark.parametrize(
    ("name", "label_"),
    [
        ("a.b/C", "a-b-c"),
        ("--", "run"),
        ("x" * 80, "x" * 40),
        ("1st", "run-1st"),
        ("ünï", "n"),
        ("a-" * 30, "a-" * 19 + "a"),
    ],
)
def test_names_become_valid_kubernetes_names(name: str, label_: str) -> None:
    assert label(name) == label_
    assert job_of(plan(TWO[0], mpi="intel"), name)["metadata"] == {"name": label_}


def test_kubernetes_does_not_replace_variables_in_the_words_of_the_call() -> None:
    words = ("python", "train.py", "$(HOME)", "a$$b", "$plain")
    script = script_of(job_of(plan(*TWO)._replace(command=words)))
    assert shlex.split(script, comments=True)[-3:] == ["$$(HOME)", "a$$$$b", "$$plain"]


def test_secrets_are_left_out_of_the_job() -> None:
    found = to_mpijob(plan(TWO[0], mpi="intel", exports=(Export("HIDDEN", "-x", None),)), "train", "me/train")
    assert "HIDDEN" not in found.text
    assert any(missing(note, "HIDDEN Secret") == [] for note in found.notes)
