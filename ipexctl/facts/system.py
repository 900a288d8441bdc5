"""A host's operating system, memory, disks, limits and policies. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class System:
    """The operating system."""

    kernel_name: str | None = None
    """`Linux`, `Darwin`, `FreeBSD` …"""
    kernel: str | None = None
    arch: str | None = None
    distro: str | None = None
    """The name for display: `Ubuntu 20.04.6 LTS`."""
    distro_id: str | None = None
    distro_version: str | None = None
    libc: Literal["glibc", "musl"] | None = None
    libc_version: str | None = None
    boot: str | None = None
    """The boot id: changes with a reboot, equal in all containers of a machine."""

    @property
    def is_linux(self) -> bool:
        return self.kernel_name == "Linux"


@dataclass(frozen=True, slots=True)
class Memory:
    """In bytes, except for the counts of huge pages."""

    total: int | None = None
    available: int | None = None
    limit: int | None = None
    """The limit of the cgroup; None: none or unknown."""
    swap: int | None = None
    hugepages_total: int | None = None
    hugepages_free: int | None = None
    hugepage_size: int | None = None
    thp: str | None = None
    """always, madvise or never."""
    shm_size: int | None = None
    shm_free: int | None = None

    @property
    def usable(self) -> int | None:
        """The maximum for this account: the limit of the cgroup if it is below the machine's total."""
        if self.total is None or self.limit is None:
            return self.total
        return min(self.total, self.limit)


@dataclass(frozen=True, slots=True)
class Limit:
    """A ulimit; `math.inf` means unlimited and is "unlimited" in JSON."""

    soft: float | None = None
    hard: float | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    memlock: Limit = field(default_factory=Limit)
    """Bytes."""
    nofile: Limit = field(default_factory=Limit)
    nproc: Limit = field(default_factory=Limit)


@dataclass(frozen=True, slots=True)
class Mount:
    """The filesystem a path is on, as the kernel names it."""

    point: str
    type: str
    source: str
    root: str = "/"
    """The directory of that filesystem that is mounted."""
    device: str | None = None
    """The kernel's number for the filesystem: `8:1`."""
    options: tuple[str, ...] = ()
    is_network: bool = False


@dataclass(frozen=True, slots=True)
class Disk:
    """Disk space at a path."""

    path: str
    total: int | None = None
    free: int | None = None
    """Bytes that an account other than root can still write."""
    inodes: int | None = None
    """None if the filesystem doesn't count them."""
    inodes_free: int | None = None
    writable: bool | None = None
    noexec: bool | None = None
    mount: Mount | None = None


@dataclass(frozen=True, slots=True)
class Home:
    """The `--home` directory on the host."""

    path: str
    """The absolute path, with symbolic links."""
    exists: bool = False
    real: str | None = None
    """The path without symbolic links."""
    disk: Disk | None = None
    """The disk it is on, or will be on."""
    store: str | None = None
    """Two hosts with the same token share this home; see `store.py`."""


@dataclass(frozen=True, slots=True)
class Account:
    """The account of the login."""

    user: str | None = None
    uid: int | None = None
    home: str | None = None
    shell: str | None = None


@dataclass(frozen=True, slots=True)
class Logind:
    """systemd's policy for an account's processes and shared memory after its last session ends."""

    present: bool = False
    in_session: bool | None = None
    """Whether the login is in a logind session."""
    kill_user_processes: bool | None = None
    remove_ipc: bool | None = None
    linger: bool | None = None


@dataclass(frozen=True, slots=True)
class Security:
    selinux: Literal["enforcing", "permissive"] | None = None
    """None: not installed or disabled."""
    firewall: tuple[str, ...] = ()
    """Firewalls that are visible without root: `ufw`, `firewalld`, `nftables`, `iptables`."""
    ptrace_scope: int | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """The batch system of the host."""

    schedulers: tuple[str, ...] = ()
    """slurm, pbs, lsf, sge."""
    job: str | None = None
    """The current job."""


@dataclass(frozen=True, slots=True)
class RunSupervisor:
    """The supervisor of a run that is still running by its record, and whether its process is on the probed host.

    A record in a shared home is read on every host; only node0 (`machine`) can know that the process has ended.
    """

    run: str
    host: str | None = None
    """node0's name in the hostfile of the run."""
    machine: str | None = None
    boot: str | None = None
    """node0's boot id; records of older versions have none."""
    is_here: bool | None = None
    """Compared by pid and start time. None: unknown."""


@dataclass(frozen=True, slots=True)
class RunProcess:
    """A process of this account that belongs to a run."""

    pid: int
    start: int | None
    """The start time in kernel ticks; with the pid, it identifies the process."""
    run: str


@dataclass(frozen=True, slots=True)
class Activity:
    """The host's current load, runs and processes."""

    load: tuple[float, float, float] | None = None
    runs: tuple[str, ...] = ()
    """Runs that are still running by their record in this home."""
    supervisors: tuple[RunSupervisor, ...] = ()
    """The supervisors of these runs."""
    ended: tuple[str, ...] = ()
    """The newest runs that have ended by their record in this home."""
    pids: tuple[int, ...] = ()
    """Processes of this account whose program is in the `--home` directory."""
    processes: tuple[RunProcess, ...] = ()
    """Processes of this account that belong to a run, running or ended."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The environment of a command over ssh, without settings of ipexctl."""

    variables: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Variables that affect OpenMP, MPI, oneCCL, libfabric, gloo, the loader and Python."""
    tools: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Useful programs and their paths."""
    modules: str | None = None
    """`lmod`, or `modules` for the classic ones."""
