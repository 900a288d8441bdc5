"""A plan as a Kubeflow MPIJob (kubeflow.org/v2beta1): a launcher, and a worker for each host of the plan. Pure."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any, Final

from ipexctl.export.common import Exported, differing, everywhere, left_out, secrets_of, words

if TYPE_CHECKING:
    from ipexctl.launch.plan import Flavor, LaunchPlan

IMPLEMENTATION: Final[dict[Flavor, str]] = {"intel": "Intel", "openmpi": "OpenMPI", "mpich": "MPICH"}
RANK: Final = (
    "export RANK=${PMI_RANK:-$OMPI_COMM_WORLD_RANK} WORLD_SIZE=${PMI_SIZE:-$OMPI_COMM_WORLD_SIZE}; "
    "export LOCAL_RANK=${MPI_LOCALRANKID:-$OMPI_COMM_WORLD_LOCAL_RANK}; "
    "export LOCAL_WORLD_SIZE=${MPI_LOCALNRANKS:-$OMPI_COMM_WORLD_LOCAL_SIZE}; "
    'exec "$@"'
)
OF_NODES: Final = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "FI_TCP_IFACE", "CCL_WORKER_AFFINITY", "LD_PRELOAD")
PORT: Final = 29500
"""Each pod has an address of its own: nobody else listens there."""


def to_mpijob(plan: LaunchPlan, name: str, image: str) -> Exported:
    """`image`: one that has the environment, the project in its working directory, an mpirun and an sshd."""
    import yaml  # costs start-up

    slots = max(len(host.ranks) for host in plan.hosts)
    cores = max(sum(len(rank.cores) + len(rank.ccl_cores) for rank in host.ranks) for host in plan.hosts) or 1
    job: dict[str, Any] = {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": label(name)},
        "spec": {
            "slotsPerWorker": slots,
            "mpiImplementation": IMPLEMENTATION[plan.flavor],
            "runPolicy": {
                "cleanPodPolicy": "Running",
                **({"activeDeadlineSeconds": int(plan.time_limit)} if plan.time_limit is not None else {}),
            },
            "mpiReplicaSpecs": {
                "Launcher": _replicas(1, {"name": "launcher", "image": image, "command": _command(plan)}),
                "Worker": _replicas(
                    len(plan.hosts),
                    {"name": "worker", "image": image, "resources": {"limits": {"cpu": cores}}},
                ),
            },
        },
    }
    notes = [
        f"the image {image} is yours to build: the environment, the project in its working directory, mpirun and sshd",
        *left_out(plan, OF_NODES, "left out, they belong to the machines of this plan and not to pods"),
        *left_out(plan, [each for each in differing(plan) if each not in OF_NODES], "left out, hosts differ in it"),
    ]
    if secret := secrets_of(plan):
        notes.append(f"{', '.join(secret)}: put them into a Secret and name it in both templates")
    return Exported(yaml.safe_dump(job, sort_keys=False, width=110), tuple(notes))


def label(name: str) -> str:
    """As Kubernetes wants names: 63 characters of a-z, 0-9 and -."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-") or "run"


def _replicas(count: int, container: dict[str, Any]) -> dict[str, Any]:
    return {"replicas": count, "template": {"spec": {"containers": [container]}}}


def _command(plan: LaunchPlan) -> list[str]:
    passed = [
        setting for setting in everywhere(plan, without=OF_NODES) if setting.value is not None and not setting.prepend
    ]
    variables = {setting.name: setting.value or "" for setting in passed}
    each = str(plan.world_size)
    if plan.flavor == "openmpi":
        words_of_mpi = ["mpirun", "--allow-run-as-root", "-n", each, "--bind-to", "none"]
        words_of_mpi += [word for name, value in variables.items() for word in ("-x", f"{name}={value}")]
        words_of_mpi += ["-x", "MASTER_ADDR", "-x", "MASTER_PORT"]
    else:
        words_of_mpi = ["mpirun", "-n", each]
        words_of_mpi += [word for name, value in variables.items() for word in ("-genv", name, value)]
    script = (
        "export MASTER_ADDR=$(head -n 1 /etc/mpi/hostfile | sed 's/[: ].*//') "
        f"MASTER_PORT={PORT}; exec {shlex.join(words_of_mpi)} sh -c {shlex.quote(RANK)} rank {_executed(plan)}"
    )
    return ["sh", "-c", script]


def _executed(plan: LaunchPlan) -> str:
    """An image has its own Python first on its path, not ours at the path of some host."""
    return words(plan).replace(shlex.quote(plan.python), "python", 1)
