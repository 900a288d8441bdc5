"""Ends or requeues a Slurm job that lost node0 and with it the script of the job: asked by ranks of other hosts."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Literal

from ipexctl.node.common import slurm
from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.clock import wait_until
from ipexctl.node.common.files import remove_file, write_json_atomically
from ipexctl.node.common.limits import ORPHANED_JOB
from ipexctl.node.common.queue_files import NO_KILL_FILE, OUTCOME_FILE, REQUEUE_FILE, SECRETS_FILE

if TYPE_CHECKING:
    from ipexctl.node.common.plan import Plan

ORPHAN_CHECK = 15.0
_CALLERS = 3
"""Hosts that query: more than one, because hosts may be lost with node0; not all, to spare the controller."""


def ends_orphaned_job(plan: Plan, rank: int) -> bool:
    is_caller = rank in (host.ranks[0].rank for host in plan.hosts[1 : 1 + _CALLERS])
    return is_caller and bool(slurm.own_job()) and os.path.exists(os.path.join(plan.rundir, NO_KILL_FILE))


def end_orphaned_job(rundir: str) -> None:
    """Wait until it is known whether the job lost node0, and with it the job's script; if so, end or requeue it."""
    wait_until(lambda: _settle_orphaned_job(rundir), ORPHANED_JOB, ORPHAN_CHECK)


def _settle_orphaned_job(rundir: str) -> bool:
    number, restarts, membership = slurm.own_job(), slurm.own_restarts(), None
    shown = slurm.ask(slurm.show_job(number))
    job = slurm.read_job(shown)
    if job is not None:
        with contextlib.suppress(AgentError):
            membership = slurm.call(slurm.show_own_node(number, job.node)).strip()
    state = orphan_state(shown, restarts, membership)
    if state == "orphaned" and os.path.exists(os.path.join(rundir, REQUEUE_FILE)):
        slurm.requeue_job(number, restarts)
    elif state == "orphaned" and job is not None:
        outcome = job._replace(state="NODE_FAIL")._asdict()  # Slurm will call it cancelled
        with contextlib.suppress(OSError):
            write_json_atomically(os.path.join(rundir, OUTCOME_FILE), outcome, durable=False)
            remove_file(os.path.join(rundir, SECRETS_FILE))
        slurm.ask(["scancel", number])
    return state == "over"


def orphan_state(shown: str, restarts: int, membership: str | None) -> Literal["waits", "orphaned", "over"]:
    """What a rank that lost its supervisor should do, if Slurm keeps the job when it loses a node. Pure.

    `shown`: output of `show_job`, empty without an answer. `membership`: output of `show_own_node` for the script's
    node, None without an answer. Slurm removes a node that is down from such a job; then nothing else ends the job
    before its time limit. If the node still belongs to the job, maybe only this rank is cut off.
    """
    job = slurm.read_job(shown)
    if job is None or (job.is_active and membership is None):
        return "waits"
    if not job.is_active or slurm.job_end_in(shown, restarts):
        return "over"
    return "waits" if membership else "orphaned"
