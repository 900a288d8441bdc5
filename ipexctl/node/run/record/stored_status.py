"""Reads a run's `status.json` on node0, and marks the run as lost if its supervisor has died."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, NamedTuple

from ipexctl.node.common.answer import AgentError, Json
from ipexctl.node.common.clock import seconds_since
from ipexctl.node.common.files import write_json_atomically
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.job_words import describe_job_end, describe_run_end
from ipexctl.node.common.json_records import JsonError, parse_object, read_json_file
from ipexctl.node.common.liveness import REPORT_LIMITS, age_for_follower, liveness_of
from ipexctl.node.common.queue_files import is_submitted
from ipexctl.node.common.records import FINAL, RunStatus, read_status, with_job

if TYPE_CHECKING:
    from ipexctl.node.common.records import QueueJob


class NoRecord(AgentError):
    """Raised if the run has no record, or no longer has one."""


class StoredStatus(NamedTuple):
    status: RunStatus
    document: Json
    """The file's content, with fields of newer versions."""
    written: float
    """When the file was written, in seconds since the epoch."""


def read_status_file(rundir: str, *, is_copy: bool = False, unchanged_for: float | None = None) -> StoredStatus:
    """Read a status. `is_copy`: the supervisor is not checked. `unchanged_for`: seconds since the caller saw a new
    status; None if it does not watch the file."""
    path = os.path.join(rundir, "status.json")
    stored = read_document(path)
    age = seconds_since(stored.written)
    if unchanged_for is not None:  # does not depend on another machine's clock
        age = age_for_follower(age, unchanged_for)
    if is_copy or stored.status.is_over:
        return stored
    job = _job_of(rundir, stored.status, seconds_since(stored.written) if unchanged_for is None else unchanged_for)
    if job is not None:
        is_over = job.is_cancelled or job.run_state in FINAL
        if not is_over and (job.is_waiting or stored.status.state == "queued"):
            return _waiting_again(stored, job)
    else:
        is_over = stored.status.state != "queued" and liveness_of(stored.status, age, REPORT_LIMITS) == "dead"
    if not is_over:
        return stored
    stored = read_document(path)  # the supervisor may have written its last status just before it exited
    if stored.status.is_over:
        return stored
    lost = as_lost(stored.document, stored.written, job)
    if stored.status.supervisor.is_of_this_machine or job is not None:
        with contextlib.suppress(OSError):  # the disk is full: the old status stays
            write_json_atomically(path, lost, durable=False)
    return stored._replace(status=read_status(lost), document=lost)


def read_document(path: str) -> StoredStatus:
    """Read a status without checking the supervisor."""
    try:
        document: Json = read_json_file(path)
        written = os.stat(path).st_mtime
    except FileNotFoundError:
        raise no_record(os.path.dirname(path)) from None
    except (OSError, JsonError) as error:
        raise AgentError(f"{path} can't be read: {getattr(error, 'strerror', None) or error}") from None
    kinds = {"state": str, "supervisor": dict, "ranks": list}
    if not isinstance(document, dict) or not all(isinstance(document.get(name), kinds[name]) for name in kinds):
        raise AgentError(f"{path} can't be read: it is not the record of a run")
    return StoredStatus(read_status(document), document, written)


def _job_of(rundir: str, status: RunStatus, silent_for: float) -> QueueJob | None:
    """A submitted run's job, if the queue or the job's script knows its state. The queue is asked only about a run that
    waits, or that was silent and has its supervisor on another machine."""
    if not is_submitted(rundir):
        return None
    if status.state != "queued" and status.supervisor.is_of_this_machine:
        return None
    from ipexctl.node.common import batch_job  # most runs were not submitted

    if status.state != "queued" and silent_for < batch_job.SILENT:
        return None
    job = batch_job.job_of(rundir)
    return job if job is not None and (job.state or job.script_code is not None) else None


def _waiting_again(stored: StoredStatus, job: QueueJob) -> StoredStatus:
    """Status of a run whose job was requeued, as after a node failure, or has just started again. Such a job is
    COMPLETING until its processes have ended, which takes minutes with a lost node."""
    waits = job.is_waiting or (stored.status.state == "queued" and job.state == "COMPLETING")
    document = with_job({**stored.document, "state": "queued" if waits else "starting"}, job)
    return stored._replace(status=read_status(document), document=document)


def as_lost(document: Json, at: float, job: QueueJob | None = None) -> Json:
    ranks = [
        {**entry, "state": entry.get("state") if entry.get("state") in FINAL else "lost"}
        for entry in document["ranks"]
        if isinstance(entry, dict)
    ]
    lost = {**document, "state": "lost", "reason": "its supervisor on node0 has died", "ended": at, "ranks": ranks}
    if job is None:
        return lost
    lost = with_job({**lost, "reason": describe_job_end(job)}, job)
    if document.get("state") == "queued":  # its supervisor did not die, but left the run to the next start
        is_stopped, nodes = job.notice == "stop", ", ".join(job.without_home)
        is_cancelled, word = job.state == "CANCELLED" or is_stopped, "" if is_stopped else job.state
        lost.update(state="stopped" if is_cancelled else "failed", exit_code=143 if is_cancelled else 1)
        lost.update(first_failure=None, job_end=word if describe_run_end(word) else "")
        if reason := job.why or (f"{nodes} does not have the home of the login node" if nodes else ""):
            lost["reason"] = f"it did not start again: {reason}"
        elif is_stopped:
            lost["reason"] = "it was stopped"
    return lost


def read_pruned(runs_directory: str) -> dict[str, Json]:
    pruned: dict[str, Json] = {}
    with contextlib.suppress(OSError), open(os.path.join(runs_directory, ".pruned.jsonl"), "rb") as file:
        for line in file:
            # A full disk or a killed call may have left an incomplete line.
            with contextlib.suppress(ValueError, KeyError, TypeError):
                entry = parse_object(line)
                pruned[str(entry["id"])] = {**entry, "at": float(entry["at"]), "why": str(entry["why"])}
    return pruned


def no_record(rundir: str) -> NoRecord:
    runs_directory, run = os.path.split(rundir)
    entry = read_pruned(runs_directory).get(run)
    if entry is None:
        return NoRecord("there is no record of this run there (any more)", Fix("`ipexctl ps` lists the runs"))
    day = time.strftime("%Y-%m-%d", time.localtime(entry["at"]))
    return NoRecord(
        f"its logs were pruned on {day}: {entry['why']}",
        "to keep logs longer, set IPEXCTL_KEEP_DAYS and IPEXCTL_KEEP_GB for ipexctl run",
    )
