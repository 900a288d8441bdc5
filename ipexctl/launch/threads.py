"""Variables of OpenMP, the allocator and the instruction sets: what a rank computes with. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ipexctl.facts.cpu import TIERS
from ipexctl.hosts.nodeset import fold
from ipexctl.launch.context import each_host
from ipexctl.launch.plan import Setting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ipexctl.launch.context import LaunchContext, NodeLayout, Said

_IPEX: Final = "intel-extension-for-pytorch"


def settings(context: LaunchContext) -> Iterator[Setting]:
    yield from _threads(context)
    yield from each_host(context.nodes, "LD_PRELOAD", lambda node: _preload(context, node))
    yield from _runtime(context)
    yield from _instructions(context)


def openmp_library(context: LaunchContext, node: NodeLayout) -> str | None:
    """Intel's OpenMP on that host: the environment's own first, it is the one the packages were made with."""
    env = context.request.env
    if "intel-openmp" in env.packages and env.prefix:
        return f"{env.prefix}/lib/libiomp5.so"
    return next(iter(node.facts.software.libraries.get("libiomp5", ())), None)


def has_iomp(context: LaunchContext, node: NodeLayout) -> bool:
    """Whether libiomp5 comes first there, as it will be, the user's word included."""
    if "LD_PRELOAD" in context.wanted:
        return "libiomp5" in context.wanted["LD_PRELOAD"]
    return openmp_library(context, node) is not None


def _threads(context: LaunchContext) -> Iterator[Setting]:
    asked = context.request.options.omp

    def say(node: NodeLayout) -> Said:
        if asked is not None:
            return str(asked), context.request.options.said.get("omp", "you said so: --omp")
        own = f"physical cores this account may use: {node.binding.formula}"
        if node.facts.cpu.quota is not None:
            own += f"; the cgroup grants the time of {node.facts.cpu.quota:g} CPUs"
        return str(node.binding.threads), f"{own}; a second thread on a core only slows down matrix work"

    yield from each_host(context.nodes, "OMP_NUM_THREADS", say)


def _preload(context: LaunchContext, node: NodeLayout) -> Said | None:
    parts = []
    why = []
    if library := openmp_library(context, node):
        parts.append(library)
        why.append("Intel's OpenMP must come before the libgomp that torch brings, so that only one of them runs")
    if allocators := node.facts.software.libraries.get("libtcmalloc", ()):
        full = [path for path in allocators if "minimal" not in path]
        parts.append((full or list(allocators))[0])
        why.append("tcmalloc keeps freed memory at hand, where malloc gives it back and faults it in at every step")
    if not parts:
        return None
    return ":".join(parts), "; ".join(why)


def _runtime(context: LaunchContext) -> Iterator[Setting]:
    def affinity(node: NodeLayout) -> Said | None:
        if has_iomp(context, node) and node.binding.alone:
            return "granularity=fine,compact,1,0", "one thread stays on each of the rank's own cores"
        if has_iomp(context, node):
            return (
                None,
                "the ranks here have no cores to themselves: their threads, bound, would all pick the same ones",
            )
        return None, "it is for Intel's OpenMP, which this host doesn't have"

    def blocktime(node: NodeLayout) -> Said | None:
        if has_iomp(context, node):
            return "1", "a thread without work sleeps after 1 ms, not 200: the core is free for oneCCL and data loading"
        return None

    def proc_bind(node: NodeLayout) -> Said | None:
        if has_iomp(context, node):
            return None, "Intel's OpenMP is told by KMP_AFFINITY, and must not be told twice"
        return None, (
            "the rank is bound to its cores already; libgomp would bind the main thread to one of them, "
            "and data loaders inherit that"
        )

    def schedule(node: NodeLayout) -> Said | None:
        return (
            None if has_iomp(context, node) else ("STATIC", "equal pieces for equal threads: libgomp's own is dynamic")
        )

    yield from each_host(context.nodes, "KMP_AFFINITY", affinity)
    yield from each_host(context.nodes, "KMP_BLOCKTIME", blocktime)
    yield from each_host(context.nodes, "OMP_PROC_BIND", proc_bind)
    yield from each_host(context.nodes, "OMP_SCHEDULE", schedule)


def _instructions(context: LaunchContext) -> Iterator[Setting]:
    """Ranks on unlike CPUs compute with what all have, so that their results differ less."""
    tiers = {node.name: node.facts.cpu.tier for node in context.nodes}
    known = [TIERS.index(tier) for tier in tiers.values() if tier]
    if len(known) < len(tiers) or len(set(known)) == 1 or min(known) == 0:
        return
    lowest = TIERS[min(known)]
    weakest = fold(name for name, tier in tiers.items() if tier == lowest)
    vnni = all(node.facts.cpu.isa and node.facts.cpu.isa.avx512_vnni for node in context.nodes)
    aten, onednn = {
        "avx2": ("avx2", "AVX2"),
        "avx512": ("avx512", "AVX512_CORE_VNNI" if vnni else "AVX512_CORE"),
        "avx512_bf16": ("avx512_bf16", "AVX512_CORE_BF16"),
    }[lowest]
    reason = f"the CPUs are mixed: all compute with what {weakest} has, else ranks round differently"
    if lowest == "avx2" or _IPEX in context.request.env.packages:
        yield Setting("ATEN_CPU_CAPABILITY", aten, reason)
    yield Setting("ONEDNN_MAX_CPU_ISA", onednn, f"{reason} (oneDNN's own name for it)")
