"""The number that mpirun or srun gave a rank, the environment of its command, and the disks that it writes to.

A rank gets torchrun's variables. Variables that another launcher or an outer MPI left behind are removed first.
"""

from __future__ import annotations

import os
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Iterator, Mapping

from ipexctl.node.common.environ import (
    SetupResult,
    account_variables,
    append_variables,
    set_variables,
    source_setup,
)
from ipexctl.node.common.mpi import each_of
from ipexctl.node.common.plan import host_of, variables_of
from ipexctl.node.common.rank_options import OF_VARIABLES
from ipexctl.node.common.records import Detail, FullDisk

if TYPE_CHECKING:
    from ipexctl.node.common.job import HomeJob, Master
    from ipexctl.node.common.plan import Plan

RANKS = (*each_of(lambda mpi: mpi.number), "SLURM_PROCID")
SIZES = (*each_of(lambda mpi: mpi.size), "SLURM_NTASKS")
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK")
LAUNCHER_PREFIXES = ("TORCHELASTIC_", "GROUP_", "ROLE_")
TASK_OF_SLURM = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_GTIDS", "SLURM_STEP_")
MPI_PREFIXES = (*each_of(lambda mpi: mpi.prefixes), "MV2_COMM_WORLD_", *TASK_OF_SLURM)
"""Removed without a backend: scripts read a rank and a world size from these, and would wait for other ranks."""
PLANNED_ALONE = (*OF_VARIABLES, "IPEXCTL_METER", "IPEXCTL_PROFILE")
"""Only a plan or the wrapper sets these. Inherited ones would ask for files that this run does not have."""
_FULL = 1 << 20
"""A disk with fewer free bytes counts as full: no checkpoint fits, and a failed write may have left a few bytes."""


WRONG_MPI = Detail("wrong-mpi")
"""mpirun gave the ranks no numbers, or other numbers than the plan's."""


class RankStartError(Exception):
    """This rank can't start. The text is for people, the detail for programs."""

    def __init__(self, text: str, detail: Detail | None = None) -> None:
        super().__init__(text)
        self.detail = detail


def ranks_here(plan: Plan, job: HomeJob) -> tuple[int, ...]:
    """Return the ranks on the hosts that share the job file."""
    return tuple(rank.rank for rank in plan.ranks if rank.host in job.here)


def find_rank(plan: Plan, job: HomeJob, given: str = "") -> int:
    """Return the number of this rank: `given`, or what mpirun has set. Raises a RankStartError if there is none, or if
    it is not as planned."""
    here = ranks_here(plan, job)
    if given and int(given) in here:
        return int(given)
    number = next((os.environ[name] for name in RANKS if os.environ.get(name, "").isdigit()), None)
    if number is None:
        raise RankStartError(f"mpirun set none of {', '.join(RANKS)}, so this rank has no number", WRONG_MPI)
    if int(number) not in here:
        raise RankStartError(f"mpirun started rank {number} here, where it wasn't planned", WRONG_MPI)
    size = next((os.environ[name] for name in SIZES if os.environ.get(name, "").isdigit()), None)
    if size is not None and int(size) != plan.world_size:
        raise RankStartError(f"mpirun started {size} ranks; the plan has {plan.world_size}", WRONG_MPI)
    return int(number)


def results_directory(plan: Plan) -> str:
    """Return this host's directory for results of the run. It stays when old runs are removed."""
    return os.path.join(plan.home, "results", plan.id)


def _local_mounts() -> Iterator[str]:
    """Yield the mount points of local disks. Those of networks are left out, because they may not answer."""
    with suppress(OSError), open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as mounts:
        rows = map(str.split, mounts)
        yield from (row[1].replace("\\040", " ") for row in rows if row[2] in ("tmpfs", "ext4", "xfs", "btrfs"))


def find_full_disk(plan: Plan, rank: int, secrets: Mapping[str, str]) -> FullDisk | None:
    """Return the first full filesystem that a rank may write to, starting with its working directory; None if none is
    full."""
    temporary = variables_of(plan, rank, secrets)[0].get("TMPDIR") or "/tmp"  # noqa: S108
    is_root = os.geteuid() == 0  # root may use reserved space
    for path in (plan.cwd, results_directory(plan), plan.rundir, temporary, "/dev/shm", *_local_mounts()):  # noqa: S108
        try:
            status = os.statvfs(path)
        except OSError:
            continue
        free = (status.f_bfree if is_root else status.f_bavail) * status.f_frsize
        no_files = status.f_files > 0 and (status.f_ffree if is_root else status.f_favail) == 0
        is_read_only = status.f_flag & os.ST_RDONLY  # a mounted image is always full
        if status.f_blocks and not is_read_only and (free < _FULL or no_files):
            return FullDisk(path, free, status.f_blocks * status.f_frsize, no_files and free >= _FULL)
    return None


