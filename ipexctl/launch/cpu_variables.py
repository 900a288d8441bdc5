"""Choose the variables for OpenMP, the allocator and the instruction sets, each with its reason. Nothing here reads a
file or contacts a host.

A process must have only one OpenMP, so Intel's is preloaded before torch's libgomp. If the CPUs differ, all ranks use
the instructions of the weakest, because they would round differently.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ipexctl.facts.cpu import TIERS
from ipexctl.facts.software import minor_of
from ipexctl.hosts.nodeset import fold
from ipexctl.launch.overrides import TUNABLES
from ipexctl.launch.plan_draft import ChosenValue, NodeLayout, PlanDraft
from ipexctl.launch.rank_rules import IPEX
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.plan import COMPILER, Setting


def settings(draft: PlanDraft) -> Iterator[Setting]:
    """Yield the variables of ranks for threads, memory and instruction sets."""
    yield from _threads(draft)
    yield from draft.per_node("LD_PRELOAD", lambda node: _preload(draft, node))
    yield from _malloc(draft)
    yield from _runtime(draft)
    yield from _instructions(draft)
    yield from draft.per_node("CXX", lambda node: _compiler(draft, node))


def openmp_library(draft: PlanDraft, node: NodeLayout) -> str | None:
    """Return the path of Intel's OpenMP: the environment's, else the system's.

    None if neither has one, or if a pasted line asks for torch's own.
    """
    env = draft.context.env
    if draft.context.asked.openmp == "default":
        return None
    if "intel-openmp" in env.packages and env.prefix:
        return f"{env.prefix}/lib/libiomp5.so"
    return next(iter(node.facts.software.libraries.get("libiomp5", ())), None)


def _compiler(draft: PlanDraft, node: NodeLayout) -> ChosenValue | None:
    """Return the environment's compiler for a node without g++; None if the node needs or can use none.

    What it compiles needs Intel's OpenMP, which is preloaded.
    """
    env = draft.context.env
    has_compiler = {"ziglang", "intel-openmp"} <= set(env.packages) and env.prefix
    if not has_compiler or "g++" in node.facts.environment.tools or not has_intel_openmp(draft, node):
        return None
    return f"{env.prefix}/{COMPILER}", "this host has no g++: torch.compile uses the one of install --with-compiler"


def has_intel_openmp(draft: PlanDraft, node: NodeLayout) -> bool:
    """True if ranks on the node load Intel's OpenMP."""
    if "LD_PRELOAD" in draft.wanted:
        return "libiomp5" in draft.wanted["LD_PRELOAD"]
    return openmp_library(draft, node) is not None


def by_turns(draft: PlanDraft, node: NodeLayout) -> bool:
    """True if the threads of each rank on the node take turns (SCHED_BATCH).

    On a single core, each message of gloo wakes up a thread that would take the core from the one that computes. Ranks
    with more cores were not measured.
    """
    binding = node.binding
    has_one_core = binding.alone and all(len(slot.cores) == 1 for slot in binding.slots) and draft.omp in (None, 1)
    return has_one_core and draft.plan.backend == "gloo" and draft.world_size > 1


def _threads(draft: PlanDraft) -> Iterator[Setting]:
    """Yield OMP_NUM_THREADS."""
    omp = draft.context.asked.omp

    def choose(node: NodeLayout) -> ChosenValue:
        """Return the number of threads of a rank on the node, and how it was computed."""
        if omp is not None:
            return str(omp), draft.context.asked.sources.get("omp", "set by --omp")
        reason = f"physical cores this account may use: {node.binding.formula}"
        if node.facts.cpu.quota is not None:
            reason += f"; the cgroup allows the time of {node.facts.cpu.quota:g} CPUs"
        return str(node.binding.threads), f"{reason}; a second thread on a core only slows down matrix work"

    yield from draft.per_node("OMP_NUM_THREADS", choose)


def _preload(draft: PlanDraft, node: NodeLayout) -> ChosenValue | None:
    """Return LD_PRELOAD: Intel's OpenMP, then the allocator; None without either."""
    parts = []
    reasons = []
    if library := openmp_library(draft, node):
        parts.append(library)
        reasons.append("Intel's OpenMP must come before the libgomp that torch brings, or both would run")
    if allocators := _allocators(draft, node):
        full = [path for path in allocators if "minimal" not in path]
        parts.append((full or list(allocators))[0])
        name = "jemalloc" if "jemalloc" in parts[-1] else "tcmalloc"
        reasons.append(
            f"{name} keeps freed memory; malloc returns it to the kernel and faults it in again at every step"
        )
    if not parts:
        return None
    return ":".join(parts), "; ".join(reasons)


