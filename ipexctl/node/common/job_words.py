"""Slurm's words for the end of a job or run, as in records, and sentences for people."""

from __future__ import annotations

from ipexctl.node.common.records import GONE, QueueJob

PREEMPTED, STEP_CANCELLED, LIMIT_NEAR, REQUEUED = "PREEMPTED", "STEP_CANCELLED", "LIMIT_NEAR", "JOB_REQUEUED"
_JOB_ENDS = {
    "CANCELLED": "was cancelled",
    "TIMEOUT": "reached its time limit",
    "NODE_FAIL": "lost a node",
    PREEMPTED: "was preempted",
    "OUT_OF_MEMORY": "ran out of memory",
    "BOOT_FAIL": "had a node that did not start",
    "DEADLINE": "reached its deadline",
    "FAILED": "failed",
    "COMPLETED": "is over",
    "COMPLETING": "was ended, as by scancel",
    REQUEUED: "was put into the queue again",
}
"""Slurm's state of an ended or ending job → what happened."""
_ENDS = {
    **{word: f"its Slurm job{{}} {text}" for word, text in _JOB_ENDS.items()},
    STEP_CANCELLED: "the Slurm step of its ranks was cancelled",
    LIMIT_NEAR: "the time limit of its Slurm job was near",
}


def describe_run_end(word: str, job: str = "") -> str:
    """What Slurm did that stopped a run, as the end of `as …`; empty for an unknown word. `job`: its number."""
    return _ENDS.get(word, "").format(f" {job}" if job else "")


def describe_job_end(job: QueueJob) -> str:
    """How a job ended: `its Slurm job 12 lost a node (NodeDown)`."""
    if job.state in ("", GONE):
        return f"its Slurm job {job.id} has ended (why is not known)"
    state = job.state if job.is_over else "COMPLETED"  # its script ended, and Slurm is about to notice
    text = describe_run_end(state, job.id) or f"its Slurm job {job.id} was ended: {state}"
    return f"{text} ({job.reason})" if job.reason else text
