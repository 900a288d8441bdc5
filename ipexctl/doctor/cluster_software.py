"""Rules over several hosts: different homes, Pythons, libraries and environments. Pure.

A home needs one path on all hosts because MPI starts ranks by one path; an environment needs the same versions
everywhere. Other differences (distribution, libc, Pythons) usually mean nothing for the stack, as the finding says.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from ipexctl.doctor.context import few, groups, odd_ones
from ipexctl.doctor.finding import Finding
from ipexctl.doctor.host_software import NEWER_GLIBC, usable
from ipexctl.facts.packages import python_without_root
from ipexctl.facts.software import minor_of
from ipexctl.option_defaults import DEFAULT_ENV

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ipexctl.doctor.context import ClusterContext, ClusterRule, HostContext
    from ipexctl.facts.software import Env


def homes(cluster: ClusterContext) -> Iterator[Finding]:
    found = groups(cluster.runnable, lambda node: node.facts.home.path if node.facts.home else None)
    if len(found) > 1:
        usual, others, names = odd_ones(found)
        yield Finding(
            "cluster.homes_differ",
            "fail",
            f"ipexctl's home is {few([path[:40] for path in others], 1)}, but {usual[:40]} on the others: MPI starts "
            "ranks by one path on all hosts",
            "--home DIR with one absolute path you may write to on every host, such as /scratch/ME/ipexctl",
            names,
        )


def shared_homes(cluster: ClusterContext) -> Iterator[Finding]:
    found = groups(cluster.runnable, lambda node: node.facts.home.store if node.facts.home else None)
    for names in found.values():
        if len(names) > 1:
            yield Finding(
                "cluster.homes_shared",
                "info",
                f"{'All' if len(names) == len(cluster.runnable) else 'These'} {len(names)} hosts share one home: "
                "an install or a copy on one of them is there for all",
                "nothing to do; if Python starts slowly from there, --home DIR on each host's own disk",
                tuple(names),
            )


def pythons(cluster: ClusterContext) -> Iterator[Finding]:
    minors = {
        node.name: frozenset(python.minor for python in usable(node.facts) if python.minor) for node in cluster.runnable
    }
    minors = {name: found for name, found in minors.items() if found}
    if len(set(minors.values())) < 2:
        return
    every = frozenset.union(*minors.values())
    common = frozenset.intersection(*minors.values())
    if common:
        best = max(common)
        yield Finding(
            "cluster.mixed_python",
            "info",
            f"Not every host has the same Pythons; {_dotted(best)} is the newest on all of them, so install takes that",
            f"nothing to do; --python {_dotted(best)} says so explicitly",
            tuple(minors),
        )
        return
    usual = max(every, key=lambda minor: (sum(minor in found for found in minors.values()), minor))
    without = tuple(name for name, found in minors.items() if usual not in found)
    yield Finding(
        "cluster.mixed_python",
        "warn",
        f"No Python of 3.9 to 3.13 is on all hosts: these hosts lack {_dotted(usual)}, which most have, and one "
        "environment needs one Python",
        f"as root: apt-get install -y python{_dotted(usual)} python{_dotted(usual)}-venv (dnf install -y "
        f"python{_dotted(usual)}); {python_without_root(_dotted(usual))}",
        without,
    )


def _dotted(minor: tuple[int, int]) -> str:
    return f"{minor[0]}.{minor[1]}"


def libc(cluster: ClusterContext) -> Iterator[Finding]:
    found = groups(
        cluster.runnable,
        lambda node: minor_of(node.facts.system.libc_version) if node.facts.system.libc == "glibc" else None,
    )
    if len(found) < 2:
        return
    oldest, newest = min(found), max(found)
    if oldest < NEWER_GLIBC <= newest:
        old = tuple(
            m.name for m in cluster.runnable for version in found if version < NEWER_GLIBC and m.name in found[version]
        )
        yield Finding(
            "cluster.mixed_libc",
            "warn",
            f"glibc {_dotted(oldest)}, but up to {_dotted(newest)} elsewhere: these hosts limit all to IPEX 2.5 or "
            "PyTorch 2.6, as all must run one stack",
            "train without them (--limit '!NAME,!NAME'), or in a container with a newer system on all hosts",
            old,
        )
    else:
        yield Finding(
            "cluster.mixed_libc",
            "info",
            f"glibc {_dotted(oldest)}, but up to {_dotted(newest)} elsewhere: the same stacks run on all; build "
            "your own extensions on the hosts with the older one",
            "nothing to do",
            tuple(found[oldest]),
        )


def distros(cluster: ClusterContext) -> Iterator[Finding]:
    found = groups(cluster.runnable, lambda node: node.facts.system.distro)
    if len(found) > 1:
        usual, others, names = odd_ones(found)
        yield Finding(
            "cluster.mixed_distro",
            "info",
            f"{few([distro[:34] for distro in others], 2)}, but {usual[:34]} on the others: system libraries and "
            "package names differ",
            "nothing to do: the stack brings its own libraries",
            names,
        )


_PARTS: Final = ("torch", "ipex", "oneccl_bindings", "oneccl", "mpi", "python")
_NAMES: Final = {
    "ipex": "IPEX",
    "oneccl_bindings": "oneCCL bindings",
    "oneccl": "oneCCL",
    "mpi": "Intel MPI",
    "python": "Python",
}


def _envs(cluster: ClusterContext) -> dict[str, dict[str, Env]]:
    """Environment name → host → environment."""
    found: dict[str, dict[str, Env]] = {}
    for node in cluster.runnable:
        for env in node.facts.software.envs:
            found.setdefault(env.name, {})[node.name] = env
    return found


def stacks(cluster: ClusterContext) -> Iterator[Finding]:
    envs = _envs(cluster)
    for name, by_host in envs.items():
        having = tuple(node for node in cluster.runnable if node.name in by_host)
        versions = {host: tuple(getattr(env, part) for part in _PARTS) for host, env in by_host.items()}
        found = groups(having, lambda node, of=versions: of[node.name])  # type: ignore[misc]
        if len(found) < 2:
            continue
        usual, others, names = odd_ones(found)
        at = next(place for place, value in enumerate(usual) if value != others[0][place])
        part = _NAMES.get(_PARTS[at], _PARTS[at])
        torch, ipex = minor_of(usual[0]), minor_of(usual[1])
        env = f" --env {shlex.quote(name[:40])}" if name != DEFAULT_ENV else ""
        version = f" --ipex {_dotted(ipex)}" if ipex else f" --torch {_dotted(torch)}" if torch else ""
        yield Finding(
            "cluster.mixed_stacks",
            "fail",
            f"Environment {name[:30]} has {part} {others[0][at] or 'missing'}, but {usual[at] or 'missing'} on the "
            "others: ranks of different versions hang or crash at the first collective",
            f"give all hosts the version that most have, or name another one: ipexctl install{env}{version}",
            names,
        )


def missing_envs(cluster: ClusterContext) -> Iterator[Finding]:
    known = tuple(node for node in cluster.runnable if node.facts.has_finished("home"))
    for name, by_host in _envs(cluster).items():
        without = tuple(node.name for node in known if node.name not in by_host)
        if without:
            yield Finding(
                "cluster.env_missing",
                "info",
                f"Environment {name[:40]} is missing, but on {len(by_host)} other "
                f"host{'s' if len(by_host) > 1 else ''}: a run that uses it would fail to start",
                "ipexctl install",
                without,
            )


def _first_mpi(node: HostContext) -> tuple[str, str] | None:
    first = next((mpi for mpi in node.facts.software.mpis if mpi.on_path and mpi.flavor != "unknown"), None)
    return (first.flavor, first.version or "") if first else None


def mpis(cluster: ClusterContext) -> Iterator[Finding]:
    found = groups(cluster.runnable, _first_mpi)
    if len(found) > 1:
        usual, others, names = odd_ones(found)
        yield Finding(
            "cluster.mixed_mpi",
            "info",
            f"The first mpirun is {' '.join(others[0])}, but {' '.join(usual)} on the others: one can't start the "
            "daemons of the other",
            "nothing to do under ipexctl run, which uses the mpirun of the environment; else --mpi PATH",
            names,
        )


RULES: Final[tuple[ClusterRule, ...]] = (
    homes, shared_homes, stacks, missing_envs, pythons, libc, distros, mpis,
)  # fmt: skip
