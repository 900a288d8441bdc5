"""Renders /sys/devices/system/{cpu,node} of a CPU profile: files and links by path. Pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ipexctl.lab.cpu_profiles import ARM, cpus

if TYPE_CHECKING:
    from collections.abc import Collection

    from ipexctl.lab.cpu_profiles import Cpu, CpuProfile

# Files that many CPUs share are written once, in a directory that `cpu*` does not match, and linked to.
_SHARED: Final = ".shared"
_SAME_SOCKET: Final = 12


@dataclass(frozen=True, slots=True)
class Tree:
    """Files and symbolic links below /sys/devices/system."""

    files: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)


def sysfs(cpu_profile: CpuProfile, *, memory_kb: int) -> Tree:
    """The whole tree; this machine's real memory is divided among the nodes."""
    tree = Tree()
    all_cpus = cpus(cpu_profile)
    _system_files(tree, cpu_profile)
    _cpus(tree, cpu_profile, all_cpus)
    _caches(tree, cpu_profile, all_cpus)
    _nodes(tree, cpu_profile, all_cpus, memory_kb)
    return tree


def cpu_list(numbers: Collection[int]) -> str:
    """0, 1, 2, 8 → `0-2,8`."""
    parts: list[str] = []
    ordered = sorted(numbers)
    start = 0
    for position, number in enumerate(ordered):
        if position + 1 == len(ordered) or ordered[position + 1] != number + 1:
            first = ordered[start]
            parts.append(f"{first}" if first == number else f"{first}-{number}")
            start = position + 1
    return ",".join(parts)


