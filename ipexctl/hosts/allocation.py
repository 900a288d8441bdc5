"""Read the hosts of a Slurm or PBS job from the environment variables alone.

Slots count only if the user asked for tasks: Slurm's own defaults, such as one task per core, grant none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ipexctl.errors import FileError, UserError
from ipexctl.hosts.detect import read_hosts_file
from ipexctl.hosts.host import Host, WordError, check_host, quote
from ipexctl.hosts.nodeset import MAX_HOSTS, expand
from ipexctl.hosts.source import name_hostfile

SCHEDULERS: Final = {
    "slurm": ("Slurm", "salloc -N {hosts} --exclusive"),
    "pbs": ("PBS", "qsub -I -l select={hosts}"),
    "lsf": ("LSF", ""),
    "sge": ("Grid Engine", ""),
}
"""The command that asks for an allocation; empty if each site has its own."""
_OF_HOSTS: Final = ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "PBS_NODEFILE")


def is_in_allocation(environ: Mapping[str, str]) -> bool:
    """True if this call runs inside a job that a scheduler gave hosts."""
    return any(environ.get(name) for name in _OF_HOSTS)


def job_number(environ: Mapping[str, str]) -> str:
    """Return the number of the Slurm job; empty outside one, and for a job whose id is no number."""
    number = job_name(environ)
    return number if number.isascii() and number.isdigit() else ""


def job_name(environ: Mapping[str, str]) -> str:
    """Return Slurm's job id, for messages; empty outside a Slurm job."""
    return environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID") or ""


_TASKS = re.compile(r"([1-9][0-9]{0,4})(?:\(x([1-9][0-9]{0,5})\))?")
_TASK_REQUESTS: Final = ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE")
_FIX_NAME_HOSTS: Final = "name the hosts yourself: --hosts SPEC, or -H FILE"


def allocated_hosts(environ: Mapping[str, str]) -> tuple[tuple[Host, ...], str] | None:
    """Return the hosts of the job and where they come from; None outside a job."""
    return _slurm(environ) or _pbs(environ)


def node_names(environ: Mapping[str, str]) -> frozenset[str]:
    """Return the names of the nodes of a Slurm job; empty outside one, or if Slurm's list cannot be read."""
    nodes = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST") or ""
    try:
        return frozenset(expand(nodes)) if nodes else frozenset()
    except WordError:
        return frozenset()


def read_tasks(text: str) -> list[int]:
    """Expand Slurm's tasks per node: `2(x3),1` is 2, 2, 2, 1."""
    tasks: list[int] = []
    for part in text.split(","):
        match = _TASKS.fullmatch(part.strip())
        times = int(match[2] or 1) if match else 0
        if match is None or len(tasks) + times > MAX_HOSTS:
            raise WordError(f"{quote(part)} is not a number of tasks such as 2 or 2(x3)")
        tasks.extend([int(match[1])] * times)
    return tasks


def _slurm(environ: Mapping[str, str]) -> tuple[tuple[Host, ...], str] | None:
    """Return the hosts of the Slurm job, and its name; None outside a job. Raises a UserError if Slurm's variables
    can't be read, or contradict each other."""
    variable = "SLURM_JOB_NODELIST" if environ.get("SLURM_JOB_NODELIST") else "SLURM_NODELIST"
    nodes = environ.get(variable, "")
    if not nodes:
        return None
    _refuse_repeated_start(environ)
    # If the job requests no tasks, Slurm sets 1, or one per core in an exclusive job: ignore that default.
    has_request = any(environ.get(name) for name in _TASK_REQUESTS)
    tasks_text = environ.get("SLURM_TASKS_PER_NODE", "") if has_request else ""
    try:
        names = tuple(dict.fromkeys(expand(nodes)))
        for name in names:
            check_host(name)
        variable = "SLURM_TASKS_PER_NODE" if tasks_text else variable
        tasks: list[int | None] = [*read_tasks(tasks_text)] if tasks_text else [None] * len(names)
    except WordError as error:
        raise UserError(f"${variable}: {error.message}", fix=_FIX_NAME_HOSTS) from None
    if not names:
        raise UserError(f"${variable} names no host", fix=_FIX_NAME_HOSTS)
    if len(tasks) != len(names) and environ.get("SLURM_STEP_NODELIST"):
        tasks = [None] * len(names)  # belongs to a step; the job has more nodes
    if len(tasks) != len(names):
        raise UserError(
            f"$SLURM_TASKS_PER_NODE {quote(tasks_text)} is for {len(tasks)} nodes, the job has {len(names)}",
            fix="unset SLURM_TASKS_PER_NODE, or " + _FIX_NAME_HOSTS,
        )
    job = job_name(environ)
    hosts = tuple(Host(name, name, slots=slots) for name, slots in zip(names, tasks, strict=True))
    return hosts, f"Slurm job {job}".rstrip()


def _refuse_repeated_start(environ: Mapping[str, str]) -> None:
    """Refuse a call that srun starts several times at once."""
    task_count = environ.get("SLURM_STEP_NUM_TASKS", "1")
    if task_count.isdecimal() and int(task_count) > 1:
        raise UserError(
            f"srun starts this {task_count} times, and one call starts all ranks", fix="without srun, or with srun -n 1"
        )


def _pbs(environ: Mapping[str, str]) -> tuple[tuple[Host, ...], str] | None:
    """Return the hosts of the PBS job, and its name; None outside a job. Raises a UserError if the node file can't be
    read."""
    path = environ.get("PBS_NODEFILE", "")
    if not path:
        return None
    try:
        hosts = read_hosts_file(Path(path), shown=f"$PBS_NODEFILE ({path})", found=name_hostfile(Path(path), Path()))
    except FileError:
        raise
    except UserError as error:
        raise UserError(error.message, fix=_FIX_NAME_HOSTS) from None
    return hosts, f"PBS job {environ.get('PBS_JOBID', '')}".rstrip()
