"""Slurm's queue as a transport: explains submitted runs that have no record of their own yet. Pure. Slurm's texts are
untrusted: they are shown and decide nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ipexctl.homes.registry import RunRecord
from ipexctl.node.common.batch_job import NO_HOME, NO_PROJECT, NO_PYTHON
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.job_words import LIMIT_NEAR, describe_job_end, describe_run_end
from ipexctl.node.common.plan import with_ranks
from ipexctl.node.common.records import GONE, QueueJob, RunStatus
from ipexctl.option_declaration import CallOptions, for_submit
from ipexctl.remote.outcome import HostError
from ipexctl.remote.reply import Reply
from ipexctl.run.queue import QueueExplanation
from ipexctl.run.why.diagnosis import Diagnosis, Line
from ipexctl.transports import SshTransport

_REASONS: Final = {
    "PartitionConfig": "it asks for more than its partition has, so it never begins",
    "PartitionNodeLimit": "it asks for more nodes than its partition allows",
    "PartitionTimeLimit": "it asks for more time than its partition allows",
    "PartitionDown": "its partition is down",
    "BadConstraints": "no node has what it asks for",
    "BeginTime": "it begins at the time of --begin, or two minutes after Slurm ended its last start",
    "JobHeldUser": "it is held: scontrol release lets it begin",
    "JobHeldAdmin": "an administrator of the cluster holds it",
    "DependencyNeverSatisfied": "the job it depends on did not end as required, so it never begins",
    "QOSMaxJobsPerUserLimit": "the account has its maximum number of jobs",
}
"""Slurm's reasons for waiting that users do not understand, in plain words."""
_NEVER: Final = frozenset(
    ("PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints", "DependencyNeverSatisfied")
)
"""Reasons that waiting does not change."""
_NODES_DOWN: Final = "Nodes_required_for_job_are_DOWN"
_MOST_RANKS: Final = 100_000


def reason_of_wait(job: QueueJob) -> str:
    """Text such as `Slurm job 12: Priority`."""
    reason, meaning = job.reason, _REASONS.get(job.reason)
    if reason.startswith(_NODES_DOWN):
        reason, meaning = "nodes that it needs are down, drained or kept for jobs of higher priority", ""
    return f"Slurm job {job.id}" + (f": {reason}" if reason else "") + (f" ({meaning})" if meaning else "")


def explain_slurm_end(job: QueueJob) -> str:
    """Why the job ended, according to Slurm; empty if Slurm does not say."""
    is_by_slurm = job.is_over and job.state not in (GONE, "COMPLETED", "FAILED")
    return describe_job_end(job) if is_by_slurm else ""


def explain(record: RunRecord, status: RunStatus) -> QueueExplanation:
    job, run = status.slurm, record.id
    if job is None or not job.id:
        return QueueExplanation(
            "Slurm has no job for it", Fix(f"if `ipexctl submit` was interrupted: `ipexctl stop {run}`")
        )
    if status.state == "queued":
        return QueueExplanation(f"queued: {reason_of_wait(job)}", _next_of_waiting(run, job))
    if status.state == "starting":
        where = f" on {job.node}" if job.node else ""
        return QueueExplanation(f"starting{where} in Slurm job {job.id}", Fix(f"`ipexctl attach {run}` follows it"))
    if status.state == "stopped":
        by = "it was stopped" if job.notice == "stop" else describe_run_end("CANCELLED", job.id)
        return QueueExplanation(f"{by} before the run began")
    if status.state == "unknown":
        return QueueExplanation(
            f"Slurm did not answer about job {job.id}: {job.reason or 'no reason is known'}",
            "run the same command again later",
        )
    code = job.script_code if job.script_code is not None else job.exit_code
    login, node = record.node0.name, job.node
    nodes = ", ".join(job.without_home) or node or "its nodes"
    by_code = {
        NO_HOME: (
            f"{nodes} does not share {record.home} with {login}",
            "for install and submit, use --home with a directory that they share",
        ),
        NO_PROJECT: (f"its directory {record.plan.cwd} is not on {node}", ""),
        NO_PYTHON: (
            f"{record.python} cannot be executed on {node}",
            Fix("`ipexctl install` recreates the environment"),
        ),
    }
    reason, fix = by_code.get(code or 0) or (job.why or explain_slurm_end(job), job.fix)
    if reason:
        return QueueExplanation(f"it did not begin: {reason}", CallOptions(record.options.hosts).apply(fix))
    if status.state == "lost":
        return QueueExplanation(
            f"it is unknown how it ended: Slurm no longer knows job {job.id}, and its script left no exit code",
            f"on {login}: sacct -j {job.id}",
        )
    return QueueExplanation(f"it did not begin: the script of job {job.id} ended with exit code {code}")


