"""Slurm's variables of a job, and its word for the end of a job.

A process in an allocation has variables of the job (its number, its nodes), of the step, and of its own task. Both ends
of a session over srun, and the supervisor that starts ranks by srun, pass on the first alone.
"""

from __future__ import annotations

import os
import re
import subprocess
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


JOB_ENDS = {
    "CANCELLED": "was cancelled",
    "TIMEOUT": "reached its time limit",
    "NODE_FAIL": "lost a node",
    "PREEMPTED": "was preempted",
    "OUT_OF_MEMORY": "ran out of memory",
    "DEADLINE": "reached its deadline",
    "FAILED": "failed",
    "COMPLETED": "is over",
    "COMPLETING": "was ended, as by scancel",
}
"""Slurm's word for the state of a job that has ended, or is about to: what happened to it."""
_ANSWER = 5.0
"""Seconds for Slurm's controller to answer: it may be busy, and KillWait is 30 seconds by default."""
_STATE = re.compile(r"^ *JobState=([A-Z_]+) Reason=(\S+)", re.MULTILINE)
_REASONS = {"TimeLimit": "TIMEOUT", "NodeDown": "NODE_FAIL"}
"""Of a job whose processes are being ended; the reason of one that was cancelled is none."""


def begin_to_ask(job: str) -> subprocess.Popen[bytes] | None:
    """Ask Slurm for the state of a job; None if it can't be asked."""
    argv = ["scontrol", "show", "job", job]
    try:
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError:
        return None


def read_job_end(query: subprocess.Popen[bytes] | None) -> str:
    """The word of `JOB_ENDS`; empty for a job that goes on or is not known, and without an answer."""
    if query is None:
        return ""
    try:
        shown = query.communicate(timeout=_ANSWER)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        query.kill()
        return ""
    return job_end_in(shown)


def job_end_in(shown: str) -> str:
    """The word of `JOB_ENDS` in what `scontrol show job` prints. Pure."""
    found = _STATE.search(shown)
    if found is None or found[1] not in JOB_ENDS:
        return ""
    return _REASONS.get(found[2], found[1]) if found[1] == "COMPLETING" else found[1]


_LEFT = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)")


def seconds_left(shown: str) -> int | None:
    """The time left of a job, as `squeue -h -o %L` prints it; None for no limit, or no answer. Pure."""
    found = _LEFT.fullmatch(shown.strip())
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def own_job() -> str:
    """The number of the job of this process; empty outside one."""
    return os.environ.get("SLURM_JOB_ID") or os.environ.get("SLURM_JOBID") or ""
