"""Judge a host's processors, memory, shared memory and limits, as they apply to this account. Pure.

Only a wrong architecture is a fail: without AVX2 PyTorch still runs, but several times slower. A /dev/shm of 64 MB is
Docker's default, too small for the data that a host's ranks exchange there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

from ipexctl.doctor.finding import GB, MB, Finding, HostContext, HostRule, Level, size, usable_cores
from ipexctl.facts.cpu import TIERS, X86, Cpu, Tier, format_numa_nodes
from ipexctl.launch.topology import common_layout, default_ranks, tasks_of
from ipexctl.node.common.fix import Fix
from ipexctl.text import format_count

LEAVE_OUT: Final = "leave the host out: --limit '!NAME'"


def arch(host: HostContext) -> Iterator[Finding]:
    """Report a failure if the processor is not x86-64, for which alone ipexctl installs PyTorch."""
    machine = host.facts.cpu.arch or host.facts.system.arch
    if machine is None or machine in X86:
        return
    kind = "An ARM" if machine in ("aarch64", "arm64") else f"A {machine}"
    message = f"{kind} processor is not supported, because ipexctl installs PyTorch for x86-64 only"
    yield Finding("cpu.arch", "fail", message, LEAVE_OUT)


def instructions(host: HostContext) -> Iterator[Finding]:
    """Say which of AVX2, AVX-512 and bf16 instructions an x86-64 processor lacks; the lack of AVX2 is a warning."""
    cpu = host.facts.cpu
    if (cpu.arch or host.facts.system.arch or (X86[0] if "sse2" in cpu.flags else "")) not in X86:
        return
    match cpu.tier:
        case "unsupported":
            yield Finding(
                "cpu.no_avx2",
                "warn",
                "The processor has no AVX2: IPEX can't run on it; PyTorch can, but several times slower, and all other "
                "ranks wait for those on this host",
                f"{LEAVE_OUT}; if it is a VM, set its CPU model to host-passthrough",
            )
        case "avx2":
            yield Finding(
                "cpu.no_avx512",
                "info",
                "AVX2 is the best that this processor has: fp32 training works at about half an AVX-512 machine's "
                "rate, bf16 is slower still",
                "train in fp32",
            )
        case "avx512":
            yield Finding(
                "cpu.no_bf16",
                "info",
                "AVX-512, but no bf16 instructions: bf16 is converted in software and runs slower than fp32",
                "train in fp32; leave out --bf16 and mixed_precision",
            )


def hidden_instructions(host: HostContext) -> Iterator[Finding]:
    """Warn if the processor's model has instructions that its flags lack, because old kernels and hypervisors hide
    some."""
    cpu = host.facts.cpu
    model = _model_tier(cpu)
    if model is None or cpu.tier is None or TIERS.index(cpu.tier) >= TIERS.index(model[1]):
        return
    name, tier = model
    yield Finding(
        "cpu.isa_hidden",
        "warn",
        f"{name} has {_TIER_NAMES[tier]}, but the kernel or hypervisor hides it: training runs slower than it could",
        "AMX needs kernel 5.16, or RHEL 8.6; " * (tier == "amx") + "in a VM, set its CPU model to host-passthrough",
    )


_TIER_NAMES: Final[Mapping[Tier, str]] = {"amx": "AMX", "avx512_bf16": "AVX-512 with bf16", "avx512": "AVX-512"}
_MODEL_TIERS: Final[Mapping[int, tuple[str, Tier]]] = {
    106: ("Ice Lake", "avx512"),
    108: ("Ice Lake", "avx512"),
    143: ("Sapphire Rapids", "amx"),
    207: ("Emerald Rapids", "amx"),
    173: ("Granite Rapids", "amx"),
    174: ("Granite Rapids", "amx"),
}


def _model_tier(cpu: Cpu) -> tuple[str, Tier] | None:
    """Return the name and the instruction set of an Intel CPU's model; None for a model that is not known here."""
    if cpu.vendor != "GenuineIntel" or cpu.family != 6 or cpu.model is None:
        return None
    if cpu.model == 85 and cpu.stepping is not None:
        return ("Cooper Lake", "avx512_bf16") if cpu.stepping >= 10 else ("Skylake or Cascade Lake", "avx512")
    return _MODEL_TIERS.get(cpu.model)


