"""Explains a submitted run that has no record of its own yet, or none any more; and finds its place once it has begun.

In come the status that the login node answers and the record of the registry; out go sentences with what to type, a
diagnosis for `why`, and the record with the hosts and ranks that the job has got. Pure. Slurm's words are untrusted
text: they are shown, and decide nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ipexctl.call_options import CallOptions, for_submit
from ipexctl.node.common.batch_job import GONE, NO_HOME, NO_PROJECT, NO_PYTHON
from ipexctl.node.common.slurm import GOING_ON, JOB_ENDS, LIMIT_NEAR, WAITING, describe_run_end
from ipexctl.remote.outcome import HostError
from ipexctl.text import printable

if TYPE_CHECKING:
    from ipexctl.jobs.registry import RunRecord
    from ipexctl.jobs.why.diagnosis import Diagnosis
    from ipexctl.node.common.records import RunStatus, SlurmJob
    from ipexctl.remote.reply import Reply

_REASONS: Final = {
    "PartitionConfig": "it asks for more than its partition has, and does not begin",
    "PartitionNodeLimit": "it asks for more nodes than its partition allows",
    "PartitionTimeLimit": "it asks for more time than its partition allows",
    "PartitionDown": "its partition is down",
    "BadConstraints": "no node has what it asks for",
    "BeginTime": "it begins at its time: that of --begin, or two minutes after a start that Slurm has ended",
    "JobHeldUser": "it is held: scontrol release lets it begin",
    "JobHeldAdmin": "an administrator of the cluster holds it",
    "DependencyNeverSatisfied": "the job that it depends on has not ended as it needs, and it does not begin",
    "QOSMaxJobsPerUserLimit": "the account has as many jobs as it may",
}
"""Of Slurm's words for a wait, those that do not say it."""
_NEVER: Final = frozenset(
    ("PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints", "DependencyNeverSatisfied")
)
"""Of these, those that waiting does not change."""
_NODES_DOWN: Final = "Nodes_required_for_job_are_DOWN"
_MOST_RANKS: Final = 100_000


@dataclass(frozen=True, slots=True)
class Explained:
    """A sentence, and what to type."""

    reason: str
    fix: str = ""


def reason_of_wait(job: SlurmJob) -> str:
    """`Slurm job 12: Priority`."""
    reason, why = job.reason, _REASONS.get(job.reason)
    if reason.startswith(_NODES_DOWN):
        reason, why = "nodes that it needs are down, drained or kept for jobs of higher priority", ""
    return f"Slurm job {job.id}" + (f": {printable(reason)}" if reason else "") + (f" ({why})" if why else "")


def ended_by_slurm(job: SlurmJob) -> str:
    """Why the job ended, as far as Slurm tells; empty if it does not."""
    if job.state in ("", GONE, "COMPLETED", "FAILED") or job.state in WAITING | GOING_ON:
        return ""
    more = f" ({printable(job.reason)})" if job.reason else ""
    what = JOB_ENDS.get(job.state) or f"was ended: {printable(job.state)}"
    return f"its Slurm job {job.id} {what}{more}"


def explain(record: RunRecord, status: RunStatus) -> Explained:
    """Why a run without a record of its own is as it is."""
    job, run = status.slurm, record.id
    if job is None or not job.id:
        return Explained("Slurm has no job of it", f"if ipexctl submit was cut off: ipexctl stop {run}")
    if status.state == "queued":
        return Explained(f"queued: {reason_of_wait(job)}", _next_of_waiting(run, job))
    if status.state == "starting":
        where = f" on {printable(job.node)}" if job.node else ""
        return Explained(f"starting{where} in Slurm job {job.id}", f"ipexctl attach {run} follows it")
    if status.state == "stopped":
        return Explained(f"{_stopped_by(job)} before the run began")
    if status.state == "unknown":
        return Explained(
            f"Slurm does not answer about job {job.id}: {printable(job.reason) or 'no reason is known'}",
            "the same command again, later",
        )
    code = job.script_code if job.script_code is not None else job.exit_code
    login = record.node0.name
    if code == NO_HOME:
        nodes = printable(", ".join(job.without_home) or job.node or "its nodes")
        return Explained(
            f"it did not begin: {nodes} does not have {record.home} of {login}",
            _on_login(record, "a directory that they share: ipexctl install --home DIR; then submit with --home DIR"),
        )
    if code == NO_PROJECT:
        return Explained(f"it did not begin: its directory {record.cwd} is not on {printable(job.node)}")
    if code == NO_PYTHON:
        return Explained(
            f"it did not begin: {record.python} cannot be executed on {printable(job.node)}",
            _on_login(record, "ipexctl install makes the environment again"),
        )
    if job.why:
        return Explained(f"it did not begin: {printable(job.why)}", _on_login(record, printable(job.fix)))
    if by_slurm := ended_by_slurm(job):
        return Explained(f"it did not begin: {by_slurm}")
    if status.state == "lost":
        return Explained(
            f"its end is not known: Slurm no longer knows job {job.id}, and its script left none",
            f"on {login}: sacct -j {job.id}",
        )
    return Explained(f"it did not begin: the script of job {job.id} ended with exit code {code}")


