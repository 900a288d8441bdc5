"""Outputs of the probe: of real machines, recorded by hand, and of a lab's host with each of its CPU profiles.

The lab's host was recorded once; the lines about its CPU come from the files that the lab mounts for the profile.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

from ipexctl.addons.lab.cpu_profiles import CPU_PROFILES, CpuProfile, cpuinfo, find_cpu_profile, sysfs

RECORDED = Path(__file__).parent / "unit/facts/recorded"
MACHINES = sorted(file.stem for file in RECORDED.glob("*.json"))
NAMES = sorted([*MACHINES, *(f"lab-{cpu_profile.name}" for cpu_profile in CPU_PROFILES)])
TIERS = {
    "sandybridge": "unsupported",
    "haswell": "avx2",
    "skylake-sp": "avx512",
    "cascadelake": "avx512",
    "cooperlake": "avx512_bf16",
    "icelake-sp": "avx512",
    "cloud-smt": "avx512",
    "sapphirerapids": "amx",
    "emerald-rapids": "amx",
    "graniterapids": "amx",
    "epyc-genoa": "avx512_bf16",
    "graviton3": "unsupported",
}
"""The tier of each CPU profile."""


@functools.cache
def recorded(name: str) -> str:
    if not name.startswith("lab-"):
        return (RECORDED / f"{name}.txt").read_text(encoding="utf-8")
    cpu_profile = find_cpu_profile(name.removeprefix("lab-"))
    text = (RECORDED / "lab.txt").read_text(encoding="utf-8").replace(" x86_64\n", f" {cpu_profile.arch}\n", 1)
    return text.replace("status ", "".join(f"{line}\n" for line in _cpu_lines(cpu_profile)) + "status ", 1)


def _cpu_lines(cpu_profile: CpuProfile) -> list[str]:
    """The lines of `kernel.awk` about processors and NUMA nodes."""
    files = sysfs(cpu_profile, memory_kb=24684096).files
    first = cpuinfo(cpu_profile).partition("\n\n")[0].splitlines()
    lines = [
        f"cpuinfo {line}" for line in first if re.match("vendor_id|cpu family|model|stepping|flags|Features|CPU ", line)
    ]
    lines += [f"cpu.online {files['cpu/online']}"]
    if governor := files.get("cpu/.shared/cpufreq/scaling_governor"):
        lines += [f"cpu.governor {governor}"]
    lines += dict.fromkeys(
        f"{key} {files[f'cpu/cpu{number}/topology/{file}']}"
        for number in range(cpu_profile.cpus)
        for key, file in (("cpu.core", "thread_siblings_list"), ("cpu.socket", "core_siblings_list"))
    )
    for node in range(cpu_profile.nodes):
        lines += [f"numa {node} {files[f'node/node{node}/cpulist']}"]
        lines += [f"numa.memory {files[f'node/node{node}/meminfo'].splitlines()[0]}"]
    return [line.rstrip("\n") for line in lines]
