"""Variables of OpenMP, the allocator and the instruction sets: what a rank computes with. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ipexctl.facts.cpu import TIERS
from ipexctl.hosts.nodeset import fold
from ipexctl.launch.plan import Setting
from ipexctl.launch.scene import each_host

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ipexctl.launch.scene import Member, Said, Scene

_IPEX: Final = "intel-extension-for-pytorch"


def settings(scene: Scene) -> Iterator[Setting]:
    yield from _threads(scene)
    yield from each_host(scene.members, "LD_PRELOAD", lambda member: _preload(scene, member))
    yield from _runtime(scene)
    yield from _instructions(scene)


def openmp_library(scene: Scene, member: Member) -> str | None:
    """Intel's OpenMP on that host: the environment's own first, it is the one the packages were made with."""
    env = scene.request.env
    if "intel-openmp" in env.packages and env.prefix:
        return f"{env.prefix}/lib/libiomp5.so"
    return next(iter(member.facts.software.libraries.get("libiomp5", ())), None)


def has_iomp(scene: Scene, member: Member) -> bool:
    """Whether libiomp5 comes first there, as it will be, the user's word included."""
    if "LD_PRELOAD" in scene.wanted:
        return "libiomp5" in scene.wanted["LD_PRELOAD"]
    return openmp_library(scene, member) is not None


def _threads(scene: Scene) -> Iterator[Setting]:
    asked = scene.request.options.omp

    def say(member: Member) -> Said:
        if asked is not None:
            return str(asked), scene.request.options.said.get("omp", "you said so: --omp")
        own = f"physical cores this account may use: {member.binding.formula}"
        if member.facts.cpu.quota is not None:
            own += f"; the cgroup grants the time of {member.facts.cpu.quota:g} CPUs"
        return str(member.binding.threads), f"{own}; a second thread on a core only slows down matrix work"

    yield from each_host(scene.members, "OMP_NUM_THREADS", say)


def _preload(scene: Scene, member: Member) -> Said | None:
    parts = []
    why = []
    if library := openmp_library(scene, member):
        parts.append(library)
        why.append("Intel's OpenMP must come before the libgomp that torch brings, so that only one of them runs")
    if allocators := member.facts.software.libraries.get("libtcmalloc", ()):
        full = [path for path in allocators if "minimal" not in path]
        parts.append((full or list(allocators))[0])
        why.append("tcmalloc keeps freed memory at hand, where malloc gives it back and faults it in at every step")
    if not parts:
        return None
    return ":".join(parts), "; ".join(why)


def _runtime(scene: Scene) -> Iterator[Setting]:
    def affinity(member: Member) -> Said | None:
        if has_iomp(scene, member) and member.binding.alone:
            return "granularity=fine,compact,1,0", "one thread stays on each of the rank's own cores"
        if has_iomp(scene, member):
            return (
                None,
                "the ranks here have no cores to themselves: their threads, bound, would all pick the same ones",
            )
        return None, "it is for Intel's OpenMP, which this host doesn't have"

    def blocktime(member: Member) -> Said | None:
        if has_iomp(scene, member):
            return "1", "a thread without work sleeps after 1 ms, not 200: the core is free for oneCCL and data loading"
        return None

    def proc_bind(member: Member) -> Said | None:
        if has_iomp(scene, member):
            return None, "Intel's OpenMP is told by KMP_AFFINITY, and must not be told twice"
        return None, (
            "the rank is bound to its cores already; libgomp would bind the main thread to one of them, "
            "and data loaders inherit that"
        )

    def schedule(member: Member) -> Said | None:
        return (
            None if has_iomp(scene, member) else ("STATIC", "equal pieces for equal threads: libgomp's own is dynamic")
        )

    yield from each_host(scene.members, "KMP_AFFINITY", affinity)
    yield from each_host(scene.members, "KMP_BLOCKTIME", blocktime)
    yield from each_host(scene.members, "OMP_PROC_BIND", proc_bind)
    yield from each_host(scene.members, "OMP_SCHEDULE", schedule)


def _instructions(scene: Scene) -> Iterator[Setting]:
    """Ranks on unlike CPUs compute with what all have, so that their results differ less."""
    tiers = {member.name: member.facts.cpu.tier for member in scene.members}
    known = [TIERS.index(tier) for tier in tiers.values() if tier]
    if len(known) < len(tiers) or len(set(known)) == 1 or min(known) == 0:
        return
    lowest = TIERS[min(known)]
    weakest = fold(name for name, tier in tiers.items() if tier == lowest)
    vnni = all(member.facts.cpu.isa and member.facts.cpu.isa.avx512_vnni for member in scene.members)
    aten, onednn = {
        "avx2": ("avx2", "AVX2"),
        "avx512": ("avx512", "AVX512_CORE_VNNI" if vnni else "AVX512_CORE"),
        "avx512_bf16": ("avx512_bf16", "AVX512_CORE_BF16"),
    }[lowest]
    reason = f"the CPUs are mixed: all compute with what {weakest} has, else ranks round differently"
    if lowest == "avx2" or _IPEX in scene.request.env.packages:
        yield Setting("ATEN_CPU_CAPABILITY", aten, reason)
    yield Setting("ONEDNN_MAX_CPU_ISA", onednn, f"{reason} (oneDNN's own name for it)")
