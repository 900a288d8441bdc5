"""A plan as a Kubeflow MPIJob (kubeflow.org/v2beta1): a launcher, and a worker for each host of the plan. Pure."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any, Final

from ipexctl.export.common import (
    RANK_OF_MPI,
    Exported,
    differing,
    everywhere,
    executed,
    left_out,
    secrets_of,
    title,
)

if TYPE_CHECKING:
    from ipexctl.launch.plan import Flavor, LaunchPlan, Setting

IMPLEMENTATION: Final[dict[Flavor, str]] = {"intel": "Intel", "openmpi": "OpenMPI", "mpich": "MPICH"}
OF_NODES: Final = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "FI_TCP_IFACE", "CCL_WORKER_AFFINITY", "LD_PRELOAD")
PORT: Final = 29500
"""Each pod has an address of its own: nobody else listens there."""
IMAGE: Final = (
    "# The image, the same for both: python and mpirun first on the path; the project in its working directory;",
    "# /usr/sbin/sshd, which the operator starts in the workers, and an ssh that takes their host keys unseen.",
)


def to_mpijob(plan: LaunchPlan, name: str, image: str, *, threads_per_core: int = 1, restarts: int = 0) -> Exported:
    """`image`: one that has the environment, the project in its working directory, an mpirun and an sshd."""
    import yaml  # costs start-up

    slots = max(len(host.ranks) for host in plan.hosts)
    cores = max(sum(len(rank.cores) + len(rank.ccl_cores) for rank in host.ranks) for host in plan.hosts) or 1
    # Kubernetes counts threads.
    cpus = {"limits": {"cpu": cores * threads_per_core}}
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
                "Worker": _replicas(len(plan.hosts), {"name": "worker", "image": image, "resources": cpus}),
            },
        },
    }
    of_image = [one.name for one in plan.settings if _of_image(plan, one) and one.name not in OF_NODES]
    apart = [each for each in differing(plan) if each not in (*OF_NODES, *of_image)]
    notes = [
        f"the image {image} is yours to build: the environment, the project in its working directory, mpirun and sshd",
        *left_out(plan, OF_NODES, "left out, they belong to the machines of this plan and not to pods"),
        *left_out(plan, dict.fromkeys(of_image), "left out, the image has its own"),
        *left_out(plan, apart, "left out, hosts differ in it"),
    ]
    if secret := secrets_of(plan):
        notes.append(f"{', '.join(secret)}: put them into a Secret and name it in both templates")
    text = yaml.dump(job, Dumper=_dumper(), sort_keys=False, width=110)
    return Exported("\n".join([f"# {title(plan)}", *IMAGE, text]), tuple(notes))


def label(name: str) -> str:
    """As Kubernetes wants the names of services: a-z, 0-9 and -, a letter first; `-worker-12` has room behind it."""
    found = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if not found[:1].isalpha():
        found = f"run-{found}"
    return found[:40].strip("-")


def _dumper() -> Any:
    """What writes a text of several lines as such."""
    import yaml

    class Lines(yaml.SafeDumper):
        pass

    def lines(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    Lines.add_representer(str, lines)
    return Lines


def _replicas(count: int, container: dict[str, Any]) -> dict[str, Any]:
    return {"replicas": count, "template": {"spec": {"containers": [container]}}}


def _of_image(plan: LaunchPlan, setting: Setting) -> bool:
    """Whether it says where something lies on the hosts."""
    prefix = plan.python.rpartition("/bin/")[0]
    return setting.prepend or (bool(prefix) and prefix in (setting.value or ""))


def _command(plan: LaunchPlan) -> list[str]:
    settings = everywhere(plan, without=OF_NODES)
    variables = {one.name: one.value for one in settings if one.value is not None and not _of_image(plan, one)}
    mpirun = ["exec mpirun"]
    if plan.flavor == "openmpi":
        mpirun += ["--allow-run-as-root --bind-to none", f"-n {plan.world_size}", "-x MASTER_ADDR -x MASTER_PORT"]
        mpirun += [shlex.join(["-x", f"{name}={value}"]) for name, value in variables.items()]
    else:
        mpirun += [f"-n {plan.world_size}"]
        mpirun += [shlex.join(["-genv", name, value]) for name, value in variables.items()]
    lines = [
        "# the first worker is where rank 0 is",
        "MASTER_ADDR=$(sed 's/[: ].*//; q' /etc/mpi/hostfile)",
        f"export MASTER_ADDR MASTER_PORT={PORT}",
        "# mpirun says which rank it is; torch reads other words",
        "rank='",
        *(f"  {line}" for line in RANK_OF_MPI),
        '  exec "$@"',
        "'",
        " \\\n  ".join([*mpirun, f'sh -c "$rank" rank {executed(plan)}']),
    ]
    return ["sh", "-c", "\n".join(lines) + "\n"]
