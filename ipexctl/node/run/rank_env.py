"""The number of a rank, as set by mpirun, and the environment of its command and of mpirun."""

from __future__ import annotations

import os
import pwd
import shlex
import subprocess
from typing import TYPE_CHECKING, Collection

if TYPE_CHECKING:
    from ipexctl.node.common.job import JobRecord, Master, Variables

RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID")
SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_NTASKS")
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK")
LAUNCHER_PREFIXES = ("TORCHELASTIC_", "GROUP_", "ROLE_")
SOURCED = 90.0
"""Seconds for a setup file: one that waits for input would block the run without a message."""


class RankStartError(Exception):
    """This rank can't start; the text is the reason."""


class SetupError(OSError):
    """A setup file could not be sourced; `strerror` is the reason."""


def find_rank(job: JobRecord) -> int:
    number = next((os.environ[name] for name in RANKS if os.environ.get(name, "").isdigit()), None)
    if number is None:
        raise RankStartError(f"mpirun set none of {', '.join(RANKS)}, so this rank has no number")
    if int(number) not in job.ranks:
        raise RankStartError(f"mpirun started rank {number} here, where it wasn't planned")
    size = next((os.environ[name] for name in SIZES if os.environ.get(name, "").isdigit()), None)
    if size is not None and int(size) != job.world_size:
        raise RankStartError(f"mpirun says there are {size} ranks, and the plan {job.world_size}")
    return int(number)


def environment(job: JobRecord, rank: int, master: Master, attempt: int) -> dict[str, str]:
    """mpirun's environment without variables of other launchers, plus the planned variables.

    Raises an OSError when the setup file can't be sourced.
    """
    plan = job.ranks[rank]
    unset = {*LAUNCHER_VARIABLES, *(name for name, value in job.variables.items() if value is None)}
    environ = {k: v for k, v in os.environ.items() if k not in unset and not k.startswith(LAUNCHER_PREFIXES)}
    account = pwd.getpwuid(os.getuid())  # mpirun passes on the values of node0
    environ.update(HOME=account.pw_dir, USER=account.pw_name, LOGNAME=account.pw_name, SHELL=account.pw_shell)
    if job.setup:
        environ = sourced(job.setup, environ)
        environ = {k: v for k, v in environ.items() if k not in unset}
    set_variables(environ, job.variables, job.prepended)
    set_variables(environ, plan.variables, job.prepended)
    environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(plan.local_rank),
        WORLD_SIZE=str(job.world_size),
        LOCAL_WORLD_SIZE=str(plan.local_size),
        MASTER_ADDR=master.addr,
        MASTER_PORT=str(master.port),
        RESTART_COUNT=str(attempt),
        IPEXCTL_RUN=job.id,
    )
    return environ


def sourced(setup: str, environ: dict[str, str]) -> dict[str, str]:
    """The environment after bash has sourced that file; raises a SetupError with the error that bash printed."""
    # As at a prompt, $0 is bash, since oneAPI's scripts refuse a $0 that is their own name. No arguments are given.
    # setvars.sh exits with 3 when it has been sourced before, and node0's ranks inherit mpirun's environment.
    script = f"unset -v SETVARS_COMPLETED; . {shlex.quote(setup)} </dev/null 1>&2 || exit; exec env -0"
    try:
        argv = ["bash", "-c", script]
        done = subprocess.run(argv, env=environ, capture_output=True, check=False, timeout=SOURCED)
    except FileNotFoundError:
        raise SetupError(0, f"there is no bash to source {setup} with") from None
    except subprocess.TimeoutExpired:
        raise SetupError(0, f"{setup} could not be sourced: it took longer than {SOURCED:g} s") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise SetupError(0, f"{setup} could not be sourced: {lines[-1] if lines else f'exit code {done.returncode}'}")
    pairs = (item.partition(b"=") for item in done.stdout.split(b"\0") if item)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs if name not in (b"_", b"SHLVL")}


def set_variables(environ: dict[str, str], variables: Variables, prepended: Collection[str]) -> None:
    """Set variables; None removes one; a prepended value goes before the existing value."""
    for name, value in variables.items():
        if value is None:
            environ.pop(name, None)
        elif name in prepended and environ.get(name):
            environ[name] = f"{value}:{environ[name]}"
        else:
            environ[name] = value
