"""Describe the CPUs that a lab's host can imitate, Sandy Bridge to Granite Rapids, Genoa and Graviton 3, and write
their files.

Flags are listed as changes to the previous generation, in Linux's names. Hosts mount /proc/cpuinfo and
/sys/devices/system. CPUs share identical files by links, because a host with 256 CPUs has thousands.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from ipexctl.addons.lab.lab_record import Lab, find_named
from ipexctl.text import number_ranges

_COMMON = """
fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse sse2 ht syscall
nx pdpe1gb rdtscp lm constant_tsc rep_good nopl xtopology nonstop_tsc cpuid aperfmperf pni pclmulqdq monitor
ssse3 cx16 sse4_1 sse4_2 popcnt aes xsave avx lahf_lm ssbd ibrs ibpb stibp
"""
_SANDYBRIDGE = f"""{_COMMON}
dts acpi ss tm pbe arch_perfmon pebs bts dtes64 ds_cpl vmx smx est tm2 xtpr pdcm pcid dca x2apic
tsc_deadline_timer epb tpr_shadow flexpriority ept vpid xsaveopt dtherm ida arat pln pts md_clear flush_l1d
"""
_HASWELL = f"""{_SANDYBRIDGE}
sdbg fma movbe f16c rdrand abm cpuid_fault invpcid_single intel_ppin ept_ad fsgsbase tsc_adjust bmi1 avx2 smep
bmi2 erms invpcid cqm cqm_llc cqm_occup_llc
"""
_SKYLAKE = f"""{_HASWELL}
art 3dnowprefetch cat_l3 cdp_l3 mba mpx rdt_a avx512f avx512dq rdseed adx smap clflushopt clwb intel_pt
avx512cd avx512bw avx512vl xsavec xgetbv1 xsaves cqm_mbm_total cqm_mbm_local pku ospke
"""
_CASCADELAKE = f"{_SKYLAKE} ibrs_enhanced avx512_vnni arch_capabilities hwp hwp_act_window hwp_epp hwp_pkg_req"
_COOPERLAKE = f"{_CASCADELAKE} avx512_bf16"
# Ice Lake has no bf16, unlike Cooper Lake, and no mpx.
_ICELAKE = f"""{_CASCADELAKE}
-mpx avx512ifma sha_ni split_lock_detect wbnoinvd avx512vbmi umip avx512_vbmi2 gfni vaes vpclmulqdq
avx512_bitalg tme avx512_vpopcntdq la57 rdpid fsrm pconfig
"""
# What an EC2 m6i.2xlarge prints: the hypervisor hides power management, vmx and performance counters.
_ICELAKE_VM = f"""{_COMMON}
ss tsc_known_freq fma pcid x2apic movbe tsc_deadline_timer f16c rdrand hypervisor abm 3dnowprefetch cpuid_fault
invpcid_single ibrs_enhanced fsgsbase tsc_adjust bmi1 avx2 smep bmi2 erms invpcid avx512f avx512dq rdseed adx smap
avx512ifma clflushopt clwb avx512cd sha_ni avx512bw avx512vl xsaveopt xsavec xgetbv1 xsaves wbnoinvd ida arat
avx512vbmi pku ospke avx512_vbmi2 gfni vaes vpclmulqdq avx512_vnni avx512_bitalg tme avx512_vpopcntdq rdpid md_clear
flush_l1d arch_capabilities
"""
_SAPPHIRERAPIDS = f"""{_ICELAKE}
tsc_known_freq cat_l2 cdp_l2 avx_vnni avx512_bf16 waitpkg bus_lock_detect cldemote movdiri movdir64b enqcmd
serialize tsxldtrk arch_lbr ibt vnmi amx_bf16 avx512_fp16 amx_tile amx_int8
"""
_EMERALDRAPIDS = f"{_SAPPHIRERAPIDS} -invpcid_single user_shstk"
# /proc/cpuinfo has no flag for AMX-FP16 (cpufeatures.h hides it); only the model number shows it.
_GRANITERAPIDS = _EMERALDRAPIDS
_GENOA = f"""{_COMMON}
mmxext fxsr_opt amd_lbr_v2 extd_apicid rapl fma pcid x2apic movbe f16c rdrand cmp_legacy svm extapic cr8_legacy
abm sse4a misalignsse 3dnowprefetch osvw ibs skinit wdt tce topoext perfctr_core perfctr_nb bpext perfctr_llc
mwaitx cpb cat_l3 cdp_l3 invpcid_single hw_pstate mba perfmon_v2 vmmcall fsgsbase bmi1 avx2 smep bmi2 erms
invpcid cqm rdt_a avx512f avx512dq rdseed adx smap avx512ifma clflushopt clwb avx512cd sha_ni avx512bw
avx512vl xsaveopt xsavec xgetbv1 xsaves cqm_llc cqm_occup_llc cqm_mbm_total cqm_mbm_local avx512_bf16 clzero
irperf xsaveerptr rdpru wbnoinvd amd_ppin cppc arat npt lbrv svm_lock nrip_save tsc_scale vmcb_clean
flushbyasid decodeassists pausefilter pfthreshold avic v_vmsave_vmload vgif x2avic v_spec_ctrl vnmi avx512vbmi
umip pku ospke avx512_vbmi2 gfni vaes vpclmulqdq avx512_vnni avx512_bitalg avx512_vpopcntdq la57 rdpid
overflow_recov succor smca fsrm flush_l1d
"""
_GRAVITON3 = """
fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma lrcpc dcpop sha3 sm3
sm4 asimddp sha512 sve asimdfhm dit uscat ilrcpc flagm ssbs paca pacg dcpodp svei8mm svebf16 i8mm bf16 dgh rng
"""


def _flags(text: str) -> str:
    """Return the flags, each once, without those that a `-flag` takes away."""
    removed = {flag.removeprefix("-") for flag in text.split() if flag.startswith("-")}
    return " ".join(flag for flag in dict.fromkeys(text.split()) if flag.removeprefix("-") not in removed)


X86: Final = "x86_64"
ARM: Final = "aarch64"


@dataclass(frozen=True, slots=True)
class CpuProfile:
    """A kind of machine that a lab's host can imitate."""

    name: str
    model_name: str
    family: int
    model: int
    stepping: int
    sockets: int
    cores: int
    """Cores per socket."""
    mhz: int
    l2: int
    """KB per core."""
    l3: int
    """KB, shared by `l3_cores` cores, or by a socket."""
    known_for: str
    """Features, present or missing, that matter for training."""
    flags: str
    numa_per_socket: int = 1
    threads: int = 2
    """Threads per core."""
    vendor: str = "GenuineIntel"
    arch: str = X86
    l1d: int = 32
    """KB per core."""
    l1i: int = 32
    l3_cores: int = 0
    """Cores that share an L3 cache; 0 for all cores of a socket."""
    far: int = 21
    """NUMA distance to the other socket."""
    address_sizes: str = "46 bits physical, 48 bits virtual"
    cpuid_level: int = 22
    microcode: str = "0x1"

    @property
    def virtual(self) -> bool:
        """True if the profile is a virtual machine's, without clock settings."""
        return "hypervisor" in self.flags.split()

    @property
    def nodes(self) -> int:
        """Return the number of NUMA nodes."""
        return self.sockets * self.numa_per_socket

    @property
    def cpus(self) -> int:
        """Return the number of CPUs, counting each thread of a core."""
        return self.sockets * self.cores * self.threads


