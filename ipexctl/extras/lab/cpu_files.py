"""Writes /proc/cpuinfo and /sys/devices/system of a CPU profile, in the kernel's order and format, for hosts to mount.

CPUs share identical files by links, because a host of 256 CPUs has thousands. The memory is this machine's, divided
among the nodes. Programs that ask the kernel for the architecture get a wrapper.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from ipexctl.extras.lab.cpu_profiles import ARM, CpuProfile, CpuSpec, cpus, find_cpu_profile
from ipexctl.extras.lab.state import Lab
from ipexctl.text import number_ranges

Key = TypeVar("Key")


def cpuinfo(cpu_profile: CpuProfile) -> str:
    render = _arm if cpu_profile.arch == ARM else _x86
    return "".join(f"{render(cpu_profile, cpu)}\n" for cpu in cpus(cpu_profile))


def _x86(cpu_profile: CpuProfile, cpu: CpuSpec) -> str:
    per_socket = 1 << (cpu_profile.cores * cpu_profile.threads - 1).bit_length()
    apicid = cpu.socket * per_socket + cpu.core * cpu_profile.threads + cpu.thread
    amd = cpu_profile.vendor == "AuthenticAMD"
    # "cache size" is a core's L2 on AMD and a socket's L3 on Intel.
    cache = cpu_profile.l2 if amd else cpu_profile.l3
    fields = [
        ("processor\t", cpu.number),
        ("vendor_id\t", cpu_profile.vendor),
        ("cpu family\t", cpu_profile.family),
        ("model\t\t", cpu_profile.model),
        ("model name\t", cpu_profile.model_name),
        ("stepping\t", cpu_profile.stepping),
        ("microcode\t", cpu_profile.microcode),
        ("cpu MHz\t\t", f"{cpu_profile.mhz}.000"),
        ("cache size\t", f"{cache} KB"),
        ("physical id\t", cpu.socket),
        ("siblings\t", cpu_profile.cores * cpu_profile.threads),
        ("core id\t\t", cpu.core),
        ("cpu cores\t", cpu_profile.cores),
        ("apicid\t\t", apicid),
        ("initial apicid\t", apicid),
        ("fpu\t\t", "yes"),
        ("fpu_exception\t", "yes"),
        ("cpuid level\t", cpu_profile.cpuid_level),
        ("wp\t\t", "yes"),
        ("flags\t\t", cpu_profile.flags),
        ("bugs\t\t", "spectre_v1 spectre_v2 spec_store_bypass"),
        ("bogomips\t", f"{cpu_profile.mhz * 2}.00"),
        ("clflush size\t", 64),
        ("cache_alignment\t", 64),
        ("address sizes\t", cpu_profile.address_sizes),
        ("power management", ""),
    ]
    return "".join(f"{name}: {value}".rstrip() + "\n" for name, value in fields)


def _arm(cpu_profile: CpuProfile, cpu: CpuSpec) -> str:
    return (
        f"processor\t: {cpu.number}\n"
        "BogoMIPS\t: 2100.00\n"
        f"Features\t: {cpu_profile.flags}\n"
        "CPU implementer\t: 0x41\n"
        "CPU architecture: 8\n"
        "CPU variant\t: 0x1\n"
        f"CPU part\t: {cpu_profile.model:#x}\n"
        f"CPU revision\t: {cpu_profile.stepping}\n"
    )


# Files that many CPUs share are written once, in a directory that `cpu*` does not match, and linked to.
_SHARED: Final = ".shared"
_SAME_SOCKET: Final = 12


@dataclass(frozen=True, slots=True)
class Tree:
    files: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)


def sysfs(cpu_profile: CpuProfile, *, memory_kb: int) -> Tree:
    tree = Tree()
    all_cpus = cpus(cpu_profile)
    _system_files(tree, cpu_profile)
    _cpus(tree, cpu_profile, all_cpus)
    _caches(tree, cpu_profile, all_cpus)
    _nodes(tree, cpu_profile, all_cpus, memory_kb)
    return tree


def cpu_mask(numbers: Collection[int], width: int) -> str:
    """As a kernel mask: groups of 32 bits in hex, highest first, all but the first padded."""
    bits = sum(1 << number for number in numbers)
    digits = -(-width // 4)
    text = f"{bits:0{digits}x}"
    groups = [text[max(0, end - 8) : end] for end in range(len(text), 0, -8)]
    return ",".join(reversed(groups))


def _system_files(tree: Tree, cpu_profile: CpuProfile) -> None:
    number_list = number_ranges(range(cpu_profile.cpus))
    smt = cpu_profile.threads > 1
    for name in ("online", "present", "possible"):
        tree.files[f"cpu/{name}"] = f"{number_list}\n"
    tree.files["cpu/offline"] = "\n"
    tree.files["cpu/isolated"] = "\n"
    tree.files["cpu/kernel_max"] = "8191\n"
    tree.files["cpu/smt/active"] = f"{int(smt)}\n"
    tree.files["cpu/smt/control"] = "on\n" if smt else "notsupported\n"
    if cpu_profile.virtual:  # no cpufreq: the hypervisor sets the clock
        return
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


def _cpus(tree: Tree, cpu_profile: CpuProfile, all_cpus: Collection[CpuSpec]) -> None:
    core_sets = _sets(cpu_profile, all_cpus, lambda cpu: (cpu.socket, cpu.core))
    socket_sets = _sets(cpu_profile, all_cpus, lambda cpu: cpu.socket)
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
        if not cpu_profile.virtual:
            tree.links[f"{directory}/cpufreq"] = f"../{_SHARED}/cpufreq"
        tree.links[f"{directory}/cache"] = f"../{_SHARED}/core{cpu.socket}-{cpu.core}"
        tree.links[f"{directory}/node{cpu.node}"] = f"../../node/node{cpu.node}"
        if cpu.number:
            tree.files[f"{directory}/online"] = "1\n"


def _sets(
    cpu_profile: CpuProfile, all_cpus: Collection[CpuSpec], key: Callable[[CpuSpec], Key]
) -> dict[Key, tuple[str, str]]:
    found: defaultdict[Key, list[int]] = defaultdict(list)
    for cpu in all_cpus:
        found[key(cpu)].append(cpu.number)
    return {
        group: (f"{number_ranges(sorted(numbers))}\n", f"{cpu_mask(numbers, cpu_profile.cpus)}\n")
        for group, numbers in found.items()
    }


def _caches(tree: Tree, cpu_profile: CpuProfile, all_cpus: Collection[CpuSpec]) -> None:
    cores_per_l3 = cpu_profile.l3_cores or cpu_profile.cores
    by_core = _sets(cpu_profile, all_cpus, lambda cpu: (cpu.socket, cpu.core))
    by_l3 = _sets(cpu_profile, all_cpus, lambda cpu: (cpu.socket, cpu.core // cores_per_l3))
    core_caches = (
        (0, 1, "Data", cpu_profile.l1d),
        (1, 1, "Instruction", cpu_profile.l1i),
        (2, 2, "Unified", cpu_profile.l2),
    )
    for number, ((socket, core), shared) in enumerate(by_core.items()):
        base = f"cpu/{_SHARED}/core{socket}-{core}"
        for index, level, kind, size in core_caches:
            _cache(tree, f"{base}/index{index}", level, kind, size, shared, number)
        tree.links[f"{base}/index3"] = f"../l3-{socket}-{core // cores_per_l3}"
    for number, ((socket, part), shared) in enumerate(by_l3.items()):
        _cache(tree, f"cpu/{_SHARED}/l3-{socket}-{part}", 3, "Unified", cpu_profile.l3, shared, number)


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


def _nodes(tree: Tree, cpu_profile: CpuProfile, all_cpus: Collection[CpuSpec], memory_kb: int) -> None:
    number_list = number_ranges(range(cpu_profile.nodes))
    for name in ("online", "possible", "has_cpu", "has_memory", "has_normal_memory"):
        tree.files[f"node/{name}"] = f"{number_list}\n"
    node_kb = memory_kb // cpu_profile.nodes
    for node, (cpu_list, mask) in _sets(cpu_profile, all_cpus, lambda cpu: cpu.node).items():
        directory = f"node/node{node}"
        tree.files[f"{directory}/cpulist"] = cpu_list
        tree.files[f"{directory}/cpumap"] = mask
        tree.files[f"{directory}/distance"] = (
            " ".join(str(_distance(cpu_profile, node, other)) for other in range(cpu_profile.nodes)) + "\n"
        )
        tree.files[f"{directory}/meminfo"] = "".join(
            f"Node {node} {name + ':':<15}{value:>9} kB\n"
            for name, value in (
                ("MemTotal", node_kb),
                ("MemFree", node_kb // 10 * 9),
                ("MemUsed", node_kb - node_kb // 10 * 9),
            )
        )
    for cpu in all_cpus:
        tree.links[f"node/node{cpu.node}/cpu{cpu.number}"] = f"../../cpu/cpu{cpu.number}"


def _distance(cpu_profile: CpuProfile, node: int, other: int) -> int:
    if other == node:
        return 10
    same_socket = other // cpu_profile.numa_per_socket == node // cpu_profile.numa_per_socket
    return _SAME_SOCKET if same_socket else cpu_profile.far


def wrappers(cpu_profile: CpuProfile) -> dict[str, str]:
    """Wrappers that make programs print the profile's architecture; none on x86."""
    if cpu_profile.arch != ARM:
        return {}
    text = """#!/bin/sh
# A CPU profile of the lab: prints another architecture than that of the real kernel.
/usr/bin/{program} "$@" | sed 's/x86_64/{arch}/g'
"""
    return {name: text.format(program=name, arch=cpu_profile.arch) for name in ("uname", "arch", "lscpu")}


def write_profiles(lab: Lab) -> None:
    """Write each CPU profile once, for all hosts that use it."""
    for name in sorted({host.cpu_profile for host in lab.nodes if host.cpu_profile}):
        _write_profile(profile_directory(lab, name), name)


def profile_directory(lab: Lab, name: str) -> Path:
    return lab.dir / f"costume-{name}"


def _write_profile(directory: Path, name: str) -> None:
    cpu_profile = find_cpu_profile(name)
    directory.mkdir()
    (directory / "cpuinfo").write_text(cpuinfo(cpu_profile))
    (directory / "arch").write_text(f"{cpu_profile.arch}\n")
    tree = sysfs(cpu_profile, memory_kb=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 1024)
    system = directory / "system"
    for parent in sorted({path.rpartition("/")[0] for path in (*tree.files, *tree.links)}):
        (system / parent).mkdir(parents=True, exist_ok=True)
    for path, text in tree.files.items():
        (system / path).write_text(text)
    for path, target in tree.links.items():
        (system / path).symlink_to(target)
    for program, text in wrappers(cpu_profile).items():
        script = directory / "bin" / program
        script.parent.mkdir(exist_ok=True)
        script.write_text(text)
        script.chmod(0o755)
