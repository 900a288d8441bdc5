"""The files of a submitted run, in RUNDIR/slurm, and whether it still waits in the queue.

The job's script also writes `notice` (why it was signalled), `no-home` (nodes without this home), `ended` (exit code),
and `again` (the start that a run in `waits` was left to has begun).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ipexctl.node.common.clock import age_of

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json

_MONTH = 30 * 86400.0

DIRECTORY = "slurm"
REQUEUE_FILE, WAITS_FILE, SECRETS_FILE = f"{DIRECTORY}/requeue", f"{DIRECTORY}/waits", f"{DIRECTORY}/env"
OUTCOME_FILE = f"{DIRECTORY}/outcome.json"
NO_KILL_FILE = f"{DIRECTORY}/no-kill"
"""Exists if Slurm keeps the job when a node is lost, even node0."""


def directory_of(rundir: str) -> str:
    return os.path.join(rundir, DIRECTORY)


def is_submitted(rundir: str) -> bool:
    return os.path.isdir(directory_of(rundir))


def waits_in_queue(rundir: str, document: Json) -> bool:
    """True if the run was submitted to Slurm and may still begin, or begin again. Slurm is not asked: the job's end can
    go unseen, so after a month the job counts as over. `document`: the run's status, or empty."""
    if document and ("ended" not in document or document["ended"] or not os.path.exists(f"{rundir}/{REQUEUE_FILE}")):
        return False
    directory = directory_of(rundir)
    try:
        age = age_of(os.path.join(directory, "job"))
    except OSError:
        return False
    is_over = any(os.path.exists(os.path.join(rundir, name)) for name in (f"{DIRECTORY}/ended", OUTCOME_FILE))
    return age < _MONTH and not is_over
