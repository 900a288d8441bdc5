"""A plan as a Kubeflow MPIJob (kubeflow.org/v2beta1): a launcher and one worker for each host. Pure.

What belongs to single machines is left out (`kubernetes.py`). A worker asks for threads, because Kubernetes counts
those, and for 90 % of the smallest host's memory. The image brings python, mpirun and sshd, as the comments at the top
say.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Final

from ipexctl.extras.export.common import (
    Exported,
    portable_command_line,
    rank_of_mpi,
    require_mpirun,
    require_process_group,
    secrets_of,
)
from ipexctl.extras.export.kubernetes import (
    label,
    limits_of,
    literal,
    manifest,
    pod_variables,
    settings_left_out,
    to_give,
)

if TYPE_CHECKING:
    from ipexctl.node.common.plan import Plan

IMPLEMENTATION: Final[dict[str, str]] = {"intel": "Intel", "openmpi": "OpenMPI", "mpich": "MPICH"}
PORT: Final = 29500
"""A fixed port is free: each pod has its own address."""
IMAGE: Final = (
    "# One image for launcher and workers: python and mpirun first on PATH; the project in its working directory;",
    "# /usr/sbin/sshd, which the operator starts in the workers; an ssh that accepts their host keys without a check.",
)


def to_mpijob(
    plan: Plan, name: str, image: str, *, threads_per_core: int = 1, memory: int | None = None, restarts: int = 0
) -> Exported:
    """`image` must have the environment, the project in its working directory, mpirun and sshd. `memory`: bytes of the
    smallest host; a worker gets the part that its machine can give."""
    require_mpirun(plan, "an MPIJob")
    require_process_group(plan, "an MPIJob")
    slots = max(len(host.ranks) for host in plan.hosts)
    limits = limits_of(plan, threads_per_core, memory)
    job: dict[str, Any] = {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": label(name)},
        "spec": {
            "slotsPerWorker": slots,
            "mpiImplementation": IMPLEMENTATION[plan.flavor],
            "runPolicy": {
                "cleanPodPolicy": "Running",
                **({"backoffLimit": restarts} if restarts else {}),
                **({"activeDeadlineSeconds": int(plan.time_limit)} if plan.time_limit is not None else {}),
            },
            "mpiReplicaSpecs": {
                "Launcher": _replicas(1, {"name": "launcher", "image": image, "command": _command(plan)}),
                "Worker": _replicas(
                    len(plan.hosts), {"name": "worker", "image": image, "resources": {"limits": limits}}
                ),
            },
        },
    }
    notes = [
        f"the image {image} is yours to build: the environment, the project in its working directory, mpirun and sshd",
        *settings_left_out(plan),
    ]
    if secret := secrets_of(plan):
        notes.append(f"{', '.join(secret)}: put them into a Secret and name it in both templates")
    cluster = (
        "Needed in the cluster: the MPI operator of Kubeflow with kubeflow.org/v2beta1, and for each worker "
        f"{to_give(limits)}."
    )
    return Exported(manifest(plan, IMAGE, cluster, job), tuple(notes))


def _replicas(count: int, container: dict[str, Any]) -> dict[str, Any]:
    return {"replicas": count, "template": {"spec": {"containers": [container]}}}


def _command(plan: Plan) -> list[str]:
    variables = pod_variables(plan)
    mpirun = ["exec mpirun"]
    if plan.flavor == "openmpi":
        mpirun += ["--allow-run-as-root --bind-to none", f"-n {plan.world_size}", "-x MASTER_ADDR -x MASTER_PORT"]
        mpirun += [shlex.join(["-x", f"{name}={literal(value)}"]) for name, value in variables.items()]
    else:
        mpirun += [f"-n {plan.world_size}"]
        mpirun += [shlex.join(["-genv", name, literal(value)]) for name, value in variables.items()]
    lines = [
        "# rank 0 is on the first worker",
        "MASTER_ADDR=$(sed 's/[: ].*//; q' /etc/mpi/hostfile)",
        f"export MASTER_ADDR MASTER_PORT={PORT}",
        "# the rank's numbers from mpirun's variables, in those that torch reads",
        "rank='",
        *(f"  {line}" for line in rank_of_mpi(len(plan.hosts))),
        '  exec "$@"',
        "'",
        " \\\n  ".join([*mpirun, f'sh -c "$rank" rank {literal(portable_command_line(plan))}']),
    ]
    return ["sh", "-c", "\n".join(lines) + "\n"]
