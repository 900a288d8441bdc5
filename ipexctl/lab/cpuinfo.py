"""Renders /proc/cpuinfo of a CPU profile. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipexctl.lab.cpu_profiles import ARM, cpus

if TYPE_CHECKING:
    from ipexctl.lab.cpu_profiles import Cpu, CpuProfile


def cpuinfo(cpu_profile: CpuProfile) -> str:
    render = _arm if cpu_profile.arch == ARM else _x86
    return "".join(f"{render(cpu_profile, cpu)}\n" for cpu in cpus(cpu_profile))


def _x86(cpu_profile: CpuProfile, cpu: Cpu) -> str:
    apicid = _apicid(cpu_profile, cpu)
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


def _apicid(cpu_profile: CpuProfile, cpu: Cpu) -> int:
    per_socket = 1 << (cpu_profile.cores * cpu_profile.threads - 1).bit_length()
    return cpu.socket * per_socket + cpu.core * cpu_profile.threads + cpu.thread


def _arm(cpu_profile: CpuProfile, cpu: Cpu) -> str:
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
