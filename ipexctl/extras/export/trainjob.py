"""A plan as a TrainJob of Kubeflow Trainer v2: a node for each host, where torchrun starts ranks over gloo. Pure.

In come the plan, a name and an image; out goes an `Exported`, the YAML and notes. The job refers to the runtime
`torch-distributed` that Trainer brings: it gives torchrun the number of nodes and ranks, the node's own number and the
address of rank 0. Only gloo is written: Trainer's MPI runtime takes Open MPI alone (kubeflow/trainer#1807), and nothing
starts oneCCL's ranks over MPI here. Nothing binds the ranks of a pod to cores, so the variables that bind threads below
a bound rank are left out. A secret is a reference to a Secret of Kubernetes, never a value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ipexctl.errors import UserError
from ipexctl.extras.export.common import Exported, omitted, rank_prefix, require_process_group, secrets_of
from ipexctl.extras.export.kubernetes import (
    label,
    limits_of,
    literal,
    manifest,
    pod_variables,
    settings_left_out,
    to_give,
)
from ipexctl.text import counted

if TYPE_CHECKING:
    from ipexctl.launch.plan import LaunchPlan

RUNTIME: Final = "torch-distributed"
"""The name of the torch runtime in Trainer's own manifests and chart."""
PREFIX: Final = "PET_"
"""torchrun's options as variables; a TrainJob that sets them itself is refused."""
THREADS: Final = "OMP_NUM_THREADS"
THREAD_BINDING: Final = ("KMP_AFFINITY", "GOMP_CPU_AFFINITY", "OMP_PROC_BIND", "OMP_PLACES")
"""Of ranks that are not bound, each would bind its threads to the first cores of the pod."""
OF_MPI: Final = ("I_MPI_", "FI_", "OMPI_", "UCX_", "MPIR_", "CCL_")
"""Variables of MPI, libfabric and oneCCL, which take no part in a run over gloo."""
IMAGE: Final = ("# The image: python and torchrun first on PATH, and the project in its working directory.",)


def to_trainjob(
    plan: LaunchPlan, name: str, image: str, *, threads_per_core: int = 1, memory: int | None = None
) -> Exported:
    """`image` must have the environment and the project in its working directory. `memory`: the bytes of the smallest
    host; a node gets as much of them as its machine can give."""
    require_process_group(plan, "a TrainJob")
    if plan.backend != "gloo":
        raise UserError(
            f"a TrainJob starts its ranks with torchrun, and ranks over {plan.backend} need an mpirun",
            fix="--backend gloo, or ipexctl export mpijob with the same options",
        )
    counts = {len(host.ranks) for host in plan.hosts}
    limits = limits_of(plan, threads_per_core, memory)
    secret_name = f"{label(name)}-secrets"
    secrets = secrets_of(plan)
    of_mpi, binding = _present(plan, OF_MPI), _present(plan, THREAD_BINDING)
    variables = {
        # Without it torchrun sets 1; hosts may differ in it, and nodes do not.
        THREADS: str(min(rank.omp for rank in plan.ranks)),
        **pod_variables(plan, without=(*of_mpi, *binding, *_present(plan, (PREFIX,)))),
    }
    job: dict[str, Any] = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": label(name)},
        "spec": {
            "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "ClusterTrainingRuntime", "name": RUNTIME},
            **({"activeDeadlineSeconds": max(1, int(plan.time_limit))} if plan.time_limit is not None else {}),
            "trainer": {
                "image": image,
                "numNodes": len(plan.hosts),
                "numProcPerNode": max(counts),
                "command": ["torchrun", "--no-python", *map(literal, (*rank_prefix(plan), *_command(plan)))],
                "env": [
                    *({"name": name, "value": literal(value)} for name, value in variables.items()),
                    *(
                        {"name": secret, "valueFrom": {"secretKeyRef": {"name": secret_name, "key": secret}}}
                        for secret in secrets
                    ),
                ],
                "resourcesPerNode": {"limits": limits},
            },
        },
    }
    notes = [
        f"the image {image} is yours to build: the environment with torchrun, and the project in its working directory",
        *settings_left_out(plan, without=(*of_mpi, *binding, THREADS)),
        *omitted(plan, of_mpi, "left out, they belong to MPI and not to gloo"),
        *omitted(plan, binding, "left out, nothing binds the ranks of a pod to cores"),
    ]
    if len(counts) > 1:
        notes.append(
            f"hosts have different numbers of ranks here; a TrainJob starts {counted(max(counts), 'rank')} on every "
            f"node, so {len(plan.hosts) * max(counts)} in all, not {plan.world_size}"
        )
    if secrets:
        notes.append(
            f"{', '.join(secrets)}: the pods wait for this Secret, from lines NAME=VALUE of a file: "
            f"kubectl create secret generic {secret_name} --from-env-file=FILE"
        )
    cluster = (
        f"Needed in the cluster: Kubeflow Trainer 2.2 or newer with its runtime {RUNTIME}, and for each of the "
        f"{counted(len(plan.hosts), 'node')} {to_give(limits)}."
    )
    return Exported(manifest(plan, IMAGE, cluster, job), tuple(notes))


def _present(plan: LaunchPlan, prefixes: tuple[str, ...]) -> tuple[str, ...]:
    """The names of variables with these beginnings that the plan sets."""
    names = (setting.name for setting in plan.settings if setting.value is not None and not setting.secret)
    return tuple(dict.fromkeys(name for name in names if name.startswith(prefixes)))


def _command(plan: LaunchPlan) -> list[str]:
    """The command of a rank, with `python` from PATH, as in an image."""
    return ["python" if word == plan.python and at == 0 else word for at, word in enumerate(plan.command)]
