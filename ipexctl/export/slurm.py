"""A plan as an sbatch file: the same ranks, threads and variables, in whatever nodes Slurm grants. Pure.

Slurm decides which nodes they are, and binds: what belongs to one machine alone is left out and said.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Final, Literal

from ipexctl.export.common import (
    RANK_OF_MPI,
    Exported,
    commented,
    differing,
    everywhere,
    left_out,
    secrets_of,
    source,
    title,
    words,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.launch.plan import LaunchPlan, Setting

Launcher = Literal["auto", "srun", "mpirun"]
"""What starts the ranks in the allocation."""

OF_SLURM: Final = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE")
"""Read before they are taken away."""
ON_THIS_NODE: Final = (
    'echo "$SLURM_STEP_TASKS_PER_NODE" | tr , "\\n" | sed "s/(x/ /; s/)//" |\n'
    '    while read -r ranks nodes; do seq "${nodes:-1}" | sed "s/.*/$ranks/"; done |\n'
    '    sed -n "$((SLURM_NODEID + 1))p"'
)
"""`2(x3),1` is 2, 2, 2, 1: ranks of the nodes, in their order."""
IFACES: Final = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "FI_TCP_IFACE", "CCL_KVS_IFACE")
PINS: Final = ("I_MPI_PIN", "I_MPI_PIN_DOMAIN", "I_MPI_PIN_CELL")
OF_NODES: Final = (*IFACES, "CCL_WORKER_AFFINITY", "CCL_LOCAL_RANK", "CCL_LOCAL_SIZE")
PORTS: Final = "$((15000 + SLURM_JOB_ID % 17000))"
PMI2: Final = "/usr/lib64/libpmi2.so /usr/lib/x86_64-linux-gnu/libpmi2.so.0 /opt/slurm/lib/libpmi2.so"
"""Where Slurm's own library of PMI-2 lies, which Intel MPI is to be told."""


def to_slurm(
    plan: LaunchPlan,
    cwd: str,
    name: str,
    setup: str | None = None,
    *,
    launcher: Launcher = "auto",
    iface: str | None = None,
) -> Exported:
    """`cwd`: the project's directory, as the nodes of the allocation see it. `iface`: the one they all have."""
    if launcher == "auto":
        launcher = "srun" if plan.backend == "gloo" else "mpirun"
    lines = ["#!/bin/bash", f"# {title(plan)}", *_asked(plan, name), ""]
    if setup is not None:
        lines += ["# --setup", source(setup)]
    lines += ["set -euo pipefail", f"cd {shlex.quote(cwd)}", ""]
    lines += ["# where rank 0 is: the first node of the allocation; a port of this job's own"]
    lines += ['MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)']
    lines += [f"MASTER_PORT={plan.master_port or PORTS}", "export MASTER_ADDR MASTER_PORT"]
    if secret := secrets_of(plan):
        lines += ["# set before sbatch, which hands them on"]
        lines += [f': "${{{each}:?}}"' for each in secret]
    lines += ["", "# what each rank begins with, on its node", "rank() {"]
    rank = [*(_told_by_slurm() if launcher == "srun" else _told_by_mpi()), f"unset {' '.join(OF_SLURM)}"]
    rank += [*_variables(plan, launcher, iface), *_ended(plan, launcher)]
    lines += [*(f"  {line}" for line in rank), "}", "export -f rank", ""]
    lines += [*(_srun(plan) if launcher == "srun" else _mpirun(plan)), f"  bash -c 'rank \"$@\"' rank {words(plan)}"]
    return Exported("\n".join(lines) + "\n", tuple(_notes(plan, launcher, iface)))


def _asked(plan: LaunchPlan, name: str) -> list[str]:
    """The lines that sbatch reads."""
    counts = {len(host.ranks) for host in plan.hosts}
    # Where hosts share the ranks unevenly, the fewest: more than the nodes have would never be granted.
    each = min((len(rank.cores) + len(rank.ccl_cores) for rank in plan.ranks), default=1) or 1
    asked = [
        f"--job-name={re.sub(r'[^A-Za-z0-9._-]+', '-', name)}",
        f"--nodes={len(plan.hosts)}",
        f"--ntasks={plan.world_size}",
    ]
    if len(counts) == 1:
        asked.append(f"--ntasks-per-node={counts.pop()}")
    # Without this, Slurm counts the two threads of a core as two of them.
    asked += [f"--cpus-per-task={each}", "--threads-per-core=1", "--output=%x-%j.out"]
    if plan.time_limit is not None:
        asked.append(f"--time={_minutes(plan.time_limit)}")
    return [f"#SBATCH {each}" for each in asked]


def _told_by_slurm() -> list[str]:
    return [
        "# which one it is, in the words torch reads; Slurm's own would be taken for them",
        "export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS",
        "# 2(x3),1 is 2, 2, 2, 1",
        f"LOCAL_WORLD_SIZE=$({ON_THIS_NODE})",
        "export LOCAL_WORLD_SIZE",
    ]


def _told_by_mpi() -> list[str]:
    return ["# which one it is, in the words torch reads; Slurm's are those of mpirun's daemon", *RANK_OF_MPI]


