"""Chooses the starter of a call, and decodes those of records and plans: the only place that compares their names.

srun is chosen only if neither the call nor a hostfile says how to log in; nothing is queried. Other names in a record
belong to an extra, which adds `starter:NAME`; an unknown name counts as mpirun over ssh.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from shutil import which
from typing import TYPE_CHECKING, Final, Literal

from ipexctl.errors import UserError
from ipexctl.extensions import addition
from ipexctl.hosts.batch_systems import job_name
from ipexctl.hosts.host import Host, ssh_options
from ipexctl.starters.direct import DIRECT
from ipexctl.starters.mpirun import OVER_SSH
from ipexctl.text import printable

if TYPE_CHECKING:
    from ipexctl.starters.starter import RankStarter, Starter

Transport = Literal["auto", "ssh", "srun"]
_SRUN: Final = "srun"
"""Its module is imported only by calls within a job, which are few."""


def starter_of(name: str) -> Starter:
    if name == _SRUN:
        from ipexctl.starters.srun import OVER_SRUN

        return OVER_SRUN
    added: Starter | None = None if name == OVER_SSH.name else addition(f"starter:{name}")
    return added or OVER_SSH


def rank_starter_of(flavor: str) -> RankStarter | None:
    """The starter of a plan; None if an MPI starts its ranks."""
    if flavor == _SRUN:
        from ipexctl.starters.srun import STEP

        return STEP
    return DIRECT if flavor == DIRECT.flavor else None


def choose_starter(
    wanted: Transport,
    hosts: Sequence[Host] | None,
    environ: Mapping[str, str],
    *,
    find_program: Callable[[str], str | None] = which,
) -> Starter:
    """The way to the hosts of a call. None as `wanted` means a command that needs ssh. Inside a Slurm allocation it is
    srun, unless the call says how to log in."""
    if wanted == "ssh":
        return OVER_SSH
    if hosts is None:
        if wanted == "srun":
            raise UserError("--transport srun is not for this command, which uses ssh", fix="without --transport")
        return OVER_SSH
    job = job_name(environ)
    if wanted == "auto" and not job:
        return OVER_SSH
    from ipexctl.hosts.allocation import node_names  # few calls are in a job

    names, has_srun = node_names(environ), find_program(_SRUN) is not None
    others = [host.name for host in hosts if host.name not in names and host.address != "localhost"]
    if wanted == "auto":
        is_over_srun = names and has_srun and not others and not any(map(ssh_options, hosts))
        return starter_of(_SRUN) if is_over_srun else OVER_SSH
    if not (job and names):
        raise UserError(
            "--transport srun is for an allocation of Slurm, and this call is in none",
            fix="salloc gets one; or without --transport",
        )
    if not has_srun:
        raise UserError("--transport srun: there is no srun on PATH", fix="load Slurm's module, or --transport ssh")
    if others:
        names_of_others = ", ".join(map(printable, others))
        raise UserError(
            f"--transport srun: not in the allocation of Slurm job {printable(job)}: {names_of_others}",
            fix="without --hosts and -H, all nodes of the allocation are taken; or --transport ssh",
        )
    return starter_of(wanted)
