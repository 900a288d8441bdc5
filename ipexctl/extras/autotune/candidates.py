"""The settings that are worth a trial on these hosts. Pure.

In come the hosts' facts, the environment, and `plan_of`, which plans the run with some settings; out come the groups
and the candidates of each, as a `Space`. The rules: a candidate is tried only if its plan differs from those of the
others in what ranks get, and if it can be planned at all, so that the rules of the planner are not written a second
time. Number of ranks, precision and arguments of the script are never changed. Each candidate can be typed: options
of `ipexctl run` and variables for `-x`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from ipexctl.extras.autotune.model import Settings, Space, merged, settings_of
from ipexctl.facts.internal import addresses_of
from ipexctl.facts.software import minor_of
from ipexctl.hosts.internal import common_networks
from ipexctl.launch.plan import AllReduce, LaunchPlan

if TYPE_CHECKING:
    from ipexctl.facts.facts import Facts
    from ipexctl.hosts.host import Host
    from ipexctl.launch.request import RankEnv

PlanOf = Callable[[Settings], LaunchPlan | None]
"""The plan of the run with these settings; None if there is none."""
VARIABLE: Final = "x."
"""The beginning of the name of a setting that is a variable of the ranks."""
_PRELOAD: Final = f"{VARIABLE}LD_PRELOAD"
_FEWER_THREADS: Final = (0, 1, 2)
_BLOCK_TIMES: Final = ("0", "1", "200")
"""Milliseconds that a thread of Intel's OpenMP spins before it sleeps: never, the plan's, and Intel's own."""
_WORKERS: Final = ("0", "1", "2")
_TORCH_WITH_HUGE_PAGES: Final = (2, 3)
"""The oldest torch that asks for huge pages itself, with THP_MEM_ALLOC_ENABLE."""
_JEMALLOC: Final = "oversize_threshold:1,background_thread:true,metadata_thp:auto"


@dataclass(frozen=True)
class HostsOfSearch:
    """What candidates are made from."""

    hosts: tuple[Host, ...]
    facts: Mapping[str, Facts] = field(hash=False)
    env: RankEnv = field(hash=False)
    plan_of: PlanOf = field(hash=False)


def space_of(hosts: HostsOfSearch, only: tuple[str, ...] = ()) -> Space:
    """The groups, or only those named, in the order in which they are tried."""
    groups = tuple(name for name in GROUPS if not only or name in only)

    def candidates(group: str, base: Settings) -> tuple[Settings, ...]:
        plan = hosts.plan_of(base)
        if plan is None:
            return ()
        seen, kept = [_effect(plan)], list[Settings]()
        for change in GROUPS[group](hosts, plan):
            other = hosts.plan_of(merged(base, change))
            if other is not None and other.world_size == plan.world_size and (effect := _effect(other)) not in seen:
                seen.append(effect)
                kept.append(change)
        return tuple(kept)

    return Space(groups, candidates)


def _effect(plan: LaunchPlan) -> LaunchPlan:
    """The plan without its explanations."""
    settings = tuple(sorted((replace(setting, reason="") for setting in plan.settings), key=str))
    how = AllReduce(plan.allreduce.mode, "asked")
    bare = replace(plan, settings=settings, allreduce=how, backend_reason="", notes=(), choices=(), other_runs=())
    return replace(bare, launcher_env=tuple(replace(setting, reason="") for setting in plan.launcher_env))


def _interfaces(hosts: HostsOfSearch, plan: LaunchPlan) -> Iterator[Settings]:
    if len(plan.hosts) < 2 or any(host.internal for host in hosts.hosts):
        return
    addresses = {host.name: addresses_of(hosts.facts[host.name], host.address) for host in hosts.hosts}
    seen = set[tuple[frozenset[str], ...]]()
    for network in common_networks(addresses):
        cards = tuple(
            frozenset(nic.interface for nic in host.nics if nic.network == network) for host in addresses.values()
        )
        if cards not in seen:  # as of IPv6 beside IPv4: the same cards are as fast
            seen.add(cards)
            yield settings_of({"iface": str(network)})