def _variables(plan: LaunchPlan, launcher: Launcher, iface: str | None) -> list[str]:
    by_mpi = launcher == "mpirun" and plan.flavor == "intel"
    taken = (*OF_SLURM, *OF_NODES, *PINS, *(() if by_mpi else ("CCL_PROCESS_LAUNCHER",)))
    lines = commented(everywhere(plan, without=taken))
    if plan.backend == "ccl" and not by_mpi:
        lines += [
            "# oneCCL is told each rank's place on its host",
            "export CCL_PROCESS_LAUNCHER=none",
        ]
        lines += ["export CCL_LOCAL_RANK=$LOCAL_RANK CCL_LOCAL_SIZE=$LOCAL_WORLD_SIZE"]
    if launcher == "srun" and plan.flavor == "intel" and plan.backend != "gloo":
        lines += [
            "# Slurm binds each rank; Intel MPI has to be told where Slurm's PMI-2 is",
            "export I_MPI_PIN=0",
        ]
        lines += [f"for found in {PMI2}; do"]
        lines += ['  [ ! -e "$found" ] || export I_MPI_PMI_LIBRARY="${I_MPI_PMI_LIBRARY:-$found}"', "done"]
    alike = _ifaces(plan)
    if iface is not None and alike:
        lines += ["# --iface", *(f"export {each.name}={shlex.quote(each.value or '')}" for each in alike)]
    elif alike:
        lines += ["# how the hosts of the plan reach one another; take the # away where the nodes have that interface"]
        lines += [f"# export {each.name}={shlex.quote(each.value or '')}" for each in alike]
    return lines


def _ended(plan: LaunchPlan, launcher: Launcher) -> list[str]:
    if launcher == "srun" or plan.flavor == "openmpi":
        return ['exec "$@"']
    return [
        "# this mpirun would let the others wait for one that failed: the step is ended",
        '"$@" || {',
        "  code=$?",
        '  echo "rank $RANK ended with $code" >&2',
        '  scancel "$SLURM_JOB_ID.$SLURM_STEP_ID"',
        "  exit $code",
        "}",
    ]


def _ifaces(plan: LaunchPlan) -> Sequence[Setting]:
    """Those that all hosts call the same, and that lead to others."""
    if len(plan.hosts) == 1:
        return ()
    apart = differing(plan)
    found = {one.name: one for one in plan.settings if one.name in IFACES and one.name not in apart}
    return tuple(found.values())


def _srun(plan: LaunchPlan) -> list[str]:
    mpi = "none" if plan.backend == "gloo" else "pmi2"
    return [
        "# one that fails ends all; --label in front of the others says whose line it is",
        # A step takes over neither the job's cores a task, since Slurm 22.05, nor variables after --export=NONE.
        'exec srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --cpu-bind=cores --mem-bind=local --kill-on-bad-exit=1 \\',
        f"  --mpi={mpi} --export=ALL \\",
    ]


def _mpirun(plan: LaunchPlan) -> list[str]:
    program = shlex.quote(plan.launcher)
    if plan.flavor == "openmpi":
        return [
            "# mpirun knows the nodes and the ranks of each from Slurm",
            f'exec {program} -n "$SLURM_NTASKS" --map-by "slot:PE=$SLURM_CPUS_PER_TASK" --bind-to core \\',
            "  -x MASTER_ADDR -x MASTER_PORT" + "".join(f" -x {each}" for each in secrets_of(plan)) + " \\",
        ]
    lines = ["# mpirun has the nodes, and how many ranks each gets, from Slurm; its daemons use all that the job has"]
    lines += ["export SLURM_CPU_BIND=none SLURM_MEM_BIND=none SLURM_EXPORT_ENV=ALL"]
    if plan.flavor == "intel":
        root = plan.launcher.rpartition("/bin/")[0]
        lines += [f"export I_MPI_ROOT={shlex.quote(root)} I_MPI_JOB_STARTUP_TIMEOUT=120"]
        lines += [
            "# cores of a rank",
            'export I_MPI_PIN_CELL=core I_MPI_PIN_DOMAIN="$SLURM_CPUS_PER_TASK:compact"',
        ]
        return [*lines, f'exec {program} -bootstrap slurm -n "$SLURM_NTASKS" \\']
    return [*lines, f'exec {program} -launcher slurm -bind-to "core:$SLURM_CPUS_PER_TASK" -n "$SLURM_NTASKS" \\']


def _notes(plan: LaunchPlan, launcher: Launcher, iface: str | None) -> list[str]:
    notes = []
    alike = {each.name for each in _ifaces(plan)}
    if alike and iface is None:
        named = ", ".join(sorted(alike))
        notes.append(f"{named}: in comments, for nodes may call their interface otherwise; --iface NAME sets it")
    gone = [each for each in OF_NODES if each not in alike]
    notes += left_out(plan, gone, "left out, they belong to the machines of this plan; set them where Slurm's need it")
    apart = [each for each in differing(plan) if each not in OF_NODES]
    notes += left_out(plan, apart, "left out, its value differs from host to host")
    if len({len(host.ranks) for host in plan.hosts}) > 1:
        notes.append("hosts have different numbers of ranks here; Slurm shares them out as it likes")
    if plan.backend != "gloo" and launcher == "srun":
        notes.append("srun joins ranks over MPI where Slurm has PMI-2 (srun --mpi=list); --launcher mpirun needs none")
    return notes


def _minutes(seconds: float) -> str:
    whole = int(seconds + 59) // 60
    return f"{whole // 60:02}:{whole % 60:02}:00"