def _next_of_waiting(run: str, job: QueueJob) -> str:
    if job.reason in _NEVER:
        return Fix(f"`ipexctl stop {run}`; then `ipexctl submit` with other options (-N, -t, -p, --sbatch)")
    return Fix(f"`ipexctl attach {run}` waits for it")


def diagnosis_of(record: RunRecord, status: RunStatus) -> Diagnosis:
    explained, job = explain(record, status), status.slurm
    lines = tuple(Line("supervisor", line) for line in (job.lines if job is not None else ()))
    attach = Fix(f"`ipexctl attach {record.id}`")
    after: tuple[str, ...] = (attach,) if status.state in ("queued", "starting") else ()
    if job is not None and status.state == "queued" and job.reason in _NEVER:
        after = (explained.fix,)
    return Diagnosis(
        record.id,
        status.state,
        f"run {record.id}: {explained.reason}",
        lines=lines,
        whose="the job's script" if lines else "",
        notes=(explained.fix,) if explained.fix and not after else (),
        next=after or (Fix("`ipexctl ps`"),),
        started=status.started,
    )


def with_end_of_job(diagnosis: Diagnosis, status: RunStatus, *, had_notice: bool = False) -> Diagnosis:
    """Add what Slurm did to a run that had begun. `had_notice`: its ranks were told that the job is about to end."""
    cause, notes = diagnosis.cause, tuple(map(for_submit, diagnosis.notes))
    cause = replace(cause, fix=for_submit(cause.fix)) if cause is not None else None
    job, first = status.slurm, status.first_failure
    if had_notice and first is not None and first.kind == "exit":
        note = "its ranks had been told of the time limit: a rank may then exit with code 0 or by the signal"
        notes = (f"{note}; another code is a failure", *notes)
    if job is not None and status.job_end == LIMIT_NEAR:
        near = f"{describe_run_end(LIMIT_NEAR)}, and its ranks had been told, so they may not have finished"
        more = "for more time, submit it with a longer -t, or with --requeue and --checkpoint"
        notes = (*((near,) if status.state == "ok" else ()), more, *notes)
    elif job is not None and status.state in ("stopped", "failed", "lost") and not status.job_end:
        text = explain_slurm_end(job)
        if not text and job.notice == "cancelled":
            text = f"Slurm job {job.id} was cancelled, or reached its time limit"
        if text and status.state == "lost":
            return replace(diagnosis, headline=f"run {diagnosis.id} is lost: {text}", cause=None, notes=())
        if text:
            cause, notes = None, (text, *notes)
    return replace(diagnosis, cause=cause, notes=notes)


def with_place(record: RunRecord, placed: Reply, job: str) -> RunRecord:
    """The record with the job's hosts and ranks. Nodes are reached through the login node, whose home they share."""
    try:
        size, hosts, ranks = placed.integer("world_size"), placed.texts("hosts"), placed.texts("ranks")
    except HostError:
        return record
    if not 0 < size == len(ranks) <= _MOST_RANKS or not 0 < len(hosts) <= _MOST_RANKS:
        return record
    nodes = (record.node0, *(replace(record.node0, name=name) for name in hosts if name != record.node0.name))
    plan = with_ranks(record.plan, hosts, ranks)
    return replace(record, source=plan._replace(job=job or plan.job), nodes=nodes)


class SlurmQueue(SshTransport):
    name: str = "slurm"
    waits: bool = True
    explain = staticmethod(explain)
    diagnosis_of = staticmethod(diagnosis_of)
    with_end_of_job = staticmethod(with_end_of_job)

    def placed(self, record: RunRecord, status: RunStatus, document: Reply) -> tuple[RunRecord, RunStatus]:
        if document.get("placed"):
            job = status.slurm.id if status.slurm is not None else ""
            record = with_place(record, document.record("placed"), job)
        elif status.slurm is not None and not record.plan.job:
            record = replace(record, source=record.plan._replace(job=status.slurm.id))
        if not (status.world_size or document.get("pruned")):
            waiting = status.slurm if status.state == "queued" else None
            reason = explain(record, status).reason if waiting is None else reason_of_wait(waiting)
            status = status._replace(reason=reason)
        return record, status


QUEUE: Final = SlurmQueue()
