"""Batch systems: their names, and the variables that show that a call runs in one of their jobs.

Imports nothing because each call loads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SCHEDULERS: Final = {
    "slurm": ("Slurm", "salloc -N {hosts} --exclusive"),
    "pbs": ("PBS", "qsub -I -l select={hosts}"),
    "lsf": ("LSF", ""),
    "sge": ("Grid Engine", ""),
}
"""Name → the command that asks for an allocation; empty if each site has its own."""
_OF_HOSTS: Final = ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "PBS_NODEFILE")


def is_in_allocation(environ: Mapping[str, str]) -> bool:
    return any(environ.get(name) for name in _OF_HOSTS)


def job_number(environ: Mapping[str, str]) -> str:
    number = job_name(environ)
    return number if number.isascii() and number.isdigit() else ""


def job_name(environ: Mapping[str, str]) -> str:
    """Slurm's job id, for messages; empty outside a Slurm job."""
    return environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID") or ""
