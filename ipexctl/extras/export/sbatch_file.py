"""A plan as an sbatch file: the same ranks, threads and variables on the nodes that Slurm allocates. Pure. Slurm
chooses the nodes and binds the ranks, so settings of single machines are listed in notes. With gloo, srun starts the
ranks; with MPI and oneCCL, mpirun does. Each rank sets torch's variables from those of Slurm or MPI.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Final, Literal

from ipexctl.extras.export.common import (
    TAKING_TURNS,
    WHY_TURNS,
    ExportResult,
    command_line,
    comment_settings,
    common_settings,
    differing_settings,
    header,
    host_of_rank,
    note_omitted,
    rank_of_mpi,
    require_mpirun,
    require_process_group,
    secrets_of,
    source,
    title,
)
from ipexctl.node.common.plan import Plan, Setting
from ipexctl.option_declaration import SLURM_LAUNCHER

Launcher = Literal["auto", "srun", "mpirun"]

SLURM_VARIABLES: Final = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE")
"""The rank function reads these variables before it unsets them."""
LOCAL_RANK_COUNT: Final = (
    'echo "$SLURM_STEP_TASKS_PER_NODE" | tr , "\\n" | sed "s/(x/ /; s/)//" |\n'
    '    while read -r ranks nodes; do seq "${nodes:-1}" | sed "s/.*/$ranks/"; done |\n'
    '    sed -n "$((SLURM_NODEID + 1))p"'
)
"""Prints the number of ranks on this node; `2(x3),1` means 2, 2, 2, 1 ranks on the nodes in order."""
RANK_OF_SLURM: Final = (
    "# the rank's numbers in the variables of torch; Slurm's are unset, because scripts would read them, too",
    "export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS",
    "# 2(x3),1 is 2, 2, 2, 1",
    f"LOCAL_WORLD_SIZE=$({LOCAL_RANK_COUNT})",
    "export LOCAL_WORLD_SIZE",
    *host_of_rank("$SLURM_NODEID", "$SLURM_JOB_NUM_NODES"),
)
RANK_IN_SLURM_OF_MPI: Final = (
    "# the rank's numbers in the variables of torch; Slurm's are those of mpirun's daemon",
    *rank_of_mpi("$SLURM_JOB_NUM_NODES"),
)
IFACES: Final = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "FI_TCP_IFACE", "CCL_KVS_IFACE")
PINS: Final = ("I_MPI_PIN", "I_MPI_PIN_DOMAIN", "I_MPI_PIN_CELL")
HOST_SETTINGS: Final = (*IFACES, "CCL_WORKER_AFFINITY", "CCL_LOCAL_RANK", "CCL_LOCAL_SIZE")
PORTS: Final = "$((15000 + SLURM_JOB_ID % 17000))"
PMI2: Final = "/usr/lib64/libpmi2.so /usr/lib/x86_64-linux-gnu/libpmi2.so.0 /opt/slurm/lib/libpmi2.so"
"""Paths of Slurm's PMI-2 library, which Intel MPI needs."""


def to_slurm(
    plan: Plan,
    cwd: str,
    name: str,
    setup: str | None = None,
    *,
    launcher: Launcher = SLURM_LAUNCHER,
    iface: str | None = None,
    env_name: str = "",
) -> ExportResult:
    """`cwd`: the project's directory on the nodes. `iface`: an interface that all nodes have. `env_name`: the plan's
    environment; an install on the nodes may choose another one.
    """
    require_process_group(plan, "an sbatch file")
    if plan.env and env_name:
        plan = _with_environment(plan, env_name)
    if launcher == "auto":
        launcher = "mpirun" if _needs_mpi(plan) else "srun"
    if launcher == "mpirun":
        require_mpirun(plan, "--launcher mpirun")
    lines = ["#!/bin/bash", f"# {title(plan)}", *header(_requirements(plan, cwd)), *_sbatch_lines(plan, name), ""]
    if setup is not None:
        lines += ["# --setup", source(setup)]
    lines += ["set -euo pipefail", f"cd {shlex.quote(cwd)}", ""]
    lines += ["# rank 0 is on the first node of the allocation; the port differs from that of other jobs"]
    lines += ['MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)']
    lines += [f"MASTER_PORT={plan.master_port or PORTS}", "export MASTER_ADDR MASTER_PORT"]
    if secret_names := secrets_of(plan):
        lines += ["# set these before sbatch, which passes them on"]
        lines += [f': "${{{secret_name}:?}}"' for secret_name in secret_names]
    lines += ["", "# run by each rank on its node", "rank() {"]
    rank = [*(RANK_OF_SLURM if launcher == "srun" else RANK_IN_SLURM_OF_MPI), f"unset {' '.join(SLURM_VARIABLES)}"]
    rank += [*_variables(plan, launcher, iface), *_rank_command(plan, launcher)]
    lines += [*(f"  {line}" for line in rank), "}", "export -f rank", ""]
    lines += [
        *(_srun(plan) if launcher == "srun" else _mpirun(plan)),
        f"  bash -c 'rank \"$@\"' rank {command_line(plan)}",
    ]
    return ExportResult("\n".join(lines) + "\n", tuple(_notes(plan, launcher, iface)))


