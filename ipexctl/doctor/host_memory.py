"""Rules over a host's memory, shared memory and limits, as they apply to this account. Pure.

A /dev/shm of 64 MB is Docker's default and too small for the ranks of a host, which exchange data there. Locked memory
matters most with an active RDMA device, which must lock its buffers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from ipexctl.doctor.context import GB, MB, size
from ipexctl.doctor.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ipexctl.doctor.context import HostContext, HostRule
    from ipexctl.doctor.finding import Level

_ENOUGH: Final = 4 * GB
_SHM_OF_DOCKER: Final = 64 * MB
_LIMITS: Final = "as root: add '{line}' to /etc/security/limits.d/90-training.conf; log in again"


def amount(host: HostContext) -> Iterator[Finding]:
    usable = host.facts.memory.usable
    if usable is not None and usable < _ENOUGH:
        yield Finding(
            "memory.small",
            "warn",
            f"{size(usable)} of memory: PyTorch takes about 1 GB before the model; a rank that needs more is killed "
            "(signal 9)",
            "one rank on each host (--ppn 1), a smaller batch, or leave the host out: --limit '!NAME'",
        )


def limit(host: HostContext) -> Iterator[Finding]:
    memory = host.facts.memory
    if memory.limit is None or memory.total is None or memory.limit >= memory.total / 2:
        return
    level: Level = "info" if host.facts.batch.job else "warn"
    yield Finding(
        "memory.limit",
        level,
        f"The cgroup allows {size(memory.limit)} of the machine's {size(memory.total)}: ranks that need more in total "
        "are killed (signal 9)",
        "ask the scheduler for more memory"
        if host.facts.batch.job
        else "raise the container's --memory or the cgroup's limit",
    )


def busy(host: HostContext) -> Iterator[Finding]:
    memory = host.facts.memory
    if memory.total is None or memory.available is None or memory.available >= memory.total * 0.2:
        return
    yield Finding(
        "memory.busy",
        "warn",
        f"Only {size(memory.available)} of {size(memory.total)} memory is free: others use it, and ranks may be "
        "killed (signal 9)",
        "see which: ps -eo user,rss,args --sort=-rss | head",
    )


def huge_pages(host: HostContext) -> Iterator[Finding]:
    memory = host.facts.memory
    if not memory.hugepages_free or not memory.hugepage_size or not memory.total:
        return
    idle = memory.hugepages_free * memory.hugepage_size
    share = idle / memory.total
    if share < 0.02:
        return
    yield Finding(
        "memory.hugepages",
        "warn" if share >= 0.2 else "info",
        f"{size(idle)} are reserved as huge pages and unused: PyTorch doesn't use them, so training can't have them",
        "if no database, VM or DPDK program of this host needs them, as root: sysctl vm.nr_hugepages=0",
    )


def transparent(host: HostContext) -> Iterator[Finding]:
    if host.facts.memory.thp == "never":
        yield Finding(
            "memory.thp",
            "info",
            "Transparent huge pages are off: large tensors use 4 KB pages, which costs a few per cent",
            "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        )


def swap(host: HostContext) -> Iterator[Finding]:
    memory = host.facts.memory
    if memory.swap and memory.total and memory.swap >= memory.total / 2:
        yield Finding(
            "memory.swap",
            "info",
            f"{size(memory.swap)} of swap: a rank too large for memory gets slow instead of failing, and all others "
            "wait",
            "on a host for training only, if its free memory exceeds its used swap (free -h), as root: swapoff -a",
        )


def shared(host: HostContext) -> Iterator[Finding]:
    memory = host.facts.memory
    if memory.shm_size is None:
        return
    enough = GB if memory.usable is None else min(GB, memory.usable // 8)
    bigger = (
        "docker run --shm-size=8g, or --ipc=host; in Kubernetes an emptyDir with medium: Memory at /dev/shm; "
        "as root, if free -h shows that much: mount -o remount,size=8G /dev/shm"
    )
    if memory.shm_size < max(enough, _SHM_OF_DOCKER + 1):
        yield Finding(
            "shm.small",
            "warn",
            f"Shared memory (/dev/shm) has {size(memory.shm_size)}: ranks and DataLoader workers pass data through "
            "it, and end with a bus error (signal 7) when it is full",
            bigger,
        )
    elif memory.shm_free is not None and memory.shm_free < _SHM_OF_DOCKER:
        yield Finding(
            "shm.full",
            "warn",
            f"Shared memory (/dev/shm) is full ({size(memory.shm_free)} of {size(memory.shm_size)} free): ranks end "
            "with a bus error (signal 7)",
            'list your files there: find /dev/shm -user "$(id -un)" -ls; once ipexctl doctor shows no live run on this '
            "host, remove those that no process uses: fuser -v FILE prints nothing for them",
        )


def locked(host: HostContext) -> Iterator[Finding]:
    soft = host.facts.limits.memlock.soft
    if soft is None or soft == math.inf:
        return
    fix = _LIMITS.format(line="* - memlock unlimited")
    if any(device.state == "active" for device in host.facts.network.rdma):
        if soft < GB:
            yield Finding(
                "limits.memlock",
                "warn",
                f"Only {size(soft)} may be locked (ulimit -l): RDMA must lock its buffers, and fails or falls back "
                "to TCP",
                fix,
            )
    elif soft <= 64 * 1024:
        yield Finding(
            "limits.memlock",
            "info",
            f"Only {size(soft)} of memory may be locked (ulimit -l): fine over TCP, but RDMA would not start",
            fix,
        )


def files(host: HostContext) -> Iterator[Finding]:
    """Each rank connects to every other, and DataLoader workers send file descriptors."""
    soft, hard = host.facts.limits.nofile.soft, host.facts.limits.nofile.hard
    needed = max(1024, 16 * (len(host.peers) + 1))
    if soft is None or soft >= needed:
        return
    can_raise = hard is not None and hard >= needed
    command = f"ulimit -n {min(hard or 0, 65536):.0f}"
    yield Finding(
        "limits.nofile",
        "warn",
        f"{soft:.0f} open files (ulimit -n): a rank needs one for every other rank and DataLoader worker; "
        "'Too many open files' ends it",
        f"put '{command}' into ~/.bashrc, above any line that returns early"
        if can_raise
        else _LIMITS.format(line="* - nofile 65536"),
    )


def processes(host: HostContext) -> Iterator[Finding]:
    soft = host.facts.limits.nproc.soft
    needed = max(1024, 4 * (host.facts.cpu.threads or 0))
    if soft is not None and soft < needed and host.facts.account.uid != 0:
        yield Finding(
            "limits.nproc",
            "warn",
            f"{soft:.0f} processes and threads for this account (ulimit -u): with more, OpenMP and DataLoader "
            "workers fail to start",
            _LIMITS.format(line=f"{host.facts.account.user or 'ACCOUNT'} - nproc {max(4096, needed)}"),
        )


RULES: Final[tuple[HostRule, ...]] = (
    amount, limit, busy, shared, huge_pages, transparent, swap, locked, processes, files,
)  # fmt: skip
