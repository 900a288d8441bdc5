"""Parses the probe's lines about processors. Pure."""

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


def parse_cpu(answers: Answers, arch: str | None) -> Cpu:
    info = answers.named("cpuinfo")
    vendor, model_name = _vendor_and_model(info)
    online = parse_cpulist(answers.first("cpu.online") or "")
    siblings, packages = _topology(answers, online)
    known = online or CpuList.of(number for core in siblings for number in core) or None
    return _with_sysctl(
        answers,
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
            numa=_numa(answers),
            governor=answers.first("cpu.governor"),
            smt=any(len(core) > 1 for core in siblings) if siblings else None,
            affinity=_affinity(answers, known),
            quota=_quota(answers),
        ),
    )


def _vendor_and_model(info: Mapping[str, str]) -> tuple[str | None, str | None]:
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
    """Cores and sockets as lists of threads; empty if a line is missing, because both would be wrong."""
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
    """Lines `PROCESSOR SOCKET CORE`, or the processor alone if the kernel has no topology."""
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
    numbers = [number for group in groups for number in group]
    if len(numbers) != len(set(numbers)):
        return ()
    if online is not None and set(numbers) != set(online):
        if not set(numbers) > set(online):
            return ()
        groups = {part for group in groups if (part := group & online)}
    return tuple(sorted(groups, key=lambda group: group.cpus))


def _numa(answers: Answers) -> tuple[NumaNode, ...]:
    """Lines `3 0-7` and `Node 3 MemTotal: 1024 kB`; a node with memory only has no list."""
    cpus: dict[int, CpuList] = {}
    memory: dict[int, int] = {}
    for line in answers.all("numa"):
        node, _, cpu_list = line.partition(" ")
        if (index := natural(node)) is not None:
            cpus.setdefault(index, parse_cpulist(cpu_list) or CpuList())
    for line in answers.all("numa.memory"):
        match line.split():
            case ["Node", node, "MemTotal:", size, *_]:
                if (index := natural(node)) is not None and (memory_bytes := kilobytes(size)) is not None:
                    memory.setdefault(index, memory_bytes)
    return tuple(NumaNode(index, cpus.get(index, CpuList()), memory.get(index)) for index in sorted({*cpus, *memory}))


def _affinity(answers: Answers, online: CpuList | None) -> CpuList | None:
    """The CPUs that this account's processes may run on.

    The kernel prints its mask as wide as the CPUs it can have. If the topology shows more CPUs, it is not that of
    this kernel (a CPU profile of the lab), and the numbers in the mask have another meaning: then a mask that covers
    that of the first process is no limit.
    """
    status = answers.named("status")
    mask = parse_cpulist(status.get("Cpus_allowed_list", ""))
    if mask is None:
        return None
    width = 4 * len(status.get("Cpus_allowed", "").replace(",", ""))
    if width and online and width < len(online):
        init_mask = parse_cpulist(answers.named("init").get("Cpus_allowed_list", ""))
        return None if init_mask is None or mask.covers(init_mask) else mask
    cpuset = next(
        (parse_cpulist(text) for key in _CPUSETS for text in answers.all(key)[:1]),
        None,
    )
    return (mask & cpuset if cpuset else None) or mask


_CPUSETS: Final = ("cgroup.cpuset.cpus.effective", "cgroup.cpuset.effective_cpus")


def _quota(answers: Answers) -> float | None:
    """The lowest quota of all levels: `400000 100000`; `max` (v2) and -1 (v1) mean none."""
    quotas = []
    for key in ("cgroup.cpu.max", "cgroup.cpu.cfs_quota_us"):
        for line in answers.all(key):
            match [number(word) for word in line.split()]:
                case [int(time), int(period)] if time > 0 and period > 0:
                    quotas.append(time / period)
    return min(quotas, default=None)


def _with_sysctl(answers: Answers, cpu: Cpu) -> Cpu:
    """The values of a Mac or BSD, from sysctl."""
    sysctl = answers.named("sysctl")
    if not sysctl:
        return cpu
    return Cpu(
        arch=cpu.arch,
        vendor=sysctl.get("machdep.cpu.vendor"),
        model_name=sysctl.get("machdep.cpu.brand_string") or sysctl.get("hw.model"),
        sockets=natural(sysctl.get("hw.packages")),
        cores=natural(sysctl.get("hw.physicalcpu")),
        threads=natural(sysctl.get("hw.logicalcpu")) or natural(sysctl.get("hw.ncpu")),
    )