def environment(plan: Plan, rank: int, secrets: Mapping[str, str], master: Master, attempt: int) -> SetupResult:
    """Return the environment of a rank, and the limits of its setup file. Values of other launchers are removed. Raises
    an OSError if the setup file fails."""
    variables, prepended, appended = variables_of(plan, rank, secrets)
    unset = {*LAUNCHER_VARIABLES, *PLANNED_ALONE, *(name for name, value in variables.items() if value is None)}
    environ = {k: v for k, v in os.environ.items() if k not in unset and not k.startswith(LAUNCHER_PREFIXES)}
    environ.update(account_variables())  # mpirun passes on node0's values
    setup = SetupResult(environ)
    if plan.setup:
        setup = source_setup(plan.setup, environ)
        environ = {k: v for k, v in setup.environ.items() if k not in unset}
    set_variables(environ, variables, prepended)
    append_variables(environ, appended)
    environ.update(
        RESTART_COUNT=str(attempt),
        IPEXCTL_RUN=plan.id,
        IPEXCTL_RUN_DIR=results_directory(plan),
        IPEXCTL_HOSTS=",".join(host.name for host in plan.hosts),
        IPEXCTL_FIRST_WORLD_SIZE=str(plan.first_world_size),
    )
    if plan.backend == "none":
        environ = {name: value for name, value in environ.items() if not name.startswith(MPI_PREFIXES)}
        environ["IPEXCTL_COPY"] = str(rank)  # the hooks of the first copy say what they do
        return setup._replace(environ=environ)
    host = host_of(plan, rank)
    environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank - host.ranks[0].rank),
        WORLD_SIZE=str(plan.world_size),
        LOCAL_WORLD_SIZE=str(len(host.ranks)),
        MASTER_ADDR=master.addr,
        MASTER_PORT=str(master.port),
    )
    given = elastic_variables(plan, rank, attempt)
    if "LT_CLI_USED" in variables:  # Lightning's Fabric multiplies it with LT_DEVICES
        given["LT_NUM_NODES"] = str(len(plan.hosts))
    if plan.asked.slurm_env:
        given.update(slurm_variables(plan, rank))
    environ.update({name: value for name, value in given.items() if name not in variables})
    return setup._replace(environ=environ)


def elastic_variables(plan: Plan, rank: int, attempt: int) -> dict[str, str]:
    """Return further variables of torchrun. Without TORCHELASTIC_RUN_ID, Lightning starts ranks of its own, which
    hang."""
    number = str(plan.hosts.index(host_of(plan, rank)))
    return {
        "GROUP_RANK": number,
        "GROUP_WORLD_SIZE": str(len(plan.hosts)),
        "NODE_RANK": number,
        "ROLE_NAME": "default",
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(plan.world_size),
        "TORCHELASTIC_MAX_RESTARTS": str(plan.asked.max_restarts),
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "TORCHELASTIC_RUN_ID": plan.id,
    }


def slurm_variables(plan: Plan, rank: int) -> dict[str, str]:
    """Return what srun gives a task. Hosts are named by their addresses among the ranks, which every rank can reach."""
    host = host_of(plan, rank)
    tasks, hosts = str(plan.world_size), ",".join(other.address for other in plan.hosts)
    job = str(zlib.crc32(plan.id.encode()) % 10**6)  # scripts make a port or a seed of it
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank - host.ranks[0].rank),
        "SLURM_NODEID": str(plan.hosts.index(host)),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"), tasks),
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES"), str(len(plan.hosts))),
        **dict.fromkeys(("SLURM_NODELIST", "SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST"), hosts),
        **dict.fromkeys(("SLURM_JOB_ID", "SLURM_JOBID"), job),
        "SLURM_TASKS_PER_NODE": ",".join(str(len(other.ranks)) for other in plan.hosts),
        "SLURMD_NODENAME": host.address,
    }