def cpu_mask(numbers: Collection[int], width: int) -> str:
    """The numbers as a kernel mask: groups of 32 bits in hex, the highest first, all padded but the first."""
    bits = sum(1 << number for number in numbers)
    digits = -(-width // 4)
    text = f"{bits:0{digits}x}"
    groups = [text[max(0, end - 8) : end] for end in range(len(text), 0, -8)]
    return ",".join(reversed(groups))


def _system_files(tree: Tree, cpu_profile: CpuProfile) -> None:
    number_list = cpu_list(range(cpu_profile.cpus))
    smt = cpu_profile.threads > 1
    for name in ("online", "present", "possible"):
        tree.files[f"cpu/{name}"] = f"{number_list}\n"
    tree.files["cpu/offline"] = "\n"
    tree.files["cpu/isolated"] = "\n"
    tree.files["cpu/kernel_max"] = "8191\n"
    tree.files["cpu/smt/active"] = f"{int(smt)}\n"
    tree.files["cpu/smt/control"] = "on\n" if smt else "notsupported\n"
    for name, value in (
        ("scaling_governor", "performance"),
        ("scaling_available_governors", "performance powersave"),
        ("scaling_driver", "acpi-cpufreq" if cpu_profile.vendor != "GenuineIntel" else "intel_pstate"),
        ("cpuinfo_max_freq", cpu_profile.mhz * 1000),
        ("cpuinfo_min_freq", 800000),
        ("scaling_max_freq", cpu_profile.mhz * 1000),
        ("scaling_min_freq", 800000),
        ("scaling_cur_freq", cpu_profile.mhz * 1000),
    ):
        tree.files[f"cpu/{_SHARED}/cpufreq/{name}"] = f"{value}\n"


def _cpus(tree: Tree, cpu_profile: CpuProfile, all_cpus: Collection[Cpu]) -> None:
    by_core = defaultdict(list)
    by_socket = defaultdict(list)
    for cpu in all_cpus:
        by_core[cpu.socket, cpu.core].append(cpu.number)
        by_socket[cpu.socket].append(cpu.number)
    core_sets = {key: _list_and_mask(numbers, cpu_profile.cpus) for key, numbers in by_core.items()}
    socket_sets = {key: _list_and_mask(numbers, cpu_profile.cpus) for key, numbers in by_socket.items()}
    for cpu in all_cpus:
        directory = f"cpu/cpu{cpu.number}"
        core_list, core_mask = core_sets[cpu.socket, cpu.core]
        socket_list, socket_mask = socket_sets[cpu.socket]
        for name, value in (
            ("core_id", f"{cpu.core}\n"),
            ("physical_package_id", f"{cpu.socket}\n"),
            ("die_id", "0\n"),
            ("thread_siblings_list", core_list),
            ("thread_siblings", core_mask),
            ("core_cpus_list", core_list),
            ("core_cpus", core_mask),
            ("core_siblings_list", socket_list),
            ("core_siblings", socket_mask),
            ("package_cpus_list", socket_list),
            ("package_cpus", socket_mask),
        ):
            tree.files[f"{directory}/topology/{name}"] = value
        tree.links[f"{directory}/cpufreq"] = f"../{_SHARED}/cpufreq"
        tree.links[f"{directory}/cache"] = f"../{_SHARED}/core{cpu.socket}-{cpu.core}"
        tree.links[f"{directory}/node{cpu.node}"] = f"../../node/node{cpu.node}"
        if cpu.number:
            tree.files[f"{directory}/online"] = "1\n"


def _list_and_mask(numbers: Collection[int], width: int) -> tuple[str, str]:
    return f"{cpu_list(numbers)}\n", f"{cpu_mask(numbers, width)}\n"


def _caches(tree: Tree, cpu_profile: CpuProfile, all_cpus: Collection[Cpu]) -> None:
    by_core = defaultdict(list)
    by_l3 = defaultdict(list)
    cores_per_l3 = cpu_profile.l3_cores or cpu_profile.cores
    for cpu in all_cpus:
        by_core[cpu.socket, cpu.core].append(cpu.number)
        by_l3[cpu.socket, cpu.core // cores_per_l3].append(cpu.number)
    core_caches = (
        (0, 1, "Data", cpu_profile.l1d),
        (1, 1, "Instruction", cpu_profile.l1i),
        (2, 2, "Unified", cpu_profile.l2),
    )
    for number, ((socket, core), numbers) in enumerate(by_core.items()):
        base = f"cpu/{_SHARED}/core{socket}-{core}"
        for index, level, kind, size in core_caches:
            _cache(tree, f"{base}/index{index}", level, kind, size, _list_and_mask(numbers, cpu_profile.cpus), number)
        tree.links[f"{base}/index3"] = f"../l3-{socket}-{core // cores_per_l3}"
    for number, ((socket, part), numbers) in enumerate(by_l3.items()):
        directory = f"cpu/{_SHARED}/l3-{socket}-{part}"
        _cache(tree, directory, 3, "Unified", cpu_profile.l3, _list_and_mask(numbers, cpu_profile.cpus), number)


def _cache(tree: Tree, directory: str, level: int, kind: str, size: int, shared: tuple[str, str], number: int) -> None:
    for name, value in (
        ("level", f"{level}\n"),
        ("type", f"{kind}\n"),
        ("size", f"{size}K\n"),
        ("id", f"{number}\n"),
        ("coherency_line_size", "64\n"),
        ("shared_cpu_list", shared[0]),
        ("shared_cpu_map", shared[1]),
    ):
        tree.files[f"{directory}/{name}"] = value


def _nodes(tree: Tree, cpu_profile: CpuProfile, all_cpus: Collection[Cpu], memory_kb: int) -> None:
    number_list = cpu_list(range(cpu_profile.nodes))
    for name in ("online", "possible", "has_cpu", "has_memory", "has_normal_memory"):
        tree.files[f"node/{name}"] = f"{number_list}\n"
    node_kb = memory_kb // cpu_profile.nodes
    for node in range(cpu_profile.nodes):
        directory = f"node/node{node}"
        numbers = [cpu.number for cpu in all_cpus if cpu.node == node]
        tree.files[f"{directory}/cpulist"], tree.files[f"{directory}/cpumap"] = _list_and_mask(
            numbers, cpu_profile.cpus
        )
        tree.files[f"{directory}/distance"] = " ".join(_distances(cpu_profile, node)) + "\n"
        tree.files[f"{directory}/meminfo"] = "".join(
            f"Node {node} {name + ':':<15}{value:>9} kB\n"
            for name, value in (
                ("MemTotal", node_kb),
                ("MemFree", node_kb // 10 * 9),
                ("MemUsed", node_kb - node_kb // 10 * 9),
            )
        )
        for number in numbers:
            tree.links[f"{directory}/cpu{number}"] = f"../../cpu/cpu{number}"


def _distances(cpu_profile: CpuProfile, node: int) -> list[str]:
    def distance(other: int) -> int:
        if other == node:
            return 10
        same_socket = other // cpu_profile.numa_per_socket == node // cpu_profile.numa_per_socket
        return _SAME_SOCKET if same_socket else cpu_profile.far

    return [str(distance(other)) for other in range(cpu_profile.nodes)]


def wrappers(cpu_profile: CpuProfile) -> dict[str, str]:
    """Wrappers of programs that read the architecture from the kernel, to print the profile's; none on x86."""
    if cpu_profile.arch != ARM:
        return {}
    return {name: _wrapper(name, cpu_profile.arch) for name in ("uname", "arch", "lscpu")}


def _wrapper(program: str, arch: str) -> str:
    return f"""#!/bin/sh
# A CPU profile of the lab: prints another architecture than that of the real kernel.
/usr/bin/{program} "$@" | sed 's/x86_64/{arch}/g'
"""
