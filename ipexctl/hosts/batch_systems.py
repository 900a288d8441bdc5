"""The batch systems of clusters: their names, and the variables by which a call is in a job of one.

It imports nothing: each call reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEDULERS: Final = {
    "slurm": ("Slurm", "salloc -N {hosts} --exclusive"),
    "pbs": ("PBS", "qsub -I -l select={hosts}"),
    "lsf": ("LSF", ""),
    "sge": ("Grid Engine", ""),
}
"""Name, and the command that asks for an allocation, if it is the same everywhere."""
_OF_HOSTS: Final = ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "PBS_NODEFILE")


def is_in_allocation(environ: Mapping[str, str]) -> bool:
    """Whether variables name the hosts of an allocation."""
    return any(environ.get(name) for name in _OF_HOSTS)


def job_number(environ: Mapping[str, str]) -> str:
    """The number of the Slurm job of this call; empty outside one."""
    number = job_name(environ)
    return number if number.isascii() and number.isdigit() else ""


def job_name(environ: Mapping[str, str]) -> str:
    """The Slurm job of this call as its variables name it, for messages; empty outside one."""
    return environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID") or ""
