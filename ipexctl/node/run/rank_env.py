"""What a rank finds around it: which one it is, as mpirun tells it, and the environment its command is given."""

from __future__ import annotations

import os
import pwd
from typing import Any, Dict

from ipexctl.node.run import protocol

RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID")
SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_NTASKS")
STRAYS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK")
STRAYS_OF = ("TORCHELASTIC_", "GROUP_", "ROLE_")
Json = Dict[str, Any]


class RankStartError(Exception):
    """Why this rank can't do its part."""


def which_rank(job: Json) -> int:
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
    """What mpirun handed on, without what another launcher left in it, and with what was planned; raises an OSError
    where the setup file can't be sourced."""
    plan = job["ranks"][str(rank)]
    strays = {*STRAYS, *job.get("unset", ())}
    environ = {k: v for k, v in os.environ.items() if k not in strays and not k.startswith(STRAYS_OF)}
    account = pwd.getpwuid(os.getuid())  # mpirun hands on those of node0
    environ.update(HOME=account.pw_dir, USER=account.pw_name, LOGNAME=account.pw_name, SHELL=account.pw_shell)
    if job.get("setup"):
        environ = protocol.sourced(job["setup"], environ)
        environ = {k: v for k, v in environ.items() if k not in strays}
    prepended = job.get("prepended", [])
    protocol.with_variables(environ, job.get("variables", {}), prepended)
    protocol.with_variables(environ, plan.get("variables", {}), prepended)
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