def fewer_allowed_cpus(host: HostContext) -> Iterator[Finding]:
    """Warn if affinity or cpuset leave the account fewer cores than the machine has; in a batch job or with isolcpus=
    only say so. The quota has its own rule because it is changed elsewhere."""
    cpu = host.facts.cpu
    if not cpu.siblings or not cpu.cores or cpu.affinity in (None, cpu.online):
        return
    usable = len(cpu.allowed_cores)
    if usable >= cpu.cores:
        return
    level: Level = "info" if host.facts.batch.job else "warn"
    fix = "change the container's --cpuset-cpus, the cgroup's cpuset or a taskset in the login files"
    reason = f"This account may use {usable} of the machine's {format_count(cpu.cores, 'core')}"
    planned = "this core" if usable == 1 else "these cores"
    if cpu.isolated is not None and not set(cpu.online or ()) - set(cpu.affinity or ()) - set(cpu.isolated):
        level, reason = "info", f"The boot line keeps programs off CPUs {cpu.isolated} (isolcpus=)"
        fix = "if nothing else needs these cores: boot without isolcpus=, nohz_full= and rcu_nocbs="
        planned = f"the other {format_count(usable, 'core')}"
    elif host.facts.batch.job:
        fix = "ask the scheduler for more cores"
    yield Finding("cpu.fewer_allowed", level, f"{reason}: ranks and threads are planned only for {planned}", fix)


def offline_cpus(host: HostContext) -> Iterator[Finding]:
    """Say which CPUs are switched off."""
    if (offline := host.facts.cpu.offline) is not None and offline.cpus:
        yield Finding(
            "cpu.offline",
            "info",
            f"CPUs {offline} are switched off: no rank can use them",
            Fix(f"as root: `echo 1 > /sys/devices/system/cpu/cpu{offline.cpus[0]}/online`, and so for each"),
        )


def quota(host: HostContext) -> Iterator[Finding]:
    """Warn if the cgroup allows less CPU time than the cores could use."""
    cpu = host.facts.cpu
    cores = len(cpu.allowed_cores) or cpu.cores
    if cpu.quota is None or cores is None or cpu.quota >= cores:
        return
    effect, fix = "more threads than that are stalled", f"up to {cores}: CPUQuota={cores}00%"
    if cpu.quota != math.floor(cpu.quota):
        effect, fix = "a fraction of a core stalls ranks many times a second", f"{math.ceil(cpu.quota)} or more"
    yield Finding(
        "cpu.quota",
        "warn",
        f"The cgroup allows the time of {cpu.quota:g} CPUs on {format_count(cores, 'core')}: {effect}",
        f"allow more, whole cores: the container's --cpus, the pod's limit or CPUQuota ({fix})",
    )


def one_core(host: HostContext) -> Iterator[Finding]:
    """Say that a rank shares its only core with oneCCL's worker. It is not said of a host that trains alone."""
    if not host.alone and usable_cores(host.facts.cpu) == 1:
        yield Finding(
            "cpu.one_core",
            "info",
            "The rank and its communication have one core: oneCCL's worker would compete with the rank for it",
            "nothing to do under ipexctl run; elsewhere set CCL_WORKER_OFFLOAD=0",
        )


def smt(host: HostContext) -> Iterator[Finding]:
    """Say that two CPUs share a core, so that cores must be counted instead of CPUs."""
    cpu = host.facts.cpu
    if cpu.smt and cpu.cores and cpu.threads:
        yield Finding(
            "cpu.smt",
            "info",
            f"Hyper-threading is on: {cpu.threads} CPUs are {format_count(cpu.cores, 'core')}. Training threads are "
            "counted by cores, because two threads on a core are slower",
            "nothing to do under ipexctl run; elsewhere count cores, not CPUs, for OMP_NUM_THREADS",
        )


def governor(host: HostContext) -> Iterator[Finding]:
    """Say that the clock governor saves power."""
    if host.facts.cpu.governor in ("powersave", "conservative"):
        yield Finding(
            "cpu.governor",
            "info",
            f"The clock governor is {host.facts.cpu.governor}: cores may take long to reach full speed, and one slow "
            "host slows all",
            Fix("as root: `cpupower frequency-set -g performance`"),
        )


def topology(host: HostContext) -> Iterator[Finding]:
    """Say that nothing tells which CPUs share a core, so that each counts as a core."""
    if host.facts.cpu.online and not host.facts.cpu.siblings and host.facts.has_finished("kernel"):
        yield Finding(
            "cpu.topology_hidden",
            "info",
            "It is unknown which CPUs share a core, so each counts as a core: there may be twice as many threads as "
            "cores",
            "mount /sys/devices/system/cpu in the container, or set --omp and --ppn yourself",
        )


