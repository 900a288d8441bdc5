"""Asks Slurm about a job and parses the fields of its output: on nodes, login nodes and the control machine.

A process in an allocation has variables of the job, the Slurm step and its own task; ipexctl passes on only the job's.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from typing import Mapping, Sequence

from ipexctl.node.common.job_words import PREEMPTED, REQUEUED, describe_run_end
from ipexctl.node.common.node_limits import QUEUE_ANSWER

OF_SLURM = ("SLURM_", "SLURMD_", "SRUN_", "PMI_", "PMIX_")
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
"""Variables that act as srun options; most come from the job's script."""


def variables_of_job(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the job itself, without those of a Slurm step, a task, or a call of srun."""
    return {
        name: value
        for name, value in environ.items()
        if name.startswith(OF_SLURM[:3]) and not name.startswith(_NOT_OF_JOB) and name not in _OF_ONE_TASK
    }


def environment_of_srun(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a call of srun: without variables that would act as its options."""
    return {name: value for name, value in environ.items() if name not in _OPTIONS_OF_SRUN}


_REASONS = {"TimeLimit": "TIMEOUT", "NodeDown": "NODE_FAIL"}
"""Reason of a job that is ending → its final state. A cancelled job has the reason None."""
_ACTIVE = frozenset(("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT"))
_MAX_TEXT = 300
_ANSWER = 15.0
"""Seconds for an answer that is needed. The controller may be busy, but kills a job's processes after KillWait (30)."""


def ask(argv: Sequence[str]) -> str:
    """Return the output of a command; empty if it fails or does not answer in time."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(
            list(argv), input=b"", capture_output=True, timeout=QUEUE_ANSWER, check=True
        ).stdout.decode(errors="replace")
    return ""


def begin_query(argv: Sequence[str]) -> subprocess.Popen[bytes] | None:
    """Start a command of Slurm in the background; None if it can't be started."""
    try:
        return subprocess.Popen(list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError:
        return None


def read_answer(query: subprocess.Popen[bytes]) -> str:
    """Wait for the command, and return its output; empty if it takes too long."""
    try:
        return query.communicate(timeout=_ANSWER)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        end_query(query)
        return ""


def end_query(query: subprocess.Popen[bytes]) -> None:
    """Kill the command, and take its exit code."""
    query.kill()
    query.wait()
    if query.stdout is not None:
        query.stdout.close()


def show_job(job: str) -> list[str]:
    """Return the command that shows a job; `job_end_in` reads its output."""
    return ["scontrol", "show", "job", "-o", job]


def _fields(shown: str) -> dict[str, str]:
    """Return the first value of each field. What users choose, such as the command, comes after Slurm's own fields."""
    fields = {"JobId": ""}
    if shown.startswith("JobId="):
        for word in reversed(shown.split()):
            name, _, value = word.partition("=")
            fields[name] = value[:_MAX_TEXT]
    return fields


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else None


def job_end_in(shown: str, restarts: int | None = None) -> str:
    """Return how a job ends, by the output of `show_job`; empty if it continues or is unknown. Pure.

    `restarts`: earlier requeues; None outside the job. Slurm counts a requeue while the job's processes are still being
    ended. A preempted job keeps its state during a grace time.
    """
    fields = _fields(shown)
    state, reason = fields.get("JobState", ""), fields.get("Reason", "")
    if not fields["JobId"].isdigit():
        return ""
    if restarts is not None and (_number(fields.get("Restarts", "")) or 0) > restarts:
        return REQUEUED
    preempted_at = fields.get("PreemptTime", "")
    if state in _ACTIVE and preempted_at[:1].isdigit() and preempted_at >= fields.get("StartTime", ""):
        return PREEMPTED
    if state == "COMPLETING":
        return _REASONS.get(reason, state)
    return state if describe_run_end(state) else ""


_LEFT = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)")


def show_time_left(job: str) -> list[str]:
    """Return the command that shows how long a job may still run; `seconds_left` reads its output."""
    return ["squeue", "--noheader", "--jobs", job, "--format", "%L"]


def seconds_left(shown: str) -> int | None:
    """Parse the output of `show_time_left`; None without a limit or an answer. Pure."""
    match = _LEFT.fullmatch(shown.strip())
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def own_restarts() -> int:
    """Return how often this process's job was requeued; 0 outside a job."""
    return _number(os.environ.get("SLURM_RESTART_COUNT") or "") or 0


def step_argv(node: str, job: str = "") -> list[str]:
    """Return srun's words for a Slurm step on one node of a job (default: this process's job), sharing its
    resources."""
    options = ["--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}", "--mem=0", "--cpu-bind=none"]
    return ["srun", *options, *([f"--jobid={job}"] if job else []), "--quiet", "--job-name=ipexctl"]


def own_job() -> str:
    """Return the number of this process's job; empty outside a job."""
    return os.environ.get("SLURM_JOB_ID") or os.environ.get("SLURM_JOBID") or ""


TTL = 3600
"""Seconds for which a credential can be opened; a Slurm step may wait for resources. munge's default maximum."""
_MUNGE_ANSWER = 10.0


class MungeError(Exception):
    """munge is missing or refuses; the text is the reason."""


def sign(text: str) -> str:
    """Sign and encrypt a text with munge. Any machine of the cluster can open it once, within TTL, as this account or
    root."""
    return _call(["munge", f"--restrict-uid={os.geteuid()}", f"--ttl={TTL}"], text).strip()


def verify_signed(credential: str) -> str:
    """Open a credential; raises a MungeError if it is invalid or for another account."""
    return _call(["unmunge", "--metadata=/dev/null"], credential)


def _call(argv: list[str], text: str) -> str:
    try:
        done = subprocess.run(argv, input=text.encode(), capture_output=True, timeout=_MUNGE_ANSWER, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MungeError(f"{argv[0]}: {getattr(error, 'strerror', None) or 'it does not answer'}") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise MungeError(lines[-1] if lines else f"{argv[0]} ended with exit code {done.returncode}")
    return done.stdout.decode(errors="replace")
