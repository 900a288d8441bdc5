"""Takes a submitted run's state from its Slurm job when the run's own record does not tell: before the run begins,
after its job was killed, and on another machine with the same home.

Job numbers are reused, so a job counts only if it has the run's name. Slurm forgets a job after minutes, so its last
state is stored in `outcome.json`. If Slurm does not answer, a run never counts as over.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, Sequence

from ipexctl.node.common import slurm
from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.clock import Countdown, wait_until
from ipexctl.node.common.files import (
    last_lines,
    read_json,
    remove_file,
    write_atomically,
    write_json_atomically,
)
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.json_records import decode_valid
from ipexctl.node.common.plan import PLAN_FILE, read_outline
from ipexctl.node.common.processes import read_text
from ipexctl.node.common.queue_files import OUTCOME_FILE, REQUEUE_FILE, directory_of, is_submitted, waits_in_queue
from ipexctl.node.common.records import GONE, SCHEMA, QueueJob
from ipexctl.node.common.slurm import read_job, show_job

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json

NO_HOME, NO_PROJECT, NO_PYTHON = 77, 78, 79
"""Exit codes with which the script fails before the run begins."""
ASKED_AGAIN = 5.0
"""Seconds for which Slurm's last answer about a job is reused."""
SILENT = 15.0
"""Seconds without a new status until Slurm is asked about the job."""
LINES = 30
_asked: dict[str, tuple[Countdown, QueueJob]] = {}


def job_id(rundir: str) -> str:
    """Job number; empty if the run was not submitted or Slurm did not accept it."""
    lines = read_text(os.path.join(directory_of(rundir), "job")).strip().splitlines()
    number = lines[-1].partition(";")[0] if lines else ""
    return number if re.fullmatch(r"[0-9]{1,12}", number) else ""


def is_own(rundir: str) -> bool:
    return slurm.own_job() == job_id(rundir)


def signal_script(rundir: str) -> None:
    argv = ["scancel", "--batch", "--signal=USR2", job_id(rundir)]
    slurm.call(argv, failed="Slurm did not pass on the signal")


def call_agent(rundir: str, node: str, words: Sequence[str], line: bytes) -> None:
    python = str(read_json(os.path.join(directory_of(rundir), "request.json")).get("python") or "python3")
    argv = [*slurm.step_argv(node, job_id(rundir)), python, "-IS", f"{rundir}/agent.zip", *words]
    slurm.call(argv, line, failed=f"the run's supervisor on {node} can't be reached by srun")


def query_job(run: str, number: str) -> QueueJob:
    """Ask Slurm about the job. The state is `GONE` if Slurm does not know it or it is not the run's; empty if Slurm
    does not answer."""
    known = _asked.get(number)
    if known is not None and not known[0].is_over:
        return known[1]
    try:
        job = read_job(slurm.call(show_job(number)), run) or QueueJob(number, GONE)
    except AgentError as error:
        is_gone = "Invalid job id" in error.reason
        job = QueueJob(number, GONE) if is_gone else QueueJob(number, "", error.reason)
    _asked[number] = Countdown(ASKED_AGAIN), job
    return job


def job_of(rundir: str) -> QueueJob | None:
    """Job of a submitted run, else None. Stores the final state of an ended job."""
    directory, run, number = directory_of(rundir), os.path.basename(rundir), job_id(rundir)
    if not number:
        return QueueJob("", "") if os.path.isdir(directory) else None
    kept = read_json(os.path.join(rundir, OUTCOME_FILE))
    if kept:
        job = decode_valid(QueueJob, {**kept, "id": number})
    else:
        job = query_job(run, number)
        if job.is_over and job.state != GONE:
            with contextlib.suppress(OSError):
                write_json_atomically(os.path.join(rundir, OUTCOME_FILE), job._asdict(), durable=False)
                remove_file(os.path.join(directory, "env"))  # secrets for a start that will not happen
    ended = read_text(os.path.join(directory, "ended")).strip()
    failed = read_json(os.path.join(directory, "state", "ipexctl", "runs", "failed-call"))
    return job._replace(
        why=str(failed.get("reason") or "")[:2000],
        fix=str(failed.get("fix") or "")[:2000],
        notice=_notice_of(rundir),
        script_code=int(ended) if re.fullmatch(r"[0-9]{1,3}", ended) else None,
        without_home=tuple(read_text(os.path.join(directory, "no-home")).split()[:16]),
    )


def _notice_of(rundir: str) -> str:
    return read_text(os.path.join(directory_of(rundir), "notice")).strip()[:20]


def is_finished(rundir: str, document: Json) -> bool | None:
    """Whether the job of a submitted run says that the run is over; None if its own record tells, and for other runs.

    `document`: the run's status, or empty.
    """
    if not job_id(rundir):
        return None
    if waits_in_queue(rundir, document):
        job = job_of(rundir)
        return job is not None and job.is_over
    return True if not document or document.get("state") == "queued" else None


def begins_again(rundir: str) -> bool:
    """True if Slurm, or somebody by hand, requeued the job of a finished run."""
    if not os.path.exists(os.path.join(rundir, REQUEUE_FILE)) or is_own(rundir):
        return False
    job = job_of(rundir)
    return job is not None and job.is_waiting


def document_of(rundir: str) -> Json | None:
    """Status of a submitted run without its own record; None if it was not submitted."""
    job = job_of(rundir)
    if job is None:
        return None
    directory, state = directory_of(rundir), job.run_state
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
    """Add a submitted run's job to its status, without asking Slurm."""
    number = job_id(rundir)
    if not number or document.get("slurm"):
        return document
    job = QueueJob(number, notice=_notice_of(rundir))
    return {**document, "slurm": job._asdict()}


def placed_record(rundir: str) -> Json | None:
    """Hosts and ranks by the run's plan; None before `ipexctl run` has begun it, and for runs not submitted."""
    document = read_json(os.path.join(rundir, PLAN_FILE)) if is_submitted(rundir) else {}
    if not document:
        return None
    try:
        plan = read_outline(document)
    except ValueError:  # by another version, or damaged
        return None
    return {"world_size": plan.world_size, "hosts": plan.names, "ranks": plan.rank_hosts}


def cancel(rundir: str, seconds: float) -> Json:
    """Cancel the job of a run without a record, and wait for its end; returns the status."""
    number = job_id(rundir)
    if not number:
        raise AgentError("Slurm did not accept this run's job", Fix("`ipexctl ps` shows more"))
    slurm.call(["scancel", number], failed=f"scancel {number} failed")
    write_atomically(os.path.join(directory_of(rundir), "notice"), b"stop\n", durable=False)
    has_record = os.path.exists(os.path.join(rundir, "status.json"))

    def has_ended() -> bool:
        _asked.pop(number, None)
        job = job_of(rundir)
        return job is None or job.is_over or (has_record and job.is_cancelled)

    wait_until(has_ended, seconds, 0.2)
    document = document_of(rundir)
    assert document is not None
    return document
