"""The probe's lines about processors, as a Cpu. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from ipexctl.facts.answers import kilobytes, natural, number
from ipexctl.facts.cpu import Cpu, NumaNode
from ipexctl.facts.cpulist import CpuList, parse_cpulist

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ipexctl.facts.answers import Answers

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


def parse_cpu(said: Answers, arch: str | None) -> Cpu:
    info = said.named("cpuinfo")
    vendor, model_name = _named(info)
    online = parse_cpulist(said.first("cpu.online") or "")
    siblings, packages = _topology(said, online)
    known = online or CpuList.of(number for core in siblings for number in core) or None
    return _with_sysctl(
        said,
        Cpu(
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
            numa=_numa(said),
            governor=said.first("cpu.governor"),
            smt=any(len(core) > 1 for core in siblings) if siblings else None,
            affinity=_affinity(said, known),
            quota=_quota(said),
        ),
    )


def _named(info: Mapping[str, str]) -> tuple[str | None, str | None]:
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


def _topology(said: Answers, online: CpuList | None) -> tuple[tuple[CpuList, ...], tuple[CpuList, ...]]:
    """Cores and sockets as lists of their threads; nothing where a line is missing, for then both are wrong."""
    if "cpu.core" in said or "cpu.socket" in said:
        cores, sockets = (_groups(said.all(key)) for key in ("cpu.core", "cpu.socket"))
    else:
        cores, sockets = _places(said.all("cpu.place"))
    if online is None and _union(cores) != _union(sockets):
        return (), ()
    return _complete(cores, online), _complete(sockets, online)


def _union(groups: set[CpuList]) -> set[int]:
    return {number for group in groups for number in group}


def _groups(lines: Iterable[str]) -> set[CpuList]:
    return {group for line in lines if (group := parse_cpulist(line))}


def _places(lines: Iterable[str]) -> tuple[set[CpuList], set[CpuList]]:
    """`PROCESSOR SOCKET CORE` a line, or the processor alone where the kernel says no more."""
    cores: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    sockets: defaultdict[int, list[int]] = defaultdict(list)
    for line in lines:
        numbers = [natural(word) for word in line.split()]
        match numbers:
            case [int(cpu), int(socket), int(core)] if cpu < 1 << 16:
                cores[socket, core].append(cpu)
                sockets[socket].append(cpu)
    return {CpuList.of(group) for group in cores.values()}, {CpuList.of(group) for group in sockets.values()}


def _complete(groups: set[CpuList], online: CpuList | None) -> tuple[CpuList, ...]:
    numbers = [number for group in groups for number in group]
    if len(numbers) != len(set(numbers)):
        return ()
    if online is not None and set(numbers) != set(online):
        if not set(numbers) > set(online):
            return ()
        groups = {part for group in groups if (part := group & online)}
    return tuple(sorted(groups, key=lambda group: group.cpus))


def _numa(said: Answers) -> tuple[NumaNode, ...]:
    """`3 0-7`, and of its memory `Node 3 MemTotal: 1024 kB`; a node of memory alone has no list."""
    cpus: dict[int, CpuList] = {}
    memory: dict[int, int] = {}
    for line in said.all("numa"):
        node, _, listed = line.partition(" ")
        if (at := natural(node)) is not None:
            cpus.setdefault(at, parse_cpulist(listed) or CpuList())
    for line in said.all("numa.memory"):
        match line.split():
            case ["Node", node, "MemTotal:", size, *_]:
                if (at := natural(node)) is not None and (found := kilobytes(size)) is not None:
                    memory.setdefault(at, found)
    return tuple(NumaNode(at, cpus.get(at, CpuList()), memory.get(at)) for at in sorted({*cpus, *memory}))


def _affinity(said: Answers, online: CpuList | None) -> CpuList | None:
    """The CPUs our processes may run on.

    A kernel prints its mask as wide as the CPUs it can have. Where the topology shows more than that, it is not
    this kernel's own (a lab's costume), and the mask's numbers mean something else: then a mask that holds
    nothing back, against that of the first process, is no limit.
    """
    status = said.named("status")
    mask = parse_cpulist(status.get("Cpus_allowed_list", ""))
    if mask is None:
        return None
    width = 4 * len(status.get("Cpus_allowed", "").replace(",", ""))
    if width and online and width < len(online):
        whole = parse_cpulist(said.named("init").get("Cpus_allowed_list", ""))
        return None if whole is None or mask.covers(whole) else mask
    cpuset = next(
        (parse_cpulist(text) for key in _CPUSETS for text in said.all(key)[:1]),
        None,
    )
    return (mask & cpuset if cpuset else None) or mask


_CPUSETS: Final = ("cgroup.cpuset.cpus.effective", "cgroup.cpuset.effective_cpus")


def _quota(said: Answers) -> float | None:
    """The tightest of all levels: `400000 100000`, in v2 with `max` for none, in v1 with -1."""
    found = []
    for key in ("cgroup.cpu.max", "cgroup.cpu.cfs_quota_us"):
        for line in said.all(key):
            match [number(word) for word in line.split()]:
                case [int(time), int(period)] if time > 0 and period > 0:
                    found.append(time / period)
    return min(found, default=None)


def _with_sysctl(said: Answers, cpu: Cpu) -> Cpu:
    """What a Mac or a BSD says instead."""
    told = said.named("sysctl")
    if not told:
        return cpu
    return Cpu(
        arch=cpu.arch,
        vendor=told.get("machdep.cpu.vendor"),
        model_name=told.get("machdep.cpu.brand_string") or told.get("hw.model"),
        sockets=natural(told.get("hw.packages")),
        cores=natural(told.get("hw.physicalcpu")),
        threads=natural(told.get("hw.logicalcpu")) or natural(told.get("hw.ncpu")),
    )
