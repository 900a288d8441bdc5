"""Parse what the probe prints about a host's processors: usable cores, NUMA nodes, and the tier of instruction sets.
Nothing here touches a host. `Cpu.allowed` combines affinity, cpuset and quota, because a container or batch job may use
fewer cores than the machine has. A tier needs every flag that the kernels of PyTorch and oneDNN require for it.
"""

from __future__ import annotations

import functools
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from ipexctl.facts.probe import Answers, kilobytes, natural, number
from ipexctl.text import number_ranges

_MAX_CPUS: Final = 1 << 16
"""No kernel supports more; a broken `0-99999999999` must not exhaust the memory."""
_MAX_NODES: Final = 1 << 10
_CPU_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")


@dataclass(frozen=True, slots=True)
class CpuList:
    """Logical CPUs in ascending order without duplicates. `str` returns the kernel's format, such as `0-3,8`."""

    cpus: tuple[int, ...] = ()

    @classmethod
    def of(cls, numbers: Iterable[int]) -> CpuList:
        """Return these CPUs sorted and without duplicates."""
        return cls(tuple(sorted(set(numbers))))

    def __len__(self) -> int:
        return len(self.cpus)

    def __iter__(self) -> Iterator[int]:
        return iter(self.cpus)

    def __contains__(self, number: int) -> bool:
        return number in self.cpus

    def __and__(self, other: CpuList) -> CpuList:
        kept = set(other.cpus)
        return CpuList(tuple(number for number in self.cpus if number in kept))

    def covers(self, other: CpuList) -> bool:
        """True if all CPUs of the other list are in this one."""
        return set(self.cpus) >= set(other.cpus)

    def __str__(self) -> str:
        return number_ranges(self.cpus)