def _with_environment(plan: Plan, name: str) -> Plan:
    """The plan with the environment's name in all paths that ipexctl made; what the user typed stays."""
    typed = {export.name for export in plan.asked.exports}

    def renamed(text: str) -> str:
        return text.replace(plan.env or "", name)

    def in_setting(setting: Setting) -> Setting:
        if setting.name in typed:
            return setting
        return setting._replace(value=setting.value and renamed(setting.value), reason=renamed(setting.reason))

    first = (renamed(plan.python),) if plan.command[:1] == (plan.python,) else plan.command[:1]
    return plan._replace(
        python=renamed(plan.python),
        launcher=plan.launcher._replace(path=renamed(plan.launcher.path)),
        argv=tuple(map(renamed, plan.argv)),
        launcher_env=tuple(map(in_setting, plan.launcher_env)),
        settings=tuple(map(in_setting, plan.settings)),
        command=(*first, *plan.command[1:]),
    )


def _needs_mpi(plan: Plan) -> bool:
    """False for ranks over gloo, and for ranks that ipexctl itself starts."""
    return plan.backend != "gloo" and not plan.is_direct


def _requirements(plan: Plan, cwd: str) -> str:
    return (
        f"Needed: Slurm 22.05 or newer; on every node that Slurm may choose, the project in {cwd} and the Python "
        f"{plan.python}, with everything that the script imports (on a shared file system, or on each node)."
    )


def _sbatch_lines(plan: Plan, name: str) -> list[str]:
    counts = {len(host.ranks) for host in plan.hosts}
    # If ranks have different numbers of cores, use the smallest: a job that asks for too many never starts.
    cores_per_rank = min((len(rank.cores) + len(rank.ccl_cores) for rank in plan.ranks), default=1) or 1
    options = [
        f"--job-name={re.sub(r'[^A-Za-z0-9._-]+', '-', name)}",
        f"--nodes={len(plan.hosts)}",
        f"--ntasks={plan.world_size}",
    ]
    if len(counts) == 1:
        options.append(f"--ntasks-per-node={counts.pop()}")
    # Without --threads-per-core=1, Slurm counts the two threads of a core as two CPUs.
    options += [f"--cpus-per-task={cores_per_rank}", "--threads-per-core=1", "--output=%x-%j.out"]
    if plan.time_limit is not None:
        options.append(f"--time={_minutes(plan.time_limit)}")
    return [f"#SBATCH {option}" for option in options]


def _variables(plan: Plan, launcher: Launcher, iface: str | None) -> list[str]:
    by_mpi = launcher == "mpirun" and plan.flavor == "intel"
    excluded = (*SLURM_VARIABLES, *HOST_SETTINGS, *PINS, *(() if by_mpi else ("CCL_PROCESS_LAUNCHER",)))
    lines = comment_settings(common_settings(plan, without=excluded))
    if plan.backend == "ccl" and not by_mpi:
        lines += [
            "# each rank's place on its host, for oneCCL",
            "export CCL_PROCESS_LAUNCHER=none",
            "export CCL_LOCAL_RANK=$LOCAL_RANK CCL_LOCAL_SIZE=$LOCAL_WORLD_SIZE",
        ]
    if launcher == "srun" and plan.flavor == "intel" and plan.backend != "gloo":
        lines += [
            "# Slurm binds each rank; Intel MPI needs the path of Slurm's PMI-2 library",
            "export I_MPI_PIN=0",
            f"for found in {PMI2}; do",
            '  [ ! -e "$found" ] || export I_MPI_PMI_LIBRARY="${I_MPI_PMI_LIBRARY:-$found}"',
            "done",
        ]
    exports = [f"export {setting.name}={shlex.quote(setting.value or '')}" for setting in _ifaces(plan)]
    reason = "# --iface"
    if iface is None:
        reason = "# the interface between the hosts of the plan; remove the # if the nodes have it"
        exports = [f"# {line}" for export in exports for line in export.splitlines()]
    return [*lines, reason, *exports] if exports else lines


