"""The files of a run that was submitted to a queue, in RUNDIR/slurm, and whether it still waits there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ipexctl.node.common.clock import age_of

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json

_MONTH = 30 * 86400.0

DIRECTORY = "slurm"
"""Of a submitted run, in its own directory."""
REQUEUE_FILE, WAITS_FILE, SECRETS_FILE = f"{DIRECTORY}/requeue", f"{DIRECTORY}/waits", f"{DIRECTORY}/env"
"""Of a submitted run: its job may be put into the queue again; it waits for the next start; variables for the ranks."""
OUTCOME_FILE = f"{DIRECTORY}/outcome.json"
"""The last word about an ended job."""
NO_KILL_FILE = f"{DIRECTORY}/no-kill"
"""Slurm does not end its job when a node is lost, also not when that is node0."""


def directory_of(rundir: str) -> str:
    return os.path.join(rundir, DIRECTORY)


def is_submitted(rundir: str) -> bool:
    return os.path.isdir(directory_of(rundir))


def waits_in_queue(rundir: str, document: Json) -> bool:
    """Whether the run was submitted to Slurm, and nothing says that its job is over: it may begin at any time, or begin
    again. `document`: its status, empty without one.

    Slurm is not asked. Nobody may have seen the end of a job, so after a month it counts no more.
    """
    if document and ("ended" not in document or document["ended"] or not os.path.exists(f"{rundir}/{REQUEUE_FILE}")):
        return False
    directory = directory_of(rundir)
    try:
        age = age_of(os.path.join(directory, "job"))
    except OSError:
        return False
    is_over = any(os.path.exists(os.path.join(rundir, name)) for name in (f"{DIRECTORY}/ended", OUTCOME_FILE))
    return age < _MONTH and not is_over
