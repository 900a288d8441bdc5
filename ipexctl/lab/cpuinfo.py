"""/proc/cpuinfo of a costume. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipexctl.lab.costumes import ARM, cpus

if TYPE_CHECKING:
    from ipexctl.lab.costumes import Costume, Cpu


def cpuinfo(costume: Costume) -> str:
    one = _arm if costume.arch == ARM else _x86
    return "".join(f"{one(costume, cpu)}\n" for cpu in cpus(costume))


def _x86(costume: Costume, cpu: Cpu) -> str:
    apicid = _apicid(costume, cpu)
    amd = costume.vendor == "AuthenticAMD"
    # The kernel calls an AMD core's own L2 the cache, and an Intel socket's L3.
    cache = costume.l2 if amd else costume.l3
    rows = [
        ("processor\t", cpu.number),
        ("vendor_id\t", costume.vendor),
        ("cpu family\t", costume.family),
        ("model\t\t", costume.model),
        ("model name\t", costume.model_name),
        ("stepping\t", costume.stepping),
        ("microcode\t", costume.microcode),
        ("cpu MHz\t\t", f"{costume.mhz}.000"),
        ("cache size\t", f"{cache} KB"),
        ("physical id\t", cpu.socket),
        ("siblings\t", costume.cores * costume.threads),
        ("core id\t\t", cpu.core),
        ("cpu cores\t", costume.cores),
        ("apicid\t\t", apicid),
        ("initial apicid\t", apicid),
        ("fpu\t\t", "yes"),
        ("fpu_exception\t", "yes"),
        ("cpuid level\t", costume.cpuid_level),
        ("wp\t\t", "yes"),
        ("flags\t\t", costume.flags),
        ("bugs\t\t", "spectre_v1 spectre_v2 spec_store_bypass"),
        ("bogomips\t", f"{costume.mhz * 2}.00"),
        ("clflush size\t", 64),
        ("cache_alignment\t", 64),
        ("address sizes\t", costume.address_sizes),
        ("power management", ""),
    ]
    return "".join(f"{name}: {value}".rstrip() + "\n" for name, value in rows)


def _apicid(costume: Costume, cpu: Cpu) -> int:
    per_socket = 1 << (costume.cores * costume.threads - 1).bit_length()
    return cpu.socket * per_socket + cpu.core * costume.threads + cpu.thread


def _arm(costume: Costume, cpu: Cpu) -> str:
    return (
        f"processor\t: {cpu.number}\n"
        "BogoMIPS\t: 2100.00\n"
        f"Features\t: {costume.flags}\n"
        "CPU implementer\t: 0x41\n"
        "CPU architecture: 8\n"
        "CPU variant\t: 0x1\n"
        f"CPU part\t: {costume.model:#x}\n"
        f"CPU revision\t: {costume.stepping}\n"
    )
