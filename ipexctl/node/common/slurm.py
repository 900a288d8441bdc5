"""Asks Slurm about a job, and reads what it shows: for nodes, login nodes and the control machine.

In come the number of a job, or what a command printed; out go a `QueueJob` and the word for what Slurm did to a run.
Slurm is asked here alone: by `call`, which fails without an answer, by `ask`, which does without, or by a command that
goes on while its caller works. The rule: what Slurm prints is read by its fields.

A process in an allocation has variables of the job (its number, its nodes), of the step, and of its own task. Both ends
of a session over srun, and the supervisor that starts ranks by srun, pass on the first alone.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from typing import Mapping, Sequence

from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.job_words import PREEMPTED, REQUEUED, describe_run_end
from ipexctl.node.common.limits import QUEUE_ANSWER
from ipexctl.node.common.records import QueueJob

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


_REASONS = {"TimeLimit": "TIMEOUT", "NodeDown": "NODE_FAIL"}
"""Of a job whose processes are being ended; the reason of one that was cancelled is none."""
_MAX_TEXT = 300
_ANSWER = 15.0
"""Seconds for an answer without which nothing can go on: the controller may be busy, and KillWait is 30 by default."""


def call(argv: Sequence[str], given: bytes = b"", *, failed: str = "", seconds: float = _ANSWER) -> str:
    """What a command of Slurm prints. Raises an AgentError if it fails, can't be called, or is silent.

    `failed`: the sentence before its own reason.
    """
    try:
        done = subprocess.run(list(argv), input=given, capture_output=True, timeout=seconds, check=False)
    except FileNotFoundError:
        fix = "add the directory of Slurm's programs to PATH there, for commands over ssh"
        raise AgentError(f"there is no {argv[0]} on PATH there", fix) from None
    except subprocess.TimeoutExpired:
        fix = "sinfo there shows whether it works"
        raise AgentError(f"Slurm has not answered {argv[0]} for {seconds:g} s", fix) from None
    except OSError as error:
        raise AgentError(f"{argv[0]} can't be started there: {error.strerror}") from None
    if done.returncode:
        printed = (done.stdout + b"\n" + done.stderr).decode(errors="replace").strip() or f"exit code {done.returncode}"
        why = printed.splitlines()[-1].strip()[:_MAX_TEXT]
        raise AgentError(f"{failed}: {why}" if failed else why)
    return done.stdout.decode(errors="replace")


def ask(argv: Sequence[str], *, seconds: float = QUEUE_ANSWER) -> str:
    """What a command prints that asks Slurm; empty without an answer."""
    with contextlib.suppress(AgentError):
        return call(argv, seconds=seconds)
    return ""


def begin_query(argv: Sequence[str]) -> subprocess.Popen[bytes] | None:
    """Start a command that asks Slurm while its caller works; None if it can't be called."""
    try:
        return subprocess.Popen(list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError:
        return None


def read_answer(query: subprocess.Popen[bytes]) -> str:
    """What it prints; empty without an answer."""
    try:
        return query.communicate(timeout=_ANSWER)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        end_query(query)
        return ""


def end_query(query: subprocess.Popen[bytes]) -> None:
    """End the command. What it has started, if anything, is not waited for."""
    query.kill()
    query.wait()
    if query.stdout is not None:
        query.stdout.close()


def show_job(job: str) -> list[str]:
    """The command that prints one job as one line, for `read_job`."""
    return ["scontrol", "show", "job", "-o", job]


def read_job(shown: str, run: str = "") -> QueueJob | None:
    """A job in what `show_job` prints; None if there is none, or none of the name `run`. Pure."""
    fields = _fields(shown)
    if not ("JobState" in fields and fields["JobId"].isdigit() and run in ("", fields.get("JobName"))):
        return None
    reason = fields.get("Reason", "")
    reason = "" if reason in ("None", "(null)") else reason
    job = QueueJob(fields["JobId"], fields["JobState"], reason, node=fields.get("BatchHost", ""))
    return job._replace(exit_code=_number(fields.get("ExitCode", "").partition(":")[0])) if job.is_over else job


def _fields(shown: str) -> dict[str, str]:
    """The first of each name: what users give a job, such as its command, comes behind Slurm's own."""
    fields = {"JobId": ""}
    if shown.startswith("JobId="):
        for word in reversed(shown.split()):
            name, _, value = word.partition("=")
            fields[name] = value[:_MAX_TEXT]
    return fields


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else None


def job_end_in(shown: str, restarts: int | None = None) -> str:
    """What happened to the job in what `show_job` prints; empty for a job that goes on or is not known. Pure.

    `restarts`: how often the asking job has been in the queue again, which Slurm counts while it still ends the job;
    None if it is not part of the job. A job whose nodes another one gets still has its own state in a grace time.
    """
    job, fields = read_job(shown), _fields(shown)
    if job is None:
        return ""
    if restarts is not None and (_number(fields.get("Restarts", "")) or 0) > restarts:
        return REQUEUED
    preempted_at = fields.get("PreemptTime", "")
    if job.is_active and preempted_at[:1].isdigit() and preempted_at >= fields.get("StartTime", ""):
        return PREEMPTED
    if job.state == "COMPLETING":
        return _REASONS.get(job.reason, job.state)
    return job.state if describe_run_end(job.state) else ""


def show_own_node(job: str, node: str) -> list[str]:
    """The command that prints the number of a job while that node is one of its nodes, and else nothing."""
    return ["squeue", "--noheader", "--jobs", job, "--nodelist", node, "--format", "%i"]


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
    return _number(os.environ.get("SLURM_RESTART_COUNT") or "") or 0


def requeue_job(job: str, restarts: int) -> bool:
    """Put a job into the queue again, which ends its processes; whether Slurm does it.

    Its signals may end the command before it has the answer, so that the job itself is looked at, too: `restarts` says
    how often it had been in the queue again before.
    """
    with contextlib.suppress(AgentError):
        call(["scontrol", "requeue", job])
        return True
    return job_end_in(ask(show_job(job), seconds=_ANSWER), restarts) == REQUEUED


def step_argv(node: str, job: str = "") -> list[str]:
    """srun for a step on a node of a running job, beside all others. `job`: its number (default: the call's)."""
    options = ["--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}", "--mem=0", "--cpu-bind=none"]
    return ["srun", *options, *([f"--jobid={job}"] if job else []), "--quiet", "--job-name=ipexctl"]


def own_job() -> str:
    """The number of the job of this process; empty outside one."""
    return os.environ.get("SLURM_JOB_ID") or os.environ.get("SLURM_JOBID") or ""