def _allocators(draft: PlanDraft, node: NodeLayout) -> tuple[str, ...]:
    """Return the paths of the allocator to preload: tcmalloc, unless a pasted line names another one.

    Empty if there is none.
    """
    choice = draft.context.asked.allocator
    name = "libjemalloc" if choice == "jemalloc" else "libtcmalloc"
    return node.facts.software.libraries.get(name, ()) if choice != "default" else ()


def missing_libraries(draft: PlanDraft) -> Iterator[str]:
    """Warn of hosts without the allocator, or without Intel's OpenMP, that a pasted line asks for."""
    asked = draft.context.asked
    if asked.allocator in ("tcmalloc", "jemalloc"):
        package = "libgoogle-perftools4" if asked.allocator == "tcmalloc" else "libjemalloc2"
        without = [node.name for node in draft.nodes if not _allocators(draft, node)]
        if without:
            yield f"no {asked.allocator} on {fold(without)}, so malloc is used; to install it: apt install {package}"
    without = [node.name for node in draft.nodes if openmp_library(draft, node) is None]
    if asked.openmp == "intel" and without:
        yield (
            Fix(
                f"no Intel OpenMP on {fold(without)}, so torch's own is used there; to install it: "
                "`ipexctl install --with intel-openmp`"
            )
        )


def _malloc(draft: PlanDraft) -> Iterator[Setting]:
    """Make glibc's malloc keep freed memory on hosts without tcmalloc, in huge pages if the processor gains by them.

    Nothing is set if the user or a login sets a MALLOC_ variable. All versions of glibc read these variables.
    """
    of_logins = (name for node in draft.nodes for name in node.facts.environment.variables)
    if any(name.startswith("MALLOC_") for name in (*draft.wanted, *of_logins)):
        return
    own_tunables = _own_tunables(draft)

    def choose(name: str, value: str, reason: str) -> list[Setting]:
        """Return the settings of a variable; none if the user's tunables set the same."""
        if f"{_TUNABLE_OF[name]}=" in own_tunables:
            return []  # malloc reads the tunable first
        return draft.per_node(name, lambda node: (value, reason) if _has_malloc(draft, node) else None)

    if draft.context.asked.allocator == "jemalloc":
        conf = "oversize_threshold:1,background_thread:true,metadata_thp:auto"
        by_thread = "jemalloc returns memory in a separate thread, not in the one that computes"
        yield from draft.per_node("MALLOC_CONF", lambda n: (conf, by_thread) if _allocators(draft, n) else None)
    once = "large tensors are not mapped again at every step: the kernel would fault in and clear each of their pages"
    keep = "malloc keeps freed memory for the next step, as tcmalloc does"
    yield from choose("MALLOC_MMAP_MAX_", "0", once)
    yield from choose("MALLOC_TRIM_THRESHOLD_", "-1", keep)
    yield from _huge_pages(draft, own_tunables)


def _has_malloc(draft: PlanDraft, node: NodeLayout) -> bool:
    """True if ranks on the node use glibc's malloc."""
    own = draft.wanted.get("LD_PRELOAD")
    return not (_allocators(draft, node) if own is None else "malloc" in own)


_HUGE_PAGES: Final = "glibc.malloc.hugetlb"
_TUNABLE_OF: Final = {
    "MALLOC_MMAP_MAX_": "glibc.malloc.mmap_max",
    "MALLOC_TRIM_THRESHOLD_": "glibc.malloc.trim_threshold",
}
"""Variable → the tunable of glibc that sets the same."""
_OLDEST_GLIBC: Final = (2, 35)
"""The first glibc whose malloc asks for huge pages."""


def _huge_pages(draft: PlanDraft, own_tunables: str) -> Iterator[Setting]:
    """Yield the tunable for huge pages, before those of the user: of two values of one tunable, glibc takes the last.

    `own_tunables`: tunables of the user or of all logins; empty if there are none.
    """
    using_huge_pages = {node.name for node in draft.nodes if _has_malloc(draft, node) and _has_huge_pages(node)}
    if not using_huge_pages or f"{_HUGE_PAGES}=" in own_tunables:
        return
    of_logins = any(TUNABLES in node.facts.environment.variables for node in draft.nodes)
    reason = "malloc asks for huge pages: the kernel faults in 2 MB of a large tensor at once, not 4 KB"

    def choose(node: NodeLayout) -> ChosenValue | None:
        """Return the tunables of the node.

        Without huge pages there, a login's tunables are removed if they are not the same on all hosts.
        """
        if node.name in using_huge_pages:
            return f"{_HUGE_PAGES}=1:{own_tunables}".rstrip(
                ":"
            ), f"{reason}; your tunables follow" if own_tunables else reason
        if own_tunables:
            return own_tunables, "your tunables; malloc asks for no huge pages on this host"
        return (None, "not on every host alike, and ranks must not differ in it") if of_logins else None

    for setting in draft.per_node(TUNABLES, choose):
        yield setting._replace(prepend=not own_tunables and not of_logins)  # a --setup file may set some