def numa(host: HostContext) -> Iterator[Finding]:
    """Warn of NUMA nodes with cores but no memory; say so if one node has less than half the memory of another."""
    with_cpus = [node for node in host.facts.cpu.numa if node.cpus]
    memories = [node.memory for node in with_cpus if node.memory is not None]
    if len(memories) < 2 or len(memories) != len(with_cpus):
        return
    without = [node.number for node in with_cpus if not node.memory]
    if without:
        numbers = ", ".join(str(number) for number in without)
        yield Finding(
            "numa.no_memory",
            "warn",
            f"NUMA node {numbers} has cores but no memory: its cores fetch every byte from another node, which is "
            "slow, and get no rank of their own",
            "install memory modules in all sockets",
        )
    elif min(memories) < max(memories) / 2:
        yield Finding(
            "numa.uneven",
            "info",
            "One NUMA node has less than half the memory of another: its rank runs out of memory first, and is slower "
            "if modules are missing",
            "distribute the memory modules evenly over all sockets",
        )


def far_memory(host: HostContext) -> Iterator[Finding]:
    """Warn if the account may use cores of a NUMA node, but not the memory of that node."""
    cpu, mems = host.facts.cpu, host.facts.cpu.mems
    if mems is None:
        return
    allowed = {number for core in cpu.allowed_cores for number in core}
    far = [
        node.number
        for node in cpu.usable_numa
        if node.memory == 0 and node.number not in mems and not allowed.isdisjoint(node.cpus)
    ]
    if far:
        yield Finding(
            "numa.mems",
            "warn",
            f"This account may use cores of {format_numa_nodes(far)}, but not the memory there (cpuset.mems is "
            f"{mems}): their ranks fetch every byte from another node",
            "allow the memory of the same nodes: the container's --cpuset-mems, AllowedMemoryNodes= of the unit",
        )


def hbm(host: HostContext) -> Iterator[Finding]:
    """Say that high-bandwidth memory is in NUMA nodes of its own, which a program must ask for."""
    nodes = host.facts.cpu.hbm
    if nodes:
        yield Finding(
            "numa.hbm",
            "info",
            f"{size(sum(node.memory or 0 for node in nodes))} of HBM in NUMA nodes of their own (flat mode): a program "
            "uses it only if it asks for these nodes",
            "nothing to do under ipexctl run: ranks prefer the HBM of their socket; elsewhere: "
            f"numactl --preferred-many={','.join(str(node.number) for node in nodes)}",
        )


_ENOUGH: Final = 4 * GB
_SHM_OF_DOCKER: Final = 64 * MB
_LIMITS: Final = "as root: add '{line}' to /etc/security/limits.d/90-training.conf; log in again"


def amount(host: HostContext) -> Iterator[Finding]:
    """Warn of less than 4 GiB of memory."""
    usable = host.facts.memory.usable
    if usable is not None and usable < _ENOUGH:
        yield Finding(
            "memory.small",
            "warn",
            f"{size(usable)} of memory: PyTorch takes about 1 GiB before the model; a rank that needs more is killed "
            "(signal 9)",
            f"use {'' if default_ranks(host.facts.cpu) == 1 else 'one rank per host (--ppn 1) or '}a smaller batch"
            + ("" if host.alone else ", or leave the host out: --limit '!NAME'"),
        )


def limit(host: HostContext) -> Iterator[Finding]:
    """Warn if the cgroup allows less than half of the machine's memory; in a batch job only say so."""
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


def throttled_memory(host: HostContext) -> Iterator[Finding]:
    """Warn if the cgroup is slowed down before its memory is used up (memory.high)."""
    memory = host.facts.memory
    if memory.high is not None and memory.usable is not None and memory.high < memory.usable:
        yield Finding(
            "memory.high",
            "warn",
            f"The cgroup is slowed down above {size(memory.high)} (memory.high): ranks that need more in total "
            "become slow, and no error says so",
            "raise MemoryHigh= of the unit, or the cgroup's memory.high, to its limit",
        )


def busy_memory(host: HostContext) -> Iterator[Finding]:
    """Warn if less than a fifth of the usable memory is free."""
    memory = host.facts.memory
    free, usable = memory.free, memory.usable
    if usable is None or free is None or free >= usable * 0.2:
        return
    others = "of its cgroup use" if free != memory.available else "use"
    yield Finding(
        "memory.busy",
        "warn",
        f"Only {size(free)} of {size(usable)} memory is free: other programs {others} the rest, and ranks may be "
        "killed (signal 9)",
        Fix("to see which programs: `ps -eo user,rss,args --sort=-rss | head`"),
    )


def huge_pages(host: HostContext) -> Iterator[Finding]:
    """Say that memory is reserved as huge pages and unused. From a fifth of the memory on this is a warning; below 2 %
    it is not worth saying."""
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
        f"{size(idle)} are reserved as huge pages and unused: PyTorch doesn't use huge pages, so this memory is lost "
        "to training",
        Fix("if no database, VM or DPDK program of this host needs them, as root: `sysctl vm.nr_hugepages=0`"),
    )


