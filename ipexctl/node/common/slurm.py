"""Slurm's variables: which are of the job, and which would give an srun other options than those of its line. Pure.

A process in an allocation has variables of the job (its number, its nodes), of the step, and of its own task. Both ends
of a session over srun, and the supervisor that starts ranks by srun, pass on the first alone.
"""

from __future__ import annotations

from typing import Mapping

OF_SLURM = ("SLURM_", "SLURMD_", "SRUN_", "PMI_", "PMIX_")
"""All of Slurm's, and those by which its tasks join an MPI."""
_NOT_OF_JOB = ("SLURM_STEP", "SLURM_SRUN_", "SLURM_LAUNCH_", "SLURM_CPU_BIND", "SLURM_MEM_BIND", "SRUN_")
_OF_ONE_TASK = frozenset(
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_TASK_PID", "SLURM_GTIDS", "SLURMD_NODENAME")
)
_OPTIONS_OF_SRUN = frozenset(
    (
        *("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_NTASKS_PER_CORE", "SLURM_NTASKS_PER_SOCKET"),
        *("SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_THREADS_PER_CORE", "SLURM_HINT", "SLURM_DISTRIBUTION"),
        *("SLURM_EXACT", "SLURM_EXCLUSIVE", "SLURM_WHOLE", "SLURM_MEM_PER_CPU", "SLURM_MEM_PER_NODE"),
        *("SLURM_MULTI_PROG", "SLURM_LABELIO", "SLURM_UNBUFFEREDIO", "SLURM_STDINMODE", "SLURM_STDOUTMODE"),
        *("SLURM_STDERRMODE", "SLURM_WAIT", "SLURM_PTY", "SLURM_KILL_BAD_EXIT", "SLURM_CPU_BIND", "SLURM_MEM_BIND"),
        *("SLURM_EXPORT_ENV", "SLURM_TIMELIMIT", "SLURM_HOSTFILE", "SLURM_OVERLAP", "SLURM_MPI_TYPE"),
    )
)
"""Variables by which srun takes other options than those of its line; most are those of the job's own script."""


def variables_of_job(environ: Mapping[str, str]) -> dict[str, str]:
    """Slurm's variables of the job, for commands: those of a step and of one task are not theirs."""
    return {
        name: value
        for name, value in environ.items()
        if name.startswith(OF_SLURM[:3]) and not name.startswith(_NOT_OF_JOB) and name not in _OF_ONE_TASK
    }


def environment_of_srun(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables by which srun would take other options than those of its line."""
    return {name: value for name, value in environ.items() if name not in _OPTIONS_OF_SRUN}
