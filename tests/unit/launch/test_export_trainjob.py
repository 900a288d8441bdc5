"""Exported TrainJobs are valid for Kubeflow Trainer, and torchrun starts the ranks of the plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jsonschema
import pytest
import yaml
from custom_resources import checked
from launch_helpers import IPEX, cpu, machine, plan

from ipexctl.errors import UserError
from ipexctl.extras.export.trainjob import to_trainjob
from ipexctl.launch.plan import LaunchPlan
from ipexctl.spec import Export
from message_data import missing

TWO = (machine(cpu(4), 1), machine(cpu(4), 2))


def job_of(made: LaunchPlan, name: str = "train", **more: Any) -> dict[str, Any]:
    return checked("trainjob", to_trainjob(made, name, "me/train", **more).text)


def variables_of(job: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in job["spec"]["trainer"]["env"] if "value" in entry}


def test_a_trainjob_has_a_node_for_each_host() -> None:
    job = job_of(plan(*TWO, backend="gloo", ppn=2, time_limit=90.5), "My_Train.py", threads_per_core=2, memory=64 << 30)
    assert (job["apiVersion"], job["kind"]) == ("trainer.kubeflow.org/v1alpha1", "TrainJob")
    assert job["metadata"] == {"name": "my-train-py"}
    assert job["spec"]["runtimeRef"]["name"] == "torch-distributed"
    assert job["spec"]["activeDeadlineSeconds"] == 90
    trainer = job["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"], trainer["image"]) == (2, 2, "me/train")
    assert trainer["resourcesPerNode"] == {"limits": {"cpu": 8, "memory": "57Gi"}}
    assert trainer["command"] == ["torchrun", "--no-python", "python", "train.py", "--epochs", "3"]


def test_the_schema_refuses_a_field_that_it_lacks() -> None:
    text = to_trainjob(plan(*TWO, backend="gloo"), "train", "me/train").text
    job = yaml.safe_load(text)
    job["spec"]["trainer"]["replicas"] = 2
    with pytest.raises(jsonschema.ValidationError):
        checked("trainjob", yaml.safe_dump(job))
    with pytest.raises(jsonschema.ValidationError):
        checked("trainjob", text.replace("numNodes: 2", "numNodes: '2'"))


def test_only_variables_that_suit_a_pod_are_in_it() -> None:
    made = plan(*TWO, env=IPEX, backend="gloo", ppn=2, exports=(Export("PET_NNODES", "9"), Export("A", "$(HOME)\n$$")))
    values = {setting.name: setting.value for setting in made.settings}
    assert values["KMP_AFFINITY"]
    found = to_trainjob(made, "train", "me/train")
    variables = variables_of(checked("trainjob", found.text))
    # Kubernetes replaces $(NAME) and $$.
    assert variables["A"] == "$$(HOME)\n$$$$"
    assert variables["OMP_NUM_THREADS"] == values["OMP_NUM_THREADS"]
    assert [
        name for name in variables if name.startswith(("PET_", "I_MPI", "FI_", "KMP_AFF", "GLOO", "MASTER", "RANK"))
    ] == []
    assert not any(made.python.removesuffix("/bin/python") in value for value in variables.values())
    for name in ("KMP_AFFINITY", "I_MPI_FABRICS", "GLOO_SOCKET_IFNAME"):
        assert any(name in note for note in found.notes), name


def test_a_secret_is_a_reference_and_the_note_has_the_command_that_makes_it() -> None:
    found = to_trainjob(plan(TWO[0], backend="gloo", exports=(Export("HIDDEN", "", secret=True),)), "train", "me/train")
    *_, entry = checked("trainjob", found.text)["spec"]["trainer"]["env"]
    assert entry == {"name": "HIDDEN", "valueFrom": {"secretKeyRef": {"name": "train-secrets", "key": "HIDDEN"}}}
    assert any(missing(note, "kubectl secret train-secrets --from-env-file") == [] for note in found.notes)


def test_options_of_the_rank_wrapper_stand_before_the_command() -> None:
    made = replace(plan(*TWO, backend="gloo"), rank_options={"nice": 5}, command=("env", "$(A)"))
    command = job_of(made)["spec"]["trainer"]["command"]
    assert command == ["torchrun", "--no-python", "nice", "-n", "5", "env", "$$(A)"]


def test_hosts_with_different_numbers_of_ranks_are_told() -> None:
    found = to_trainjob(plan(*TWO, n=3, backend="gloo"), "train", "me/train")
    assert checked("trainjob", found.text)["spec"]["trainer"]["numProcPerNode"] == 2
    assert any(missing(note, "2 4 3") == [] for note in found.notes)


def test_threads_of_a_rank_are_the_fewest_of_all_hosts() -> None:
    # node1 has two ranks of two cores, node2 one of four; torchrun would take 1.
    assert variables_of(job_of(plan(*TWO, n=3, backend="gloo")))["OMP_NUM_THREADS"] == "2"


@pytest.mark.parametrize("backend", ["ccl", "mpi", "none"])
def test_other_backends_are_refused(backend: Any) -> None:
    made = replace(plan(*TWO, env=IPEX), backend=backend)
    with pytest.raises(UserError) as refused:
        to_trainjob(made, "train", "me/train")
    assert missing(refused.value.fix or "", "export" if backend == "none" else "--backend gloo mpijob") == []
