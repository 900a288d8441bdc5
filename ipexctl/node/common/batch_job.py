"""Tells how a run is that was submitted to a queue of Slurm, where its own record does not: before it begins, after its
job was ended from outside, and where another machine with the same home asks.

In: RUNDIR/slurm, with the files of `ipexctl submit` and of the job's script, and what `scontrol show job` says of the
job. Out: a `SlurmJob`, and a status document for a run without a record. What Slurm prints is read by its fields alone,
and counts only if the job has the name of the run: numbers of jobs are used again. Slurm forgets a job after minutes,
so its last word is kept in `outcome.json`. The rule: what neither Slurm nor a file says is not known; a run is not
called ended because nobody answers.

The script's files: `began` (the job has begun on its first node), `notice` (why its script was signalled: `stop`,
`cancelled`), `no-home` (nodes without this home), `ended` (the exit code). `requeue` is there from the beginning if
Slurm may put the job into the queue again, `waits` if its supervisor has left the run to the next start, and `again`
once that has begun.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from typing import TYPE_CHECKING, Sequence

from ipexctl.node.common import slurm
from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.files import (
    REQUEUE_FILE,
    last_lines,
    read_json,
    remove_file,
    waits_in_queue,
    write_atomically,
    write_json_atomically,
)
from ipexctl.node.common.json_records import decode_valid
from ipexctl.node.common.processes import read_text
from ipexctl.node.common.records import SCHEMA, SlurmJob
from ipexctl.node.common.slurm import GOING_ON, WAITING, read_shown, show_job

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json
    from ipexctl.node.common.records import State

DIRECTORY = "slurm"
"""Of a submitted run, in its own directory."""
NO_HOME, NO_PROJECT, NO_PYTHON = 77, 78, 79
"""Exit codes of the script before the run begins."""
ANSWER = 20.0
"""Seconds for a command of Slurm: its controller may be busy."""
ASKED_AGAIN = 5.0
"""Seconds for which an answer of Slurm is used by the same process."""
SILENT = 15.0
"""Seconds without a new status after which Slurm is asked whether the job goes on."""
GONE = "GONE"
"""In place of a state: Slurm does not know the job, or no longer."""
MAX_TEXT = 300
LINES = 30
_asked: dict[str, tuple[float, SlurmJob]] = {}


def directory_of(rundir: str) -> str:
    return os.path.join(rundir, DIRECTORY)


def is_submitted(rundir: str) -> bool:
    return os.path.isdir(directory_of(rundir))


def job_id(rundir: str) -> str:
    """The number of the job; empty where the run was not submitted, or Slurm has not taken it."""
    lines = read_text(os.path.join(directory_of(rundir), "job")).strip().splitlines()
    number = lines[-1].partition(";")[0] if lines else ""
    return number if re.fullmatch(r"[0-9]{1,12}", number) else ""


def read_job(text: str, run: str, number: str) -> SlurmJob:
    """What Slurm shows of the job of this run; `GONE` for a job of another name."""
    shown = read_shown(text)
    if shown is None or shown.id != number or shown.name != run:
        return SlurmJob(number, GONE)
    return SlurmJob(
        number,
        shown.state,
        shown.reason[:MAX_TEXT],
        exit_code=shown.exit_code,
        signal=shown.signal,
        node=shown.batch_host,
        nodes=shown.nodes[:MAX_TEXT],
    )


def call_slurm(argv: Sequence[str], given: bytes = b"") -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command of Slurm; raises an AgentError if it can't be called or is silent."""
    try:
        done = subprocess.run(list(argv), input=given, capture_output=True, timeout=ANSWER, check=False)
    except FileNotFoundError:
        fix = "add the directory of Slurm's programs to PATH there, for commands over ssh"
        raise AgentError(f"there is no {argv[0]} on PATH there", fix) from None
    except subprocess.TimeoutExpired:
        raise AgentError(
            f"Slurm has not answered {argv[0]} for {ANSWER:g} s", "sinfo there shows whether it works"
        ) from None
    except OSError as error:
        raise AgentError(f"{argv[0]} can't be started there: {error.strerror}") from None
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def ask(run: str, number: str) -> SlurmJob:
    """What Slurm says of the job; its state is empty, with a reason, where Slurm does not answer."""
    known = _asked.get(number)
    if known is not None and time.monotonic() - known[0] < ASKED_AGAIN:
        return known[1]
    try:
        code, shown, errors = call_slurm(show_job(number))
        if code == 0:
            job = read_job(shown, run, number)
        elif "Invalid job id" in errors:
            job = SlurmJob(number, GONE)
        else:
            job = SlurmJob(number, "", (errors.strip().splitlines() or ["no answer"])[-1][:MAX_TEXT])
    except AgentError as error:
        job = SlurmJob(number, "", error.reason)
    _asked[number] = time.monotonic(), job
    return job


def job_of(rundir: str) -> SlurmJob | None:
    """The job of a submitted run; None for another run. The last word about an ended job is kept."""
    directory, run, number = directory_of(rundir), os.path.basename(rundir), job_id(rundir)
    if not number:
        return SlurmJob("", "") if os.path.isdir(directory) else None
    kept = read_json(os.path.join(directory, "outcome.json"))
    if kept:
        job = decode_valid(SlurmJob, {**kept, "id": number})
    else:
        job = ask(run, number)
        if is_over(job) and job.state != GONE:
            with contextlib.suppress(OSError):
                write_json_atomically(os.path.join(directory, "outcome.json"), job._asdict(), durable=False)
                remove_file(os.path.join(directory, "env"))  # secrets for a start that does not come
    notice = read_text(os.path.join(directory, "notice")).split()
    ended = read_text(os.path.join(directory, "ended")).strip()
    failed = read_json(os.path.join(directory, "state", "ipexctl", "runs", "failed-call"))
    return job._replace(
        why=str(failed.get("reason") or "")[:2000],
        fix=str(failed.get("fix") or "")[:2000],
        notice=notice[0][:20] if notice else "",
        has_begun=os.path.exists(os.path.join(directory, "began")),
        script_code=int(ended) if re.fullmatch(r"[0-9]{1,3}", ended) else None,
        without_home=tuple(read_text(os.path.join(directory, "no-home")).split()[:16]),
    )