_WIDE = "52 bits physical, 57 bits virtual"
CPU_PROFILES: Final = (
    CpuProfile(
        "sandybridge", "Intel(R) Xeon(R) CPU E5-2680 0 @ 2.70GHz", 6, 45, 7, 2, 8, 2700, 256, 20480,
        "AVX, no AVX2: no stack for it", _flags(_SANDYBRIDGE), cpuid_level=13, microcode="0x71a",
    ),
    CpuProfile(
        "haswell", "Intel(R) Xeon(R) CPU E5-2690 v3 @ 2.60GHz", 6, 63, 2, 2, 12, 2600, 256, 30720,
        "AVX2, no AVX-512", _flags(_HASWELL), cpuid_level=15, microcode="0x49",
    ),
    CpuProfile(
        "skylake-sp", "Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz", 6, 85, 4, 2, 20, 2400, 1024, 28160,
        "AVX-512, no VNNI", _flags(_SKYLAKE), microcode="0x2007006",
    ),
    CpuProfile(
        "cascadelake", "Intel(R) Xeon(R) Gold 6248 CPU @ 2.50GHz", 6, 85, 7, 2, 20, 2500, 1024, 28160,
        "AVX-512 with VNNI", _flags(_CASCADELAKE), microcode="0x5003605",
    ),
    CpuProfile(
        "cooperlake", "Intel(R) Xeon(R) Platinum 8376H CPU @ 2.60GHz", 6, 85, 11, 4, 28, 2600, 1024, 39424,
        "AVX-512 with BF16, four sockets", _flags(_COOPERLAKE), microcode="0x7002503",
    ),
    CpuProfile(
        "icelake-sp", "Intel(R) Xeon(R) Platinum 8358 CPU @ 2.60GHz", 6, 106, 6, 2, 32, 2600, 1280, 49152,
        "AVX-512 with VNNI, no BF16", _flags(_ICELAKE), l1d=48, address_sizes="46 bits physical, 57 bits virtual",
        cpuid_level=27, microcode="0xd0003a5",
    ),
    CpuProfile(
        "cloud-smt", "Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz", 6, 106, 6, 1, 4, 2900, 1280, 55296,
        "a cloud VM of 8 vCPU: AVX-512 with VNNI, no BF16", _flags(_ICELAKE_VM), l1d=48, cpuid_level=27,
        microcode="0xd0003d1",
    ),
    CpuProfile(
        "sapphirerapids", "Intel(R) Xeon(R) Platinum 8480+", 6, 143, 8, 2, 56, 2000, 2048, 107520,
        "AMX (BF16, INT8), SNC4", _flags(_SAPPHIRERAPIDS), numa_per_socket=4, l1d=48, address_sizes=_WIDE,
        cpuid_level=32, microcode="0x2b000590",
    ),
    CpuProfile(
        "emerald-rapids", "INTEL(R) XEON(R) PLATINUM 8592+", 6, 207, 2, 2, 64, 1900, 2048, 327680,
        "AMX (BF16, INT8)", _flags(_EMERALDRAPIDS), l1d=48, address_sizes=_WIDE, cpuid_level=32, microcode="0x21000240",
    ),
    CpuProfile(
        "graniterapids", "Intel(R) Xeon(R) 6972P", 6, 173, 1, 2, 96, 2400, 2048, 491520,
        "AMX with FP16, SNC3", _flags(_GRANITERAPIDS), numa_per_socket=3, l1d=48, l1i=64, address_sizes=_WIDE,
        cpuid_level=36, microcode="0x1000380",
    ),
    CpuProfile(
        "epyc-genoa", "AMD EPYC 9554 64-Core Processor", 25, 17, 1, 2, 64, 3100, 1024, 32768,
        "AMD: AVX-512 with BF16, no AMX", _flags(_GENOA), vendor="AuthenticAMD", l3_cores=8, far=32,
        address_sizes="52 bits physical, 57 bits virtual", cpuid_level=16, microcode="0xa101148",
    ),
    CpuProfile(
        "graviton3", "Neoverse-V1", 8, 0xD40, 1, 1, 64, 2600, 1024, 32768,
        "aarch64: no wheel of the stack fits", _flags(_GRAVITON3), threads=1, vendor="ARM", arch=ARM, l1d=64, l1i=64,
    ),
)  # fmt: skip
_BY_NAME: Final = {cpu_profile.name: cpu_profile for cpu_profile in CPU_PROFILES}


