"""Reads what Slurm tells of a job: its variables, how `scontrol` and `squeue` show it, and the sentence for each end.

A process in an allocation has variables of the job (its number, its nodes), of the step, and of its own task. Both ends
of a session over srun, and the supervisor that starts ranks by srun, pass on the first alone.

Slurm is asked by a command that goes on while its caller works. What it prints is read here alone, by its fields.
"""

from __future__ import annotations

import os
import re
import subprocess
from typing import Mapping, NamedTuple, Sequence

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


WAITING = frozenset(
    ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
)
GOING_ON = frozenset(("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT"))
JOB_ENDS = {
    "CANCELLED": "was cancelled",
    "TIMEOUT": "reached its time limit",
    "NODE_FAIL": "lost a node",
    "PREEMPTED": "was preempted",
    "OUT_OF_MEMORY": "ran out of memory",
    "BOOT_FAIL": "had a node that did not start",
    "DEADLINE": "reached its deadline",
    "FAILED": "failed",
    "COMPLETED": "is over",
    "COMPLETING": "was ended, as by scancel",
}
"""Slurm's word for the state of a job that has ended, or is about to: what happened to it."""
PREEMPTED, STEP_CANCELLED, LIMIT_NEAR, REQUEUED = "PREEMPTED", "STEP_CANCELLED", "LIMIT_NEAR", "JOB_REQUEUED"
_RUN_ENDS = {
    **{word: f"its Slurm job {text}" for word, text in JOB_ENDS.items()},
    STEP_CANCELLED: "the Slurm step of its ranks was cancelled",
    LIMIT_NEAR: "the time limit of its Slurm job was near",
    REQUEUED: "its Slurm job was put into the queue again",
}
_ANSWER = 5.0
"""Seconds for Slurm's controller to answer."""
_LONG_ANSWER = 15.0
"""For a supervisor whose job ends: the controller may be busy, and KillWait is 30 seconds by default."""
_REASONS = {"TimeLimit": "TIMEOUT", "NodeDown": "NODE_FAIL"}
"""Of a job whose processes are being ended; the reason of one that was cancelled is none."""
_SHOWN = re.compile(
    r"JobId=(?P<id>[0-9]+)\s.*?\bJobName=(?P<name>\S+)\s.*?\sJobState=(?P<state>[A-Z_]+)\s+Reason=(?P<reason>.*?)\s+Dependency=",
    re.DOTALL,
)
_EXIT = re.compile(r"\sExitCode=([0-9]+):([0-9]+)\s")
_BATCH_HOST = re.compile(r"\sBatchHost=([A-Za-z0-9._-]+)\s")
_PREEMPTION = re.compile(r"\sStartTime=([0-9T:-]+)\s.*?\sPreemptTime=([0-9T:-]+)\s", re.DOTALL)
_RESTARTS = re.compile(r"\sRestarts=([0-9]{1,9})\s")
_NODES = re.compile(r"\sNodeList=([][A-Za-z0-9._,-]+)\s")


def describe_run_end(word: str) -> str:
    """What Slurm did that stopped a run, as the end of `as …`; empty for a word that is not known."""
    return _RUN_ENDS.get(word, "")


class ShownJob(NamedTuple):
    """A job as Slurm shows it."""

    id: str
    name: str
    state: str
    reason: str
    exit_code: int | None = None
    """None before the job is over; so is the signal."""
    signal: int | None = None
    batch_host: str = ""
    nodes: str = ""
    restarts: int = 0
    """How often it was put into the queue again, also while it is being ended for that."""
    is_preempted: bool = False
    """Another job gets its nodes; with a grace time it still has its own state."""

    @property
    def is_over(self) -> bool:
        return self.state not in WAITING | GOING_ON


def show_job(job: str) -> list[str]:
    """The command that prints one job as one line, for `read_shown`."""
    return ["scontrol", "show", "job", "-o", job]