def _rank_command(plan: Plan, launcher: Launcher) -> list[str]:
    turns = []
    if any(rank.batch for rank in plan.ranks):
        condition = f'[ "${{SLURM_CPUS_PER_TASK:-}}" = 1 ] && {TAKING_TURNS} true 2>/dev/null'
        turns = [WHY_TURNS, f'if {condition}; then set -- {TAKING_TURNS} "$@"; fi']
    if launcher == "srun" or plan.flavor == "openmpi":
        return [*turns, 'exec "$@"']
    return [
        *turns,
        "# after a failed rank, this mpirun would leave the others waiting: end the step",
        '"$@" || {',
        "  code=$?",
        '  echo "rank $RANK ended with $code" >&2',
        '  scancel "$SLURM_JOB_ID.$SLURM_STEP_ID"',
        "  exit $code",
        "}",
    ]


def _ifaces(plan: Plan) -> Sequence[Setting]:
    """Interface settings that are the same on all hosts; empty for a single host."""
    if len(plan.hosts) == 1:
        return ()
    return tuple(setting for setting in common_settings(plan) if setting.name in IFACES)


def _srun(plan: Plan) -> list[str]:
    mpi = "pmi2" if _needs_mpi(plan) else "none"
    return [
        "# one failed rank ends all; add --label to see which rank printed a line",
        # srun does not inherit --cpus-per-task since Slurm 22.05, nor variables after `sbatch --export=NONE`.
        'exec srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --cpu-bind=cores --mem-bind=local --kill-on-bad-exit=1 \\',
        f"  --mpi={mpi} --export=ALL \\",
    ]


def _mpirun(plan: Plan) -> list[str]:
    program = shlex.quote(plan.launcher.path)
    if plan.flavor == "openmpi":
        return [
            "# mpirun gets the nodes, and the ranks of each, from Slurm",
            f'exec {program} -n "$SLURM_NTASKS" --map-by "slot:PE=$SLURM_CPUS_PER_TASK" --bind-to core \\',
            "  -x MASTER_ADDR -x MASTER_PORT" + "".join(f" -x {name}" for name in secrets_of(plan)) + " \\",
        ]
    lines = ["# mpirun gets the nodes, and the ranks of each, from Slurm; its daemons use all cores of the job"]
    lines += ["export SLURM_CPU_BIND=none SLURM_MEM_BIND=none SLURM_EXPORT_ENV=ALL"]
    if plan.flavor == "intel":
        root = plan.launcher.path.rpartition("/bin/")[0]
        lines += [f"export I_MPI_ROOT={shlex.quote(root)} I_MPI_JOB_STARTUP_TIMEOUT=120"]
        lines += [
            "# cores of a rank",
            'export I_MPI_PIN_CELL=core I_MPI_PIN_DOMAIN="$SLURM_CPUS_PER_TASK:compact"',
        ]
        return [*lines, f'exec {program} -bootstrap slurm -n "$SLURM_NTASKS" \\']
    return [*lines, f'exec {program} -launcher slurm -bind-to "core:$SLURM_CPUS_PER_TASK" -n "$SLURM_NTASKS" \\']


def _notes(plan: Plan, launcher: Launcher, iface: str | None) -> list[str]:
    notes = []
    iface_names = {setting.name for setting in _ifaces(plan)}
    if iface_names and iface is None:
        listing = ", ".join(sorted(iface_names))
        notes.append(
            f"{listing}: in comments, because interfaces may have other names on the nodes; --iface NAME sets it"
        )
    host_settings = [name for name in HOST_SETTINGS if name not in iface_names]
    notes += note_omitted(
        plan,
        host_settings,
        "left out, because they belong to the machines of this plan; set them if Slurm's nodes need them",
    )
    differing = [name for name in differing_settings(plan) if name not in HOST_SETTINGS]
    notes += note_omitted(plan, differing, "left out, because its value differs between hosts")
    if len({len(host.ranks) for host in plan.hosts}) > 1:
        notes.append("the plan's hosts have different numbers of ranks; Slurm decides itself how to distribute them")
    if _needs_mpi(plan) and launcher == "srun":
        notes.append(
            "srun can join ranks over MPI only if Slurm has PMI-2 (srun --mpi=list); --launcher mpirun does not need it"
        )
    return notes


def _minutes(seconds: float) -> str:
    minutes = int(seconds + 59) // 60
    return f"{minutes // 60:02}:{minutes % 60:02}:00"
