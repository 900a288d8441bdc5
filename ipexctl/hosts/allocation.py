"""The hosts a batch system gave us: Slurm's variables or the file PBS names.

Only what the environment says is read here; neither system is asked anything.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ipexctl.errors import FileError, UserError
from ipexctl.hosts.detect import read_hosts_file
from ipexctl.hosts.host import Host
from ipexctl.hosts.names import WordError, check_host, quoted
from ipexctl.hosts.nodeset import MAX_HOSTS, expand
from ipexctl.text import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

_TASKS = re.compile(r"([1-9][0-9]{0,4})(?:\(x([1-9][0-9]{0,5})\))?")
_ASKED: Final = ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE")
_INSTEAD: Final = "name the hosts yourself: --hosts SPEC, or -H FILE"


def allocated_hosts(environ: Mapping[str, str]) -> tuple[tuple[Host, ...], str] | None:
    """The allocation we are inside and what people call it, or nothing."""
    return _slurm(environ) or _pbs(environ)


def read_tasks(text: str) -> list[int]:
    """Slurm's tasks of each node, written short: `2(x3),1` is 2, 2, 2, 1."""
    tasks: list[int] = []
    for part in text.split(","):
        match = _TASKS.fullmatch(part.strip())
        times = int(match[2] or 1) if match else 0
        if match is None or len(tasks) + times > MAX_HOSTS:
            raise WordError(f"{quoted(part)} is no number of tasks such as 2 or 2(x3)")
        tasks.extend([int(match[1])] * times)
    return tasks


def _slurm(environ: Mapping[str, str]) -> tuple[tuple[Host, ...], str] | None:
    variable = "SLURM_JOB_NODELIST" if environ.get("SLURM_JOB_NODELIST") else "SLURM_NODELIST"
    nodes = environ.get(variable, "")
    if not nodes:
        return None
    _refuse_many(environ)
    # Where nobody asked for tasks, Slurm says one, or, in an exclusive job, one a core: that is no wish.
    asked = any(environ.get(name) for name in _ASKED)
    tasks_text = environ.get("SLURM_TASKS_PER_NODE", "") if asked else ""
    try:
        names = tuple(dict.fromkeys(expand(nodes)))
        for name in names:
            check_host(name)
        variable = "SLURM_TASKS_PER_NODE" if tasks_text else variable
        tasks: list[int | None] = [*read_tasks(tasks_text)] if tasks_text else [None] * len(names)
    except WordError as error:
        raise UserError(f"${variable}: {error.message}", fix=_INSTEAD) from None
    if not names:
        raise UserError(f"${variable} names no host", fix=_INSTEAD)
    if len(tasks) != len(names) and environ.get("SLURM_STEP_NODELIST"):
        tasks = [None] * len(names)  # the step's, and the job has more nodes than that
    if len(tasks) != len(names):
        raise UserError(
            f"$SLURM_TASKS_PER_NODE {quoted(tasks_text)} is for {len(tasks)} nodes, the job has {len(names)}",
            fix="unset SLURM_TASKS_PER_NODE, or " + _INSTEAD,
        )
    job = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID") or ""
    hosts = tuple(Host(name, name, slots=slots) for name, slots in zip(names, tasks, strict=True))
    return hosts, f"Slurm job {printable(job)}".rstrip()


def _refuse_many(environ: Mapping[str, str]) -> None:
    many = environ.get("SLURM_STEP_NUM_TASKS", "1")
    if many.isdecimal() and int(many) > 1:
        raise UserError(
            f"srun starts this {many} times, and one call starts all ranks", fix="without srun, or: srun -n 1 …"
        )


def _pbs(environ: Mapping[str, str]) -> tuple[tuple[Host, ...], str] | None:
    path = environ.get("PBS_NODEFILE", "")
    if not path:
        return None
    try:
        hosts = read_hosts_file(Path(path), shown=f"$PBS_NODEFILE ({path})", found=path)
    except FileError:
        raise
    except UserError as error:
        raise UserError(error.message, fix=_INSTEAD) from None
    return hosts, f"PBS job {printable(environ.get('PBS_JOBID', ''))}".rstrip()
