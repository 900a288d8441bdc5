"""Slurm's words for the end of a job or run, as in records, and sentences for people."""

from __future__ import annotations

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
    REQUEUED: "was requeued",
}
"""Slurm's state of a job that has ended or is ending → what happened."""
_ENDS = {
    **{word: f"its Slurm job{{}} {text}" for word, text in _JOB_ENDS.items()},
    STEP_CANCELLED: "the Slurm step of its ranks was cancelled",
    LIMIT_NEAR: "the time limit of its Slurm job was near",
}


def describe_run_end(word: str, job: str = "") -> str:
    """Return what Slurm did that stopped a run, as a clause; empty for an unknown word."""
    return _ENDS.get(word, "").format(f" {job}" if job else "")