def read_shown(text: str) -> ShownJob | None:
    """A job in what `show_job` prints; None if there is none. Pure."""
    found = _SHOWN.match(text)
    if found is None:
        return None
    job = ShownJob(found["id"], found["name"], found["state"], found["reason"])
    how, batch_host, nodes = _EXIT.search(text), _BATCH_HOST.search(text), _NODES.search(text)
    restarts, preemption = _RESTARTS.search(text), _PREEMPTION.search(text)
    return job._replace(
        reason="" if job.reason in ("None", "(null)") else job.reason,
        exit_code=int(how[1]) if how is not None and job.is_over else None,
        signal=int(how[2]) if how is not None and job.is_over and how[2] != "0" else None,
        batch_host=batch_host[1] if batch_host is not None else "",
        nodes=nodes[1] if nodes is not None else "",
        restarts=int(restarts[1]) if restarts is not None else 0,
        is_preempted=preemption is not None and preemption[2] >= preemption[1],
    )


def begin_query(argv: Sequence[str]) -> subprocess.Popen[bytes] | None:
    """Start a command that asks Slurm; None if it can't be asked."""
    try:
        return subprocess.Popen(list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError:
        return None


def read_answer(query: subprocess.Popen[bytes] | None, *, is_patient: bool = False) -> str:
    """What it prints; empty without an answer."""
    if query is None:
        return ""
    try:
        return query.communicate(timeout=_LONG_ANSWER if is_patient else _ANSWER)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        end_query(query)
        return ""


def end_query(query: subprocess.Popen[bytes]) -> None:
    """End the command. What it has started, if anything, is not waited for."""
    query.kill()
    query.wait()
    if query.stdout is not None:
        query.stdout.close()


def job_end_in(shown: str, restarts: int | None = None) -> str:
    """What happened to the job in what `show_job` prints; empty for a job that goes on or is not known. Pure.

    `restarts`: how often the asking job has been in the queue again; None if it is not part of the job.
    """
    job = read_shown(shown)
    if job is not None and restarts is not None and job.restarts > restarts:
        return REQUEUED
    if job is not None and job.state in GOING_ON and job.is_preempted:
        return PREEMPTED
    if job is None or job.state not in JOB_ENDS:
        return ""
    return _REASONS.get(job.reason, job.state) if job.state == "COMPLETING" else job.state


_STEP_CANCELLED = re.compile(r"^slurmstepd\S*: error: \*\*\* STEP [0-9.]+ ON \S+ CANCELLED AT ", re.MULTILINE)
_TASK_EXITED = re.compile(r"^srun: error: \S+: tasks? \S+: Exited ", re.MULTILINE)


def is_step_cancelled(log: str) -> bool:
    """Whether srun prints that its step was cancelled, which kills all tasks at once: no task has exited by itself.

    srun prints the same line if it is ended itself, after it has waited for tasks. Slurm can't be asked: it forgets a
    step that is over. Pure.
    """
    return _STEP_CANCELLED.search(log) is not None and _TASK_EXITED.search(log) is None


_LEFT = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)")


def show_time_left(job: str) -> list[str]:
    """The command that prints the time that is left of a job, for `seconds_left`."""
    return ["squeue", "--noheader", "--jobs", job, "--format", "%L"]


def seconds_left(shown: str) -> int | None:
    """The time in what `show_time_left` prints; None for no limit, or no answer. Pure."""
    found = _LEFT.fullmatch(shown.strip())
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def own_restarts() -> int:
    """How often the job of this process was put into the queue again before it began."""
    count = os.environ.get("SLURM_RESTART_COUNT") or "0"
    return int(count) if re.fullmatch("[0-9]{1,9}", count) else 0


def requeue_job(job: str) -> bool:
    """Put a job into the queue again, which ends its processes; whether Slurm does it."""
    query = begin_query(["scontrol", "requeue", job])
    read_answer(query, is_patient=True)
    return query is not None and query.returncode == 0


def is_requeued(job: str, restarts: int) -> bool:
    """Whether Slurm has put a job into the queue again that had begun again so often before."""
    return job_end_in(read_answer(begin_query(show_job(job)), is_patient=True), restarts) == REQUEUED


def own_job() -> str:
    """The number of the job of this process; empty outside one."""
    return os.environ.get("SLURM_JOB_ID") or os.environ.get("SLURM_JOBID") or ""
