"""A host's system: what runs it, its memory, disks, limits and rules of the house. Values only."""

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
    """For people: `Ubuntu 20.04.6 LTS`."""
    distro_id: str | None = None
    distro_version: str | None = None
    libc: Literal["glibc", "musl"] | None = None
    libc_version: str | None = None
    boot: str | None = None
    """This boot of this kernel: another after a restart, the same in every container of a machine."""

    @property
    def is_linux(self) -> bool:
        return self.kernel_name == "Linux"


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes, but for the counts of huge pages."""

    total: int | None = None
    available: int | None = None
    limit: int | None = None
    """The cgroup's; None: none, or not known."""
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
        """What this account could ever have: the cgroup's limit where it is below what the machine has."""
        if self.total is None or self.limit is None:
            return self.total
        return min(self.total, self.limit)


@dataclass(frozen=True, slots=True)
class Limit:
    """A ulimit; `math.inf` stands for unlimited, and is "unlimited" in JSON."""

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
    """Which directory of that filesystem is mounted here."""
    device: str | None = None
    """The kernel's number for the filesystem: `8:1`."""
    options: tuple[str, ...] = ()
    is_network: bool = False


@dataclass(frozen=True, slots=True)
class Disk:
    """Room at a path."""

    path: str
    total: int | None = None
    free: int | None = None
    """Bytes an ordinary account may still write."""
    inodes: int | None = None
    """None where the filesystem doesn't count them."""
    inodes_free: int | None = None
    writable: bool | None = None
    noexec: bool | None = None
    mount: Mount | None = None


@dataclass(frozen=True, slots=True)
class Home:
    """Our directory on the host."""

    path: str
    """As it was asked for, absolute."""
    exists: bool = False
    real: str | None = None
    """The same without symbolic links."""
    disk: Disk | None = None
    """Where it is, or would be made."""
    store: str | None = None
    """Two hosts with the same token share this home; see `store.py`."""


@dataclass(frozen=True, slots=True)
class Account:
    """Who we are there."""

    user: str | None = None
    uid: int | None = None
    home: str | None = None
    shell: str | None = None


@dataclass(frozen=True, slots=True)
class Logind:
    """What systemd does to an account's processes and shared memory once its last session ends."""

    present: bool = False
    in_session: bool | None = None
    """Whether sshd put us into a session of logind's at all."""
    kill_user_processes: bool | None = None
    remove_ipc: bool | None = None
    linger: bool | None = None


@dataclass(frozen=True, slots=True)
class Security:
    selinux: Literal["enforcing", "permissive"] | None = None
    """None: not there."""
    firewall: tuple[str, ...] = ()
    """What of a firewall can be seen without root: `ufw`, `firewalld`, `nftables`, `iptables`."""
    ptrace_scope: int | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """A scheduler that thinks it owns this machine."""

    schedulers: tuple[str, ...] = ()
    """slurm, pbs, lsf, sge."""
    job: str | None = None
    """The job we are inside."""


@dataclass(frozen=True, slots=True)
class RunSupervisor:
    """The supervisor of a run that goes on by its record, and whether its process is on the host that was asked.

    A record in a shared home is read on every host; only node0, `machine`, can tell that the process is gone.
    """

    run: str
    host: str | None = None
    """node0's name, in the words of the caller who started the run."""
    machine: str | None = None
    boot: str | None = None
    """node0's boot; records of older versions don't have it."""
    is_here: bool | None = None
    """By its number and its start time. None: not known."""


@dataclass(frozen=True, slots=True)
class RunProcess:
    """A process of our account that belongs to a run."""

    pid: int
    start: int | None
    """In the kernel's ticks: with its number it names it for good."""
    run: str


@dataclass(frozen=True, slots=True)
class Activity:
    """What goes on there now."""

    load: tuple[float, float, float] | None = None
    runs: tuple[str, ...] = ()
    """Runs whose record in this home says they go on."""
    supervisors: tuple[RunSupervisor, ...] = ()
    """Those runs' supervisors."""
    ended: tuple[str, ...] = ()
    """The newest runs whose record in this home says they have ended."""
    pids: tuple[int, ...] = ()
    """Our account's processes that were started out of our home."""
    processes: tuple[RunProcess, ...] = ()
    """Our account's processes that belong to a run, whether it goes on or not."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What a command run over ssh finds, before anything of ours is set."""

    variables: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Those that steer OpenMP, MPI, oneCCL, libfabric, gloo, the loader and Python."""
    tools: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Programs we may want, with where they are."""
    modules: str | None = None
    """lmod, or modules: the classic ones."""
