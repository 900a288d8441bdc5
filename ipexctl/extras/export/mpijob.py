"""A plan as a Kubeflow MPIJob (kubeflow.org/v2beta1): a launcher, and one worker for each host. Pure. Settings of
single machines are left out and listed in notes. A worker asks for threads, because Kubernetes counts threads, and for
90 % of the smallest host's memory.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any, Final

from ipexctl.extras.export.common import (
    ExportResult,
    common_settings,
    differing_settings,
    header,
    note_omitted,
    portable_command_line,
    rank_of_mpi,
    require_mpirun,
    require_process_group,
    secrets_of,
    title,
)
from ipexctl.node.common.plan import Plan, Setting

HOST_SETTINGS: Final = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "FI_TCP_IFACE", "CCL_WORKER_AFFINITY", "LD_PRELOAD")
RESERVE: Final = 0.1
"""Part of a machine's memory that pods do not get, because Kubernetes and the system need it."""


def label(name: str) -> str:
    """Make a valid Kubernetes service name: a-z, 0-9 and -, a letter first, short enough for a suffix."""
    text = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if not text[:1].isalpha():
        text = f"run-{text}"
    return text[:40].strip("-")


def literal(text: str) -> str:
    """Escape a text for a command, its arguments or a variable, where Kubernetes replaces `$(NAME)` and `$$`."""
    return text.replace("$", "$$") if "$(" in text or "$$" in text else text


def limits_of(plan: Plan, threads_per_core: int, memory: int | None) -> dict[str, int | str]:
    """Limits of a pod with one host's ranks. `memory`: bytes of the smallest host."""
    cores = max(sum(len(rank.cores) + len(rank.ccl_cores) for rank in host.ranks) for host in plan.hosts) or 1
    # Kubernetes counts threads.
    limits: dict[str, int | str] = {"cpu": cores * threads_per_core}
    if memory is not None:
        limits["memory"] = f"{max(1, int(memory * (1 - RESERVE)) >> 30)}Gi"
    return limits


def to_give(limits: dict[str, int | str]) -> str:
    return f"a node with {' and '.join(f'{value} of {name}' for name, value in limits.items())} free"


def pod_variables(plan: Plan) -> dict[str, str]:
    return {
        setting.name: setting.value
        for setting in common_settings(plan, without=HOST_SETTINGS)
        if setting.value is not None and not _is_image_path(plan, setting)
    }


def settings_left_out(plan: Plan) -> tuple[str, ...]:
    """Notes about variables that are not in a manifest."""
    in_image = [
        setting.name for setting in plan.settings if _is_image_path(plan, setting) and setting.name not in HOST_SETTINGS
    ]
    differing = [name for name in differing_settings(plan) if name not in {*HOST_SETTINGS, *in_image}]
    return (
        *note_omitted(plan, HOST_SETTINGS, "left out, because they belong to the machines of this plan, not to pods"),
        *note_omitted(plan, dict.fromkeys(in_image), "left out, because the image has its own"),
        *note_omitted(plan, differing, "left out, because hosts have different values"),
    )


def _is_image_path(plan: Plan, setting: Setting) -> bool:
    """True if the value is a path on the hosts, because the image has its files elsewhere."""
    prefix = plan.python.rpartition("/bin/")[0]
    return setting.prepend or setting.append or (bool(prefix) and prefix in (setting.value or ""))


def render_manifest(plan: Plan, image: Sequence[str], cluster: str, job: dict[str, Any]) -> str:
    """The YAML of a job, below comments that show its plan and what the image and the cluster must have."""
    import yaml  # imported late for a fast start

    text = yaml.dump(job, Dumper=_dumper(), sort_keys=False, width=110)
    return "\n".join([f"# {title(plan)}", *image, *header(cluster), text])


def _dumper() -> Any:
    """A YAML dumper that writes multi-line texts in block style."""
    import yaml

    class Lines(yaml.SafeDumper):
        pass

    def lines(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    Lines.add_representer(str, lines)
    return Lines


IMPLEMENTATION: Final[dict[str, str]] = {"intel": "Intel", "openmpi": "OpenMPI", "mpich": "MPICH"}
PORT: Final = 29500
"""A fixed port is always free, because each pod has its own address."""
IMAGE: Final = (
    "# One image for launcher and workers: python and mpirun first on PATH; the project in its working directory;",
    "# /usr/sbin/sshd, which the operator starts in the workers; an ssh that accepts their host keys without a check.",
)


def to_mpijob(
    plan: Plan, name: str, image: str, *, threads_per_core: int = 1, memory: int | None = None, restarts: int = 0
) -> ExportResult:
    """`image` must have the environment, the project in its working directory, mpirun and sshd."""
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
        f"you build the image {image}: it needs the environment, the project in its working directory, mpirun and sshd",
        *settings_left_out(plan),
    ]
    if secret := secrets_of(plan):
        notes.append(f"{', '.join(secret)}: put them into a Secret and name it in both templates")
    cluster = (
        "Needed in the cluster: the MPI operator of Kubeflow with kubeflow.org/v2beta1, and for each worker "
        f"{to_give(limits)}."
    )
    return ExportResult(render_manifest(plan, IMAGE, cluster, job), tuple(notes))


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