def find_cpu_profile(name: str) -> CpuProfile:
    """Return the profile of this name. Raises a UserError that lists the names if there is none."""
    return find_named("CPU", name, _BY_NAME)


@dataclass(frozen=True, slots=True)
class CpuSpec:
    """One CPU of a profile, as Linux numbers it."""

    number: int
    socket: int
    core: int
    thread: int
    node: int


def cpus(cpu_profile: CpuProfile) -> tuple[CpuSpec, ...]:
    """Return the CPUs, numbered as on Linux: each core's first thread, socket by socket, then the second threads."""
    result: list[CpuSpec] = []
    per_node = cpu_profile.cores // cpu_profile.numa_per_socket
    for thread in range(cpu_profile.threads):
        for socket in range(cpu_profile.sockets):
            for core in range(cpu_profile.cores):
                node = socket * cpu_profile.numa_per_socket + core // per_node
                result.append(CpuSpec(len(result), socket, core, thread, node))
    return tuple(result)


Key = TypeVar("Key")


def cpuinfo(cpu_profile: CpuProfile) -> str:
    """Return the text of /proc/cpuinfo."""
    render = _arm if cpu_profile.arch == ARM else _x86
    return "".join(f"{render(cpu_profile, cpu)}\n" for cpu in cpus(cpu_profile))