def _next_of_waiting(run: str, job: SlurmJob) -> str:
    if job.reason in _NEVER:
        return f"ipexctl stop {run}; then ipexctl submit with other options (-N, -t, -p, --sbatch)"
    return f"ipexctl attach {run} waits for it"


def _stopped_by(job: SlurmJob) -> str:
    return "it was stopped" if job.notice == "stop" else f"its Slurm job {job.id} was cancelled"


def _on_login(record: RunRecord, fix: str) -> str:
    """With the options that lead commands to the login node."""
    return CallOptions(record.again).apply(fix)


def diagnosis_of(record: RunRecord, status: RunStatus) -> Diagnosis:
    """For `why`, of a run without a record of its own."""
    from ipexctl.jobs.why.diagnosis import Diagnosis, Line  # with the table of errors, which only `why` needs

    explained, job = explain(record, status), status.slurm
    lines = tuple(Line("supervisor", printable(line)) for line in (job.lines if job is not None else ()))
    after = (f"ipexctl attach {record.id}",) if status.state in ("queued", "starting") else ()
    if job is not None and status.state == "queued" and job.reason in _NEVER:
        after = (explained.fix,)
    return Diagnosis(
        record.id,
        status.state,
        f"run {record.id}: {explained.reason}",
        lines=lines,
        whose="the job's script" if lines else "",
        notes=(explained.fix,) if explained.fix and not after else (),
        next=after or ("ipexctl ps",),
        started=status.started,
    )


def with_end_of_job(diagnosis: Diagnosis, status: RunStatus, *, had_notice: bool = False) -> Diagnosis:
    """The diagnosis of a run that had begun, with what Slurm did to it: then no other cause is looked for.

    `had_notice`: its ranks had been told that the job is about to end.
    """
    if diagnosis.cause is not None:
        diagnosis = replace(diagnosis, cause=replace(diagnosis.cause, fix=for_submit(diagnosis.cause.fix)))
    diagnosis = replace(diagnosis, notes=tuple(map(for_submit, diagnosis.notes)))
    job, first = status.slurm, status.first_failure
    if had_notice and first is not None and first.kind == "exit":
        note = "its ranks had got the notice of the time limit: a rank may end itself then by exit code 0 or the signal"
        diagnosis = replace(diagnosis, notes=(f"{note}; another code is a failure", *diagnosis.notes))
    if job is not None and status.state == "ok" and status.job_end == LIMIT_NEAR:
        note = f"{describe_run_end(LIMIT_NEAR)}, and ranks had been told: they may not be at their end"
        more = "more time: ipexctl submit -t TIME, or --requeue --checkpoint PATH"
        return replace(diagnosis, notes=(note, more, *diagnosis.notes))
    if job is None or status.state not in ("stopped", "failed", "lost"):
        return diagnosis
    text = ended_by_slurm(job)
    if status.job_end == LIMIT_NEAR:
        more = "more time: ipexctl submit -t TIME, or --requeue --checkpoint PATH"
        return replace(diagnosis, notes=(more, *diagnosis.notes))
    if status.job_end:  # the diagnosis says so
        return diagnosis
    if not text and job.notice == "cancelled":
        text = f"Slurm job {job.id} was cancelled, or its time was over"
    if not text:
        return diagnosis
    if status.state == "lost":
        return replace(diagnosis, headline=f"run {diagnosis.id} is lost: {text}", cause=None, notes=())
    return replace(diagnosis, cause=None, notes=(text, *diagnosis.notes))


def with_place(record: RunRecord, placed: Reply, job: str) -> RunRecord:
    """The record with the hosts and ranks that the run has got in its job. What can't be is left out.

    All files are in one home, so each node is reached through the login node.
    """
    try:
        size, hosts, ranks = placed.integer("world_size"), placed.texts("hosts"), placed.texts("ranks")
    except HostError:
        return record
    if not 0 < size <= _MOST_RANKS or len(hosts) > _MOST_RANKS or len(ranks) not in (0, size):
        return record
    nodes = (record.node0, *(replace(record.node0, name=name) for name in hosts if name != record.node0.name))
    return replace(record, world_size=size, hosts=hosts, ranks=ranks, nodes=nodes, job=job or record.job)