@functools.lru_cache(maxsize=8192)
def parse_cpulist(text: str) -> CpuList | None:
    """Parse `0-3,8`; None if empty or invalid. Cached, because hosts of a cluster have equal lists."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        match = _CPU_RANGE.fullmatch(part.strip())
        if match is None:
            return None
        first = int(match[1])
        last = int(match[2] or match[1])
        if last < first or last >= _MAX_CPUS:
            return None
        numbers.update(range(first, last + 1))
    return CpuList.of(numbers)


Tier = Literal["amx", "avx512_bf16", "avx512", "avx2", "unsupported"]
TIERS: Final[tuple[Tier, ...]] = ("unsupported", "avx2", "avx512", "avx512_bf16", "amx")
"""Weakest tier first."""

X86: Final = ("x86_64", "amd64")
_AMX_FP16_MODELS: Final = (173, 174)
"""Model numbers of Granite Rapids. They decide, because /proc/cpuinfo has no flag for AMX-FP16."""


_PHI_MODELS: Final = (87, 133)
_LARGEST_HBM_NODE: Final = 64 << 30
"""HBM of one socket."""

_ISA: Final = (
    "avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "amx_fp16",
)  # fmt: skip


class NumaNode(NamedTuple):
    number: int
    cpus: CpuList = CpuList()
    memory: int | None = None
    distances: tuple[int, ...] = ()
    """Distance to each node of the host, in their order; empty if unknown."""


def format_numa_nodes(numbers: Iterable[int | None]) -> str:
    """Return text such as `NUMA nodes 0-1`. None among the numbers is left out."""
    known = CpuList.of(number for number in numbers if number is not None)
    return f"NUMA node{'s' * (len(known) > 1)} {known}"


class Cpu(NamedTuple):
    arch: str | None = None
    vendor: str | None = None
    model_name: str | None = None
    family: int | None = None
    model: int | None = None
    stepping: int | None = None
    sockets: int | None = None
    cores: int | None = None
    threads: int | None = None
    flags: frozenset[str] = frozenset()
    online: CpuList | None = None
    siblings: tuple[CpuList, ...] = ()
    packages: tuple[CpuList, ...] = ()
    p_cores: CpuList | None = None
    """Threads of the performance cores, if the kernel says which a hybrid CPU has."""
    numa: tuple[NumaNode, ...] = ()
    governor: str | None = None
    smt: bool | None = None
    affinity: CpuList | None = None
    """Affinity mask of this account, combined with the cpuset."""
    quota: float | None = None
    """CPU time limit of the cgroup, in CPUs; None without a limit."""
    offline: CpuList | None = None
    """CPUs that are switched off, unless hyper-threading is; None if there are none."""
    isolated: CpuList | None = None
    """CPUs that the boot line keeps the scheduler off (isolcpus); None if there are none."""
    mems: CpuList | None = None
    """NUMA nodes whose memory this account may use (cpuset.mems); None if unknown."""

    def __hash__(self) -> int:
        """Hash only some fields. Cached functions hash a processor at each call, and its other lists have an entry for
        each core."""
        return hash((self.model_name, self.cores, self.affinity, self.quota, self.mems))

    @property
    def isa(self) -> dict[str, bool | None]:
        """Instruction set → whether the processor has it; None for all if its flags are unknown."""
        has: dict[str, bool | None] = {name: name in self.flags if self.flags else None for name in _ISA}
        if has["amx_tile"] and self.family == 6 and self.model in _AMX_FP16_MODELS:
            has["amx_fp16"] = True
        return has

    @property
    def tier(self) -> Tier | None:
        """The strongest tier whose instructions the processor has; None if its flags are unknown."""
        return tier_of(self.arch, self.flags)

    @property
    def numa_nodes(self) -> int | None:
        """The number of NUMA nodes with CPUs; None if it is unknown. NUMA nodes that only have memory are not
        counted."""
        return sum(1 for node in self.numa if node.cpus) or None

    @property
    def usable_numa(self) -> tuple[NumaNode, ...]:
        """The NUMA nodes as this account may use them: without memory where the cpuset excludes it."""
        if self.mems is None or not any(node.number in self.mems for node in self.numa):
            return self.numa
        return tuple(node if node.number in self.mems else node._replace(memory=0) for node in self.numa)

    @property
    def hbm(self) -> tuple[NumaNode, ...]:
        """NUMA nodes of high-bandwidth memory, which a Xeon Max or Xeon Phi in flat mode shows as nodes without CPUs. A
        node without CPUs on another processor is slow memory, such as CXL or Optane."""
        is_xeon_max = re.search(r"\bXeon\b.*\bMax\b", self.model_name or "", re.IGNORECASE)
        if self.vendor != "GenuineIntel" or not (is_xeon_max or (self.family == 6 and self.model in _PHI_MODELS)):
            return ()
        return tuple(node for node in self.usable_numa if not node.cpus and 0 < (node.memory or 0) <= _LARGEST_HBM_NODE)

    @property
    def allowed_cpus(self) -> CpuList | None:
        """The CPUs that this account's processes may use; None if they are unknown."""
        if self.affinity is None:
            return self.online
        return self.affinity & self.online if self.online else self.affinity

    @property
    def allowed_cores(self) -> tuple[CpuList, ...]:
        """The CPUs of each core that processes may use; one CPU is a core of its own if siblings are unknown."""
        usable = self.allowed_cpus
        if usable is None:
            return ()
        if not self.siblings:
            return tuple(CpuList((number,)) for number in usable)
        if usable == self.online:
            return self.siblings
        return tuple(part for core in self.siblings if (part := core & usable))

    @property
    def allowed(self) -> int | None:
        """Cores that affinity, cpuset and quota leave to this account, rounded up."""
        cores: int | None = len(self.allowed_cores) or self.cores
        if cores is None or self.quota is None:
            return cores
        return min(cores, max(1, math.ceil(self.quota)))


_AVX2: Final = frozenset({"avx2", "fma"})
_AVX512: Final = _AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
"""A Xeon Phi has only avx512f of these flags."""
_REQUIRED_FLAGS: Final[Mapping[Tier, frozenset[str]]] = {
    "amx": _AVX512 | {"avx512_bf16", "amx_tile", "amx_bf16"},
    "avx512_bf16": _AVX512 | {"avx512_bf16"},
    "avx512": _AVX512,
    "avx2": _AVX2,
}


def tier_of(arch: str | None, flags: Collection[str]) -> Tier | None:
    """Return the strongest tier of which all flags are there; None if the flags are unknown. Every processor but x86-64
    is `unsupported`, because stacks run only there."""
    if arch is not None and arch not in X86:
        return "unsupported"
    if not flags:
        return None
    available = frozenset(flags)
    return next((tier for tier, needed in _REQUIRED_FLAGS.items() if needed <= available), "unsupported")


def cpu_json(cpu: Cpu) -> dict[str, Any]:
    """Return the processor as doctor's JSON has it."""
    return {
        **{name: getattr(cpu, name) for name in _JSON_FIELDS},
        "allowed_cpus": None if cpu.allowed_cpus is None else str(cpu.allowed_cpus),
        "numa": [
            {"node": node.number, "cpus": str(node.cpus), "memory": node.memory, "hbm": node in cpu.hbm}
            for node in cpu.numa
        ],
    }


_JSON_FIELDS: Final = (
    "arch", "vendor", "model_name", "family", "model", "stepping", "sockets", "cores", "threads", "allowed", "quota",
    "numa_nodes", "smt", "governor", "isa", "tier",
)  # fmt: skip


