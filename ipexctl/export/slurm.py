"""A plan as an sbatch file: the same ranks, threads and variables, in whatever nodes Slurm grants. Pure.

Slurm decides which nodes they are, and binds: what belongs to one machine alone is left out and said.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from ipexctl.export.common import Exported, commented, differing, everywhere, left_out, secrets_of, source, words

if TYPE_CHECKING:
    from ipexctl.launch.plan import LaunchPlan

OF_SLURM: Final = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE")
"""Read before they are taken away."""
ON_THIS_NODE: Final = (
    'echo "$SLURM_STEP_TASKS_PER_NODE" | tr , "\\n" | sed "s/(x/ /; s/)//" | '
    'while read -r ranks nodes; do seq "${nodes:-1}" | sed "s/.*/$ranks/"; done | '
    'sed -n "$((SLURM_NODEID + 1))p"'
)
"""`2(x3),1` is 2, 2, 2, 1: ranks of the nodes, in their order."""
OF_NODES: Final = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "FI_TCP_IFACE", "CCL_WORKER_AFFINITY")
PORTS: Final = "$((15000 + SLURM_JOB_ID % 17000))"


def to_slurm(plan: LaunchPlan, cwd: str, name: str, setup: str | None = None) -> Exported:
    """`cwd`: the project's directory, as the nodes of the allocation see it."""
    counts = sorted({len(host.ranks) for host in plan.hosts})
    # Where hosts share the ranks unevenly, the fewest: more than the nodes have would never be granted.
    each = min((len(rank.cores) + len(rank.ccl_cores) for rank in plan.ranks), default=1) or 1
    lines = ["#!/bin/bash", f"#SBATCH --job-name={shlex.quote(name)}", f"#SBATCH --nodes={len(plan.hosts)}"]
    lines.append(f"#SBATCH --ntasks={plan.world_size}")
    if len(counts) == 1:
        lines.append(f"#SBATCH --ntasks-per-node={counts[0]}")
    lines.append(f"#SBATCH --cpus-per-task={each}")
    lines.append("#SBATCH --output=%x-%j.out")
    if plan.time_limit is not None:
        lines.append(f"#SBATCH --time={_minutes(plan.time_limit)}")
    if setup is not None:
        lines += ["# --setup", source(setup)]
    lines += ["set -euo pipefail", f"cd {shlex.quote(cwd)}", ""]
    lines += ["# where rank 0 is: the first node of the allocation; a port of this job's own"]
    lines += ['export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)']
    lines += [f"export MASTER_PORT={PORTS}"]
    lines += commented(everywhere(plan, without=(*OF_SLURM, *OF_NODES)))
    lines += [f': "${{{secret}:?}}"  # set it before sbatch' for secret in secrets_of(plan)]
    lines += ["", "# which rank it is, in the words torch reads; Slurm's own would be taken for them"]
    rank = (
        "export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS; "
        f"export LOCAL_WORLD_SIZE=$({ON_THIS_NODE}); "
        f"unset {' '.join(OF_SLURM)}; "
        'exec "$@"'
    )
    # Since Slurm 22.05 a step doesn't take over the job's cores a task: each rank would be bound to one.
    srun = ["srun", f"--cpus-per-task={each}", "--kill-on-bad-exit=1", "--cpu-bind=cores", "--mem-bind=local"]
    lines += [f"exec {shlex.join(srun)} {_mpi(plan)}sh -c {shlex.quote(rank)} rank \\", f"  {words(plan)}"]
    notes = [
        *left_out(plan, OF_NODES, "left out, they belong to the machines of this plan; set them where Slurm's need it"),
        *left_out(
            plan, [n for n in differing(plan) if n not in OF_NODES], "left out, its value differs from host to host"
        ),
    ]
    if len(counts) > 1:
        notes.append("hosts have different numbers of ranks here; Slurm shares them out as it likes")
    if plan.backend == "ccl":
        notes.append("oneCCL over mpi wants Slurm built with PMI-2; CCL_ATL_TRANSPORT=ofi does without")
    return Exported("\n".join(lines) + "\n", tuple(notes))


def _mpi(plan: LaunchPlan) -> str:
    return "--mpi=pmi2 " if plan.backend != "gloo" else "--mpi=none "


def _minutes(seconds: float) -> str:
    whole = int(seconds + 59) // 60
    return f"{whole // 60:02}:{whole % 60:02}:00"
