"""A plan as a Kubeflow MPIJob (kubeflow.org/v2beta1): a launcher and one worker for each host. Pure.

In come the plan, a name and an image; out goes an `Exported`, the YAML and notes. What belongs to single machines
cannot move: interfaces, affinities and paths of the environment are left out and listed, as pods have others. A worker
asks for threads, since Kubernetes counts those, and for 90 % of the smallest host's memory. The image brings python,
mpirun and sshd; the comments at the top say so.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any, Final

from ipexctl.export.common import (
    RANK_OF_MPI,
    Exported,
    common_settings,
    differing_settings,
    header,
    omitted,
    portable_command_line,
    require_mpirun,
    require_process_group,
    secrets_of,
    title,
)

if TYPE_CHECKING:
    from ipexctl.launch.plan import LaunchFlavor, LaunchPlan, Setting

IMPLEMENTATION: Final[dict[LaunchFlavor, str]] = {"intel": "Intel", "openmpi": "OpenMPI", "mpich": "MPICH"}
HOST_SETTINGS: Final = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "FI_TCP_IFACE", "CCL_WORKER_AFFINITY", "LD_PRELOAD")
PORT: Final = 29500
"""A fixed port is free: each pod has its own address."""
IMAGE: Final = (
    "# One image for launcher and workers: python and mpirun first on PATH; the project in its working directory;",
    "# /usr/sbin/sshd, which the operator starts in the workers; an ssh that accepts their host keys without a check.",
)
RESERVE: Final = 0.1
"""The part of a machine's memory that its pods do not get: Kubernetes and the system need it."""


def to_mpijob(
    plan: LaunchPlan, name: str, image: str, *, threads_per_core: int = 1, memory: int | None = None, restarts: int = 0
) -> Exported:
    """`image` must have the environment, the project in its working directory, mpirun and sshd. `memory`: the bytes of
    the smallest host; a worker gets as much of them as its machine can give."""
    import yaml  # costs start-up

    require_mpirun(plan, "an MPIJob")
    require_process_group(plan, "an MPIJob")
    slots = max(len(host.ranks) for host in plan.hosts)
    cores = max(sum(len(rank.cores) + len(rank.ccl_cores) for rank in host.ranks) for host in plan.hosts) or 1
    # Kubernetes counts threads.
    limits: dict[str, int | str] = {"cpu": cores * threads_per_core}
    if memory is not None:
        limits["memory"] = f"{max(1, int(memory * (1 - RESERVE)) >> 30)}Gi"
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
    image_settings = [
        setting.name for setting in plan.settings if _is_image_path(plan, setting) and setting.name not in HOST_SETTINGS
    ]
    differing = [name for name in differing_settings(plan) if name not in (*HOST_SETTINGS, *image_settings)]
    notes = [
        f"the image {image} is yours to build: the environment, the project in its working directory, mpirun and sshd",
        *omitted(plan, HOST_SETTINGS, "left out, they belong to the machines of this plan and not to pods"),
        *omitted(plan, dict.fromkeys(image_settings), "left out, the image has its own"),
        *omitted(plan, differing, "left out, hosts differ in it"),
    ]
    if secret := secrets_of(plan):
        notes.append(f"{', '.join(secret)}: put them into a Secret and name it in both templates")
    text = yaml.dump(job, Dumper=_dumper(), sort_keys=False, width=110)
    cluster = (
        "Needed in the cluster: the MPI operator of Kubeflow with kubeflow.org/v2beta1, and for each worker a node "
        f"with {' and '.join(f'{value} of {name}' for name, value in limits.items())} to give."
    )
    return Exported("\n".join([f"# {title(plan)}", *IMAGE, *header(cluster), text]), tuple(notes))


def label(name: str) -> str:
    """A valid Kubernetes service name: a-z, 0-9 and -, a letter first; short enough for a suffix like `-worker-12`."""
    text = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if not text[:1].isalpha():
        text = f"run-{text}"
    return text[:40].strip("-")


def _dumper() -> Any:
    """A YAML dumper that writes multi-line texts in block style."""
    import yaml

    class Lines(yaml.SafeDumper):
        pass

    def lines(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    Lines.add_representer(str, lines)
    return Lines


def _replicas(count: int, container: dict[str, Any]) -> dict[str, Any]:
    return {"replicas": count, "template": {"spec": {"containers": [container]}}}


def _is_image_path(plan: LaunchPlan, setting: Setting) -> bool:
    """True if the setting holds a path of the hosts, which the image has elsewhere."""
    prefix = plan.python.rpartition("/bin/")[0]
    return setting.prepend or (bool(prefix) and prefix in (setting.value or ""))


def _command(plan: LaunchPlan) -> list[str]:
    settings = common_settings(plan, without=HOST_SETTINGS)
    variables = {
        setting.name: setting.value
        for setting in settings
        if setting.value is not None and not _is_image_path(plan, setting)
    }
    mpirun = ["exec mpirun"]
    if plan.flavor == "openmpi":
        mpirun += ["--allow-run-as-root --bind-to none", f"-n {plan.world_size}", "-x MASTER_ADDR -x MASTER_PORT"]
        mpirun += [shlex.join(["-x", f"{name}={value}"]) for name, value in variables.items()]
    else:
        mpirun += [f"-n {plan.world_size}"]
        mpirun += [shlex.join(["-genv", name, value]) for name, value in variables.items()]
    lines = [
        "# rank 0 is on the first worker",
        "MASTER_ADDR=$(sed 's/[: ].*//; q' /etc/mpi/hostfile)",
        f"export MASTER_ADDR MASTER_PORT={PORT}",
        "# the rank's numbers from mpirun's variables, in those that torch reads",
        "rank='",
        *(f"  {line}" for line in RANK_OF_MPI),
        '  exec "$@"',
        "'",
        " \\\n  ".join([*mpirun, f'sh -c "$rank" rank {portable_command_line(plan)}']),
    ]
    return ["sh", "-c", "\n".join(lines) + "\n"]