def _has_huge_pages(node: NodeLayout) -> bool:
    """Return True if malloc can ask for huge pages on the node, and its processor gains by them. Processors with AMX
    do; an EPYC gained nothing on average, and needed more memory (docs/fast.md)."""
    system = node.facts.system
    glibc = minor_of(system.libc_version) if system.libc == "glibc" else None
    is_able = glibc is not None and glibc >= _OLDEST_GLIBC and node.facts.memory.thp in ("madvise", "always")
    return is_able and node.facts.cpu.tier == "amx"


def _own_tunables(draft: PlanDraft) -> str:
    """Return the tunables of the user, else those that a login sets on every host; empty without either."""
    if TUNABLES in draft.wanted:
        return draft.wanted[TUNABLES]
    of_logins = {node.facts.environment.variables.get(TUNABLES, "") for node in draft.nodes}
    return of_logins.pop() if len(of_logins) == 1 else ""


def _runtime(draft: PlanDraft) -> Iterator[Setting]:
    """Yield the variables that bind the threads of OpenMP and let idle ones sleep.

    Intel's library and GNU's read different ones.
    """
    own_places = [name for name in ("OMP_PROC_BIND", "OMP_PLACES") if name in draft.wanted]

    def affinity(node: NodeLayout) -> ChosenValue | None:
        """Return KMP_AFFINITY for the node, which binds threads to cores if no two ranks share one."""
        if own_places:
            return None, f"Intel's OpenMP would ignore your {own_places[0]}"
        if has_intel_openmp(draft, node) and node.binding.alone:
            return "granularity=fine,compact,1,0", "one thread stays on each of the rank's own cores"
        if has_intel_openmp(draft, node):
            return None, "ranks share cores here: bound threads of all of them would choose the same ones"
        return None, "it is for Intel's OpenMP, which is not on this host"

    def proc_bind(node: NodeLayout) -> ChosenValue | None:
        """Return no OMP_PROC_BIND, with the reason."""
        if has_intel_openmp(draft, node):
            return None, "KMP_AFFINITY sets it for Intel's OpenMP, and both would conflict"
        return None, (
            "the rank is bound to its cores already; libgomp would bind the main thread to one of them, "
            "and data loaders inherit that"
        )

    blocktime = "1", "an idle thread sleeps after 1 ms, not 200: its core is then free for oneCCL and data loading"
    schedule = "STATIC", "threads get parts of the same size; libgomp's default is dynamic"
    yield from draft.per_node("KMP_AFFINITY", affinity)
    yield from draft.per_node("KMP_BLOCKTIME", lambda node: blocktime if has_intel_openmp(draft, node) else None)
    yield from draft.per_node("OMP_PROC_BIND", proc_bind)
    yield from draft.per_node("OMP_SCHEDULE", lambda node: None if has_intel_openmp(draft, node) else schedule)


def _instructions(draft: PlanDraft) -> Iterator[Setting]:
    """Yield the instruction set that all ranks use, if the processors differ.

    Nothing if one of them is not known, or the weakest has no AVX2.
    """
    tiers = {node.name: node.facts.cpu.tier for node in draft.nodes}
    known = [TIERS.index(tier) for tier in tiers.values() if tier]
    if len(known) < len(tiers) or len(set(known)) == 1 or min(known) == 0:
        return
    lowest = TIERS[min(known)]
    weakest = fold(name for name, tier in tiers.items() if tier == lowest)
    vnni = all(node.facts.cpu.isa["avx512_vnni"] for node in draft.nodes)
    aten, onednn = {
        "avx2": ("avx2", "AVX2"),
        "avx512": ("avx512", "AVX512_CORE_VNNI" if vnni else "AVX512_CORE"),
        "avx512_bf16": ("avx512_bf16", "AVX512_CORE_BF16"),
    }[lowest]
    reason = f"the CPUs differ: all ranks use the instructions of {weakest}, else they round differently"
    if lowest == "avx2" or IPEX in draft.context.env.packages:
        yield Setting("ATEN_CPU_CAPABILITY", aten, reason)
    yield Setting("ONEDNN_MAX_CPU_ISA", onednn, f"{reason} (oneDNN's name for it)")