def _x86(cpu_profile: CpuProfile, cpu: CpuSpec) -> str:
    """Return the lines of one CPU in /proc/cpuinfo of an x86 machine."""
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
    """Return the lines of one CPU in /proc/cpuinfo of an ARM machine."""
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


# Files that many CPUs share are written once, into a directory that `cpu*` does not match, and linked.
_SHARED: Final = ".shared"
_SAME_SOCKET: Final = 12


@dataclass(frozen=True, slots=True)
class Tree:
    """Files and links to make, by their paths below a directory."""

    files: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)


def sysfs(cpu_profile: CpuProfile, *, memory_kb: int) -> Tree:
    """Return the files and links below /sys/devices/system. `memory_kb`: memory of the host, divided equally among its
    NUMA nodes."""
    tree = Tree()
    all_cpus = cpus(cpu_profile)
    _system_files(tree, cpu_profile)
    _cpus(tree, cpu_profile, all_cpus)
    _caches(tree, cpu_profile, all_cpus)
    _nodes(tree, cpu_profile, all_cpus, memory_kb)
    return tree


def cpu_mask(numbers: Collection[int], width: int) -> str:
    """Format CPU numbers as a kernel mask: groups of 32 bits in hex, highest first, all but the first padded."""
    bits = sum(1 << number for number in numbers)
    digits = -(-width // 4)
    text = f"{bits:0{digits}x}"
    groups = [text[max(0, end - 8) : end] for end in range(len(text), 0, -8)]
    return ",".join(reversed(groups))


def _system_files(tree: Tree, cpu_profile: CpuProfile) -> None:
    """Add the files about all CPUs: which are online, hyper-threading and clocks."""
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
    """Add the files of each CPU: its place in the machine, and links to its cache, clock and NUMA node."""
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
    """Return group → its CPUs, as a list and as a mask, each with a line break."""
    by_group: defaultdict[Key, list[int]] = defaultdict(list)
    for cpu in all_cpus:
        by_group[key(cpu)].append(cpu.number)
    return {
        group: (f"{number_ranges(sorted(numbers))}\n", f"{cpu_mask(numbers, cpu_profile.cpus)}\n")
        for group, numbers in by_group.items()
    }


def _caches(tree: Tree, cpu_profile: CpuProfile, all_cpus: Collection[CpuSpec]) -> None:
    """Add the caches, one directory for all CPUs that share one."""
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
    """Add the files of one cache. `size`: KB. `shared`: list and mask of the CPUs that share it."""
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
    """Add the files of the NUMA nodes."""
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
    """Return the distance between two NUMA nodes, as the firmware would tell it."""
    if other == node:
        return 10
    same_socket = other // cpu_profile.numa_per_socket == node // cpu_profile.numa_per_socket
    return _SAME_SOCKET if same_socket else cpu_profile.far


def wrappers(cpu_profile: CpuProfile) -> dict[str, str]:
    """Return name → text of scripts that make programs print the profile's architecture; empty on x86."""
    if cpu_profile.arch != ARM:
        return {}
    text = """#!/bin/sh
# A CPU profile of the lab: prints an architecture other than the real kernel's.
/usr/bin/{program} "$@" | sed 's/x86_64/{arch}/g'
"""
    return {name: text.format(program=name, arch=cpu_profile.arch) for name in ("uname", "arch", "lscpu")}


def write_profiles(lab: Lab) -> None:
    """Write each CPU profile once, for all hosts that use it."""
    for name in sorted({host.cpu_profile for host in lab.nodes if host.cpu_profile}):
        _write_profile(profile_directory(lab, name), name)


def profile_directory(lab: Lab, name: str) -> Path:
    """Return where a lab keeps the files of a CPU profile."""
    return lab.dir / f"costume-{name}"


def _write_profile(directory: Path, name: str) -> None:
    """Write the files of a profile into a new directory."""
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