_ARM_VENDORS: Final = {0x41: "ARM", 0x46: "Fujitsu", 0x48: "HiSilicon", 0x4E: "NVIDIA", 0x61: "Apple", 0xC0: "Ampere"}
_ARM_PARTS: Final = {
    (0x41, 0xD08): "Cortex-A72",
    (0x41, 0xD0C): "Neoverse-N1",
    (0x41, 0xD40): "Neoverse-V1",
    (0x41, 0xD49): "Neoverse-N2",
    (0x41, 0xD4F): "Neoverse-V2",
    (0x46, 0x001): "A64FX",
    (0x48, 0xD01): "Kunpeng-920",
    (0xC0, 0xAC3): "Ampere-1",
    (0xC0, 0xAC4): "Ampere-1a",
}


_KEYS: Final = ("cpu", "numa", "status", "init", "cgroup")


def parse_cpu(answers: Answers, arch: str | None) -> Cpu:
    """Return the processor. What the host did not tell is None or empty."""
    lines = tuple((key, values) for key, values in answers.values.items() if key.startswith(_KEYS))
    return _parse_cpu(lines, arch)


@functools.lru_cache(maxsize=64)
def _parse_cpu(lines: tuple[tuple[str, tuple[str, ...]], ...], arch: str | None) -> Cpu:
    """Parse the lines about processors. Cached, because hosts of a cluster have equal processors."""
    answers = Answers(dict(lines))
    info = answers.named("cpuinfo")
    vendor, model_name = _vendor_and_model(info)
    online = parse_cpulist(answers.first("cpu.online") or "")
    siblings, packages = _topology(answers, online)
    known = online or CpuList.of(number for core in siblings for number in core) or None
    return Cpu(
        arch=arch,
        vendor=vendor,
        model_name=model_name,
        family=natural(info.get("cpu family")),
        model=natural(info.get("model")),
        stepping=natural(info.get("stepping")),
        sockets=len(packages) or None,
        cores=len(siblings) or None,
        threads=len(known) if known else None,
        flags=frozenset((info.get("flags") or info.get("Features") or "").split()),
        online=known,
        siblings=siblings,
        packages=packages,
        p_cores=parse_cpulist(answers.first("cpu.performance") or ""),
        numa=_numa(answers),
        governor=answers.first("cpu.governor"),
        smt=any(len(core) > 1 for core in siblings) if siblings else None,
        affinity=_affinity(answers, known),
        quota=_quota(answers),
        offline=_offline(answers),
        isolated=parse_cpulist(answers.first("cpu.isolated") or ""),
        mems=_mems(answers, known),
    )


def _offline(answers: Answers) -> CpuList | None:
    """Return the CPUs that are present but offline; None if there are none, if SMT is off, or if the host did not tell.
    The kernel's list of offline CPUs also has numbers that it keeps for processors that may be plugged in, so it is
    compared with the list of present CPUs."""
    offline, present = (parse_cpulist(answers.first(key) or "") for key in ("cpu.offline", "cpu.present"))
    if offline is None or present is None or answers.first("cpu.smt") in ("off", "forceoff"):
        return None
    return offline & present or None