def transparent_huge_pages(host: HostContext) -> Iterator[Finding]:
    """Say that transparent huge pages are off. It is said only for processors with AMX, where their gain was
    measured."""
    if host.facts.memory.thp == "never" and host.facts.cpu.tier == "amx":
        yield Finding(
            "memory.thp",
            "info",
            "Transparent huge pages are off: with them, three trainings took 9 to 19% less time on two cores of a Xeon",
            Fix("as root: `echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`"),
        )


def swap(host: HostContext) -> Iterator[Finding]:
    """Say that there is much swap, with which a rank becomes slow instead of failing."""
    memory = host.facts.memory
    if memory.swap and memory.total and memory.swap >= memory.total / 2:
        yield Finding(
            "memory.swap",
            "info",
            f"{size(memory.swap)} of swap: a rank that is too large for memory becomes slow instead of failing, and "
            "all others wait",
            Fix(
                "on a host for training only, if its free memory exceeds its used swap (free -h), as root: `swapoff -a`"
            ),
        )


def shared_memory(host: HostContext) -> Iterator[Finding]:
    """Warn if /dev/shm is too small, or full."""
    memory = host.facts.memory
    if memory.shm_size is None:
        return
    enough = GB if memory.usable is None else min(GB, memory.usable // 8)
    bigger = Fix(
        "use docker run --shm-size=8g or --ipc=host; in Kubernetes an emptyDir with medium: Memory at /dev/shm; as "
        "root, if free -h shows that much: `mount -o remount,size=8G /dev/shm`"
    )
    if memory.shm_size < max(enough, _SHM_OF_DOCKER + 1):
        yield Finding(
            "shm.small",
            "warn",
            f"Shared memory (/dev/shm) has {size(memory.shm_size)}: ranks and DataLoader workers pass data through "
            "it, and crash with a bus error (signal 7) when it is full",
            bigger,
        )
    elif memory.shm_free is not None and memory.shm_free < _SHM_OF_DOCKER:
        yield Finding(
            "shm.full",
            "warn",
            f"Shared memory (/dev/shm) is full ({size(memory.shm_free)} of {size(memory.shm_size)} free): ranks crash "
            "with a bus error (signal 7)",
            Fix(
                'list your files there: `find /dev/shm -user "$(id -un)" -ls`; once `ipexctl doctor` shows no live run '
                "on this host, remove those that no process uses: fuser -v FILE prints nothing for them"
            ),
        )


def locked_memory(host: HostContext) -> Iterator[Finding]:
    """Say that little memory may be locked; on a host with RDMA this is a warning, because RDMA locks its buffers."""
    soft, has_rdma = host.facts.limits.memlock.soft, host.facts.network.has_rdma
    if soft is None or soft >= (GB if has_rdma else 64 * 1024 + 1):
        return
    effect = "RDMA locks its buffers, so it fails or falls back to TCP" if has_rdma else "enough for TCP, not for RDMA"
    yield Finding(
        "limits.memlock",
        "warn" if has_rdma else "info",
        f"Only {size(soft)} of memory may be locked (ulimit -l): {effect}",
        _LIMITS.format(line="* - memlock unlimited"),
    )


def files(host: HostContext) -> Iterator[Finding]:
    """Warn of a low limit on open files. Each rank connects to every other rank, and DataLoader workers send file
    descriptors."""
    soft, hard = host.facts.limits.nofile.soft, host.facts.limits.nofile.hard
    needed = max(1024, 16 * (host.others + 1))
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
    """Warn of a low limit on the account's processes and threads. It does not apply to root."""
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


def tasks(host: HostContext) -> Iterator[Finding]:
    """Warn if the cgroup allows fewer new processes and threads than the planned ranks need."""
    left, layout = host.facts.limits.pids_left, common_layout([host.facts.cpu], 0)
    needed = tasks_of(layout.ppn, layout.omp_num_threads)
    if left is not None and left < needed:
        yield Finding(
            "limits.pids",
            "warn",
            f"The cgroup allows {left} more processes and threads (pids.max): {format_count(layout.ppn, 'rank')} with "
            f"{format_count(layout.omp_num_threads, 'thread')} each need about {needed}, and crash without them",
            "raise TasksMax= of the unit, the container's --pids-limit or the pod's limit",
        )


RULES: Final[tuple[HostRule, ...]] = (
    arch, instructions, hidden_instructions, fewer_allowed_cpus, offline_cpus, quota, numa, far_memory, hbm, topology,
    smt, governor, one_core, amount, limit, throttled_memory, busy_memory, shared_memory, huge_pages,
    transparent_huge_pages, swap, locked_memory, processes, tasks, files,
)  # fmt: skip