def _bindings(_: HostsOfSearch, plan: LaunchPlan) -> Iterator[Settings]:
    del plan
    for mode in ("cores", "numa", "socket", "none"):
        yield settings_of({"bind": mode})


def _threads(hosts: HostsOfSearch, plan: LaunchPlan) -> Iterator[Settings]:
    """The cores of a rank, one less, two less. Where hosts differ, the fewest: --omp is for all ranks."""
    del hosts
    cores = min((host.cores // len(host.ranks) for host in plan.hosts if host.ranks), default=1)
    for fewer in _FEWER_THREADS:
        if cores - fewer >= 1:
            yield settings_of({"omp": str(cores - fewer)})


def _openmp(hosts: HostsOfSearch, plan: LaunchPlan) -> Iterator[Settings]:
    preload = _preloaded(plan)
    own = [path for path in preload or () if "libiomp5" in path]
    if preload is None:
        return
    if own:
        for milliseconds in _BLOCK_TIMES:
            yield settings_of({f"{VARIABLE}KMP_BLOCKTIME": milliseconds})
        yield _preload(path for path in preload if path not in own)
        return
    for path in _common(hosts, "libiomp5"):
        yield _preload((path, *preload))


def _communication(hosts: HostsOfSearch, plan: LaunchPlan) -> Iterator[Settings]:
    if plan.world_size == 1 or plan.backend == "none":
        return
    for mode in ("shared",) if plan.wire.mode != "fp32" else ("backend", "shared"):
        yield settings_of({"backend": "gloo", "allreduce": mode})
    if hosts.env.ccl:
        for workers in _WORKERS:
            yield settings_of({"backend": "ccl", "ccl_workers": workers})
    if hosts.env.mpi_backend:
        yield settings_of({"backend": "mpi"})


def _allocators(hosts: HostsOfSearch, plan: LaunchPlan) -> Iterator[Settings]:
    preload = _preloaded(plan)
    if preload is None:
        return
    others = [path for path in preload if "malloc" not in path]
    yield _preload(others)
    for name in ("libtcmalloc", "libjemalloc"):
        paths = _common(hosts, name)
        for path in [path for path in paths if "minimal" not in path][:1] or paths[:1]:
            more = {f"{VARIABLE}MALLOC_CONF": _JEMALLOC} if name == "libjemalloc" else {}
            yield merged(_preload((*others, path)), settings_of(more))


def _huge_pages(hosts: HostsOfSearch, plan: LaunchPlan) -> Iterator[Settings]:
    """Where the kernel gives them on request: torch asks for its own buffers, glibc for all large blocks."""
    del plan
    if any(facts.memory.thp != "madvise" for facts in hosts.facts.values()):
        return
    torch = minor_of(hosts.env.packages.get("torch"))
    if torch is not None and torch >= _TORCH_WITH_HUGE_PAGES:
        yield settings_of({f"{VARIABLE}THP_MEM_ALLOC_ENABLE": "1"})


GROUPS: Final[Mapping[str, Callable[[HostsOfSearch, LaunchPlan], Iterator[Settings]]]] = {
    "iface": _interfaces,
    "bind": _bindings,
    "omp": _threads,
    "openmp": _openmp,
    "backend": _communication,
    "allocator": _allocators,
    "hugepages": _huge_pages,
}
"""In the order in which they are tried; the names are those of --only."""


def _preloaded(plan: LaunchPlan) -> list[str] | None:
    """The libraries that every rank preloads; None if hosts differ."""
    found = [setting for setting in plan.settings if setting.name == "LD_PRELOAD"]
    if any(setting.host is not None or setting.secret for setting in found):
        return None
    return [path for setting in found for path in (setting.value or "").split(":") if path]


def _preload(paths: Iterator[str] | tuple[str, ...] | list[str]) -> Settings:
    return settings_of({_PRELOAD: ":".join(paths)})


def _common(hosts: HostsOfSearch, library: str) -> list[str]:
    """The paths of a library that every host has."""
    of_hosts = [facts.software.libraries.get(library, ()) for facts in hosts.facts.values()]
    return [path for path in of_hosts[0] if all(path in paths for paths in of_hosts)] if of_hosts else []