def _vendor_and_model(info: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Return the vendor and the name of the model. On ARM, the kernel prints numbers instead, which are looked up in
    tables; a vendor that is not in the table stays a number."""
    if "vendor_id" in info or "CPU implementer" not in info:
        return info.get("vendor_id"), info.get("model name")
    maker, part = (_hexadecimal(info.get(key)) for key in ("CPU implementer", "CPU part"))
    vendor = _ARM_VENDORS.get(maker or 0, info["CPU implementer"])
    return vendor, info.get("model name") or _ARM_PARTS.get((maker or 0, part or 0))


def _hexadecimal(text: str | None) -> int | None:
    try:
        return int(text or "", 16)
    except ValueError:
        return None


def _topology(answers: Answers, online: CpuList | None) -> tuple[tuple[CpuList, ...], tuple[CpuList, ...]]:
    """Return cores and sockets as lists of threads. Both are empty if a line is missing, because both would be
    wrong."""
    if "cpu.core" in answers or "cpu.socket" in answers:
        cores, sockets = (_groups(answers.all(key)) for key in ("cpu.core", "cpu.socket"))
    else:
        cores, sockets = _positions(answers.all("cpu.place"))
    if online is None and _union(cores) != _union(sockets):
        return (), ()
    return _restrict_to_online(cores, online), _restrict_to_online(sockets, online)


def _union(groups: set[CpuList]) -> set[int]:
    return {number for group in groups for number in group}


def _groups(lines: Iterable[str]) -> set[CpuList]:
    return {group for line in lines if (group := parse_cpulist(line))}


def _positions(lines: Iterable[str]) -> tuple[set[CpuList], set[CpuList]]:
    """Parse lines `PROCESSOR SOCKET CORE`, or the processor alone if the kernel shows no topology."""
    cores: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    sockets: defaultdict[int, list[int]] = defaultdict(list)
    for line in lines:
        numbers = [natural(word) for word in line.split()]
        match numbers:
            case [int(cpu), int(socket), int(core)] if cpu < 1 << 16:
                cores[socket, core].append(cpu)
                sockets[socket].append(cpu)
    return {CpuList.of(group) for group in cores.values()}, {CpuList.of(group) for group in sockets.values()}


def _restrict_to_online(groups: set[CpuList], online: CpuList | None) -> tuple[CpuList, ...]:
    """Return the groups without offline CPUs, in ascending order. Return () if a CPU is in two groups or an online CPU
    is in none."""
    numbers = [number for group in groups for number in group]
    if len(numbers) != len(set(numbers)):
        return ()
    if online is not None and set(numbers) != set(online):
        if not set(numbers) > set(online):
            return ()
        groups = {part for group in groups if (part := group & online)}
    return tuple(sorted(groups, key=lambda group: group.cpus))


def _numa(answers: Answers) -> tuple[NumaNode, ...]:
    """Parse lines `3 0-7`, `Node 3 MemTotal: 1024 kB` and `3 10 21`; a node that has only memory has no list."""
    cpus: dict[int, CpuList] = {}
    memory: dict[int, int] = {}
    distances: dict[int, tuple[int, ...]] = {}
    for line in answers.all("numa"):
        node, _, cpu_list = line.partition(" ")
        if (index := natural(node)) is not None:
            cpus.setdefault(index, parse_cpulist(cpu_list) or CpuList())
    for line in answers.all("numa.memory"):
        match line.split():
            case ["Node", node, "MemTotal:", size, *_]:
                if (index := natural(node)) is not None and (memory_bytes := kilobytes(size)) is not None:
                    memory.setdefault(index, memory_bytes)
    for line in answers.all("numa.distance"):
        row = [value for word in line.split() if (value := natural(word)) is not None]
        distances.update({row[0]: tuple(row[1:])} if row else {})
    numbers = sorted(index for index in {*cpus, *memory} if index < _MAX_NODES)
    if any(len(row) != len(numbers) for row in distances.values()):
        distances = {}
    return tuple(
        NumaNode(index, cpus.get(index, CpuList()), memory.get(index), distances.get(index, ())) for index in numbers
    )


def _is_of_kernel(answers: Answers, online: CpuList | None) -> bool:
    """Return False if the topology comes from a CPU profile of the lab instead of this kernel. The kernel prints a mask
    that is as wide as the CPUs it can have, so a topology with more CPUs is not this kernel's."""
    width = 4 * len(answers.named("status").get("Cpus_allowed", "").replace(",", ""))
    return not (width and online and width < len(online))


def _mems(answers: Answers, online: CpuList | None) -> CpuList | None:
    nodes = parse_cpulist(answers.named("status").get("Mems_allowed_list", ""))
    return nodes if _is_of_kernel(answers, online) else None


def _affinity(answers: Answers, online: CpuList | None) -> CpuList | None:
    """Return the CPUs to which this account's processes are restricted; None if there is no limit or the mask is
    unknown. In a topology that is not this kernel's, a mask that covers the first process's mask is no limit."""
    mask = parse_cpulist(answers.named("status").get("Cpus_allowed_list", ""))
    if mask is None:
        return None
    if not _is_of_kernel(answers, online):
        init_mask = parse_cpulist(answers.named("init").get("Cpus_allowed_list", ""))
        return None if init_mask is None or mask.covers(init_mask) else mask
    cpuset = next(
        (parse_cpulist(text) for key in _CPUSETS for text in answers.all(key)[:1]),
        None,
    )
    return (mask & cpuset if cpuset else None) or mask


_CPUSETS: Final = ("cgroup.cpuset.cpus.effective", "cgroup.cpuset.effective_cpus")


def _quota(answers: Answers) -> float | None:
    """Return the lowest quota of all levels of the cgroup, in CPUs; None if there is no quota. A line is such as
    `400000 100000`; `max` (v2) and -1 (v1) mean no quota."""
    quotas = []
    for key in ("cgroup.cpu.max", "cgroup.cpu.cfs_quota_us"):
        for line in answers.all(key):
            match [number(word) for word in line.split()]:
                case [int(time), int(period)] if time > 0 and period > 0:
                    quotas.append(time / period)
    return min(quotas, default=None)
