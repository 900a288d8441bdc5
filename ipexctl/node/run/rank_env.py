"""The number of a rank, as set by mpirun, and the environment of its command."""

from __future__ import annotations

import os
import pwd
from typing import Any, Dict

from ipexctl.node.run import protocol

RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID")
SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_NTASKS")
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK")
LAUNCHER_PREFIXES = ("TORCHELASTIC_", "GROUP_", "ROLE_")
Json = Dict[str, Any]


class RankStartError(Exception):
    """This rank can't start; the text is the reason."""


def find_rank(job: Json) -> int:
    number = next((os.environ[name] for name in RANKS if os.environ.get(name, "").isdigit()), None)
    if number is None:
        raise RankStartError(f"mpirun told this rank its number in none of {', '.join(RANKS)}")
    if number not in job["ranks"]:
        raise RankStartError(f"mpirun started rank {number} here, where it wasn't planned")
    size = next((os.environ[name] for name in SIZES if os.environ.get(name, "").isdigit()), None)
    if size is not None and int(size) != job["world_size"]:
        raise RankStartError(f"mpirun says there are {size} ranks, and the plan {job['world_size']}")
    return int(number)


def environment(job: Json, rank: int, master: Json, attempt: int) -> dict[str, str]:
    """mpirun's environment without variables of other launchers, plus the planned variables.

    Raises an OSError when the setup file can't be sourced.
    """
    plan = job["ranks"][str(rank)]
    unset = {*LAUNCHER_VARIABLES, *job.get("unset", ())}
    environ = {k: v for k, v in os.environ.items() if k not in unset and not k.startswith(LAUNCHER_PREFIXES)}
    account = pwd.getpwuid(os.getuid())  # mpirun passes on the values of node0
    environ.update(HOME=account.pw_dir, USER=account.pw_name, LOGNAME=account.pw_name, SHELL=account.pw_shell)
    if job.get("setup"):
        environ = protocol.sourced(job["setup"], environ)
        environ = {k: v for k, v in environ.items() if k not in unset}
    prepended = job.get("prepended", [])
    protocol.set_variables(environ, job.get("variables", {}), prepended)
    protocol.set_variables(environ, plan.get("variables", {}), prepended)
    environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(plan["local_rank"]),
        WORLD_SIZE=str(job["world_size"]),
        LOCAL_WORLD_SIZE=str(plan["local_size"]),
        MASTER_ADDR=str(master["addr"]),
        MASTER_PORT=str(master["port"]),
        RESTART_COUNT=str(attempt),
        IPEXCTL_RUN=str(job["id"]),
    )
    return environ