def is_finished(rundir: str, document: Json) -> bool | None:
    """Whether a submitted run is over, by its job; None for another run, and where its own record tells.

    `document`: its status, empty without one. Only a job that may wait is asked about.
    """
    if not job_id(rundir):
        return None
    if waits_in_queue(rundir, document):
        job = job_of(rundir)
        return job is not None and is_over(job)
    return True if not document or document.get("state") == "queued" else None


def begins_again(rundir: str) -> bool:
    """Whether Slurm has put the job of a run that is over into the queue again, as it also does by hand."""
    if not os.path.exists(os.path.join(rundir, REQUEUE_FILE)) or slurm.own_job() == job_id(rundir):
        return False
    job = job_of(rundir)
    return job is not None and job.state in WAITING


def is_cancelled(job: SlurmJob) -> bool:
    """Whether a job that was being ended to begin again was cancelled: with a lost node, its end takes minutes."""
    return job.state == "COMPLETING" and job.notice == "stop"


def is_over(job: SlurmJob) -> bool:
    """Whether the job is known to have ended."""
    return bool(job.state) and job.state not in WAITING | GOING_ON


def state_of(job: SlurmJob) -> State:
    """The state of a run without a record of its own."""
    if not job.id:
        return "unknown"
    if job.state in WAITING:
        return "queued"
    if job.script_code is not None:
        return "stopped" if job.notice in ("stop", "cancelled") else "failed"
    if not job.state:
        return "unknown"
    if job.state in GOING_ON:
        return "starting"
    if job.state == "CANCELLED":
        return "stopped"
    return "lost" if job.state == GONE else "failed"


def document_of(rundir: str) -> Json | None:
    """The status of a submitted run without a record of its own; None for a run that was not submitted."""
    job = job_of(rundir)
    if job is None:
        return None
    directory, state = directory_of(rundir), state_of(job)
    request = read_json(os.path.join(directory, "request.json"))
    lines = (
        last_lines(os.path.join(directory, "output"), 64 << 10, LINES) if state not in ("queued", "starting") else ()
    )
    job = job._replace(lines=tuple(line.decode(errors="replace")[:500] for line in lines))
    return {
        "schema": SCHEMA,
        "id": os.path.basename(rundir),
        "state": state,
        "script": str(request.get("script") or ""),
        "started": request.get("submitted"),
        "ended": None,
        "exit_code": 1 if state in ("failed", "lost") else None,
        "supervisor": {"host": job.node},
        "ranks": [],
        "slurm": job._asdict(),
    }


def with_job(rundir: str, document: Json) -> Json:
    """The status of a run with a record; of a submitted one with its job, as far as files tell. Slurm is not asked."""
    number = job_id(rundir)
    if not number or document.get("slurm"):
        return document
    notice = read_text(os.path.join(directory_of(rundir), "notice")).split()
    job = SlurmJob(number, notice=notice[0][:20] if notice else "", has_begun=True)
    return {**document, "slurm": job._asdict()}


def placed_record(rundir: str) -> Json | None:
    """The record of the run's start, made in the job: its hosts and ranks. None before that, and of other runs."""
    path = os.path.join(directory_of(rundir), "state", "ipexctl", "runs", os.path.basename(rundir) + ".json")
    return read_json(path) or None


def cancel(rundir: str, seconds: float) -> Json:
    """Cancel the job of a run that has no record yet, and wait until Slurm has ended it; its status then."""
    number = job_id(rundir)
    if not number:
        raise AgentError("Slurm has not taken a job of this run", "ipexctl ps shows more")
    code, _, errors = call_slurm(["scancel", number])
    if code:
        raise AgentError(f"scancel {number} failed: {(errors.strip().splitlines() or ['no reason'])[-1][:MAX_TEXT]}")
    write_atomically(os.path.join(directory_of(rundir), "notice"), b"stop\n", durable=False)
    has_record = os.path.exists(os.path.join(rundir, "status.json"))
    until = time.monotonic() + seconds
    while True:
        _asked.pop(number, None)
        job = job_of(rundir)
        if job is None or is_over(job) or (has_record and is_cancelled(job)) or time.monotonic() > until:
            document = document_of(rundir)
            assert document is not None
            return document
        time.sleep(0.2)


def signal_script(rundir: str, name: str) -> None:
    """Signal the script of the job alone, which stops the run; raises an AgentError."""
    code, _, errors = call_slurm(["scancel", "--batch", f"--signal={name}", job_id(rundir)])
    if code:
        raise AgentError(f"Slurm has not passed it on: {(errors.strip().splitlines() or ['no reason'])[-1][:MAX_TEXT]}")


def step_argv(number: str, node: str) -> list[str]:
    """The options of srun for a step on a node of a running job, beside all others."""
    options = [f"--jobid={number}", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}", "--mem=0"]
    return ["srun", *options, "--cpu-bind=none", "--quiet", "--job-name=ipexctl"]
