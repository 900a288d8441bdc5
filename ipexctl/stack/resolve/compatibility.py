"""Checks whether a stack runs on given hosts, and with which Python. Pure.

Unknown facts of a host are no reason against it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ipexctl.facts.cpu import TIERS, X86, Tier
from ipexctl.refusal import Refusal
from ipexctl.stack.catalog.table import Isa, StackSpec, minor, version_key

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ipexctl.facts.facts import Facts
    from ipexctl.facts.software import Python

OLDEST_PYTHON: Final = "3.8"
"""The oldest Python that runs the agent."""
_VERBS: Final = {"has": "have", "is": "are", "runs": "run", "lacks": "lack"}


@dataclass(frozen=True, slots=True)
class HostProfile:
    """The facts of a host that decide which rows fit; large clusters have few different profiles."""

    kernel: str | None
    arch: str | None
    tier: Tier | None
    libc: str | None
    glibc: str | None
    pythons: frozenset[str] | None
    """Usable minor versions; None if the probe did not look for them or was cut short."""
    others: tuple[str, ...] = ()
    """Minor versions that cannot be used."""


@dataclass(frozen=True, slots=True)
class Incompatibility:
    """The reason why a row does not run on these hosts."""

    reason: str
    """A clause: `node3 has glibc 2.17; IPEX 2.8 needs 2.28`."""
    hosts: tuple[str, ...] = ()
    fix: str = ""
    brief: str = ""
    """The reason without the queried indexes, if it has them."""


def profile(facts: Facts) -> HostProfile:
    system, software = facts.system, facts.software
    running = {minor(python.version) for python in software.pythons if python.version}
    good = frozenset(minor(python.version) for python in usable_pythons(facts) if python.version)
    has_versions = bool(software.pythons) and any(python.version for python in software.pythons)
    return HostProfile(
        kernel=system.kernel_name,
        arch=facts.cpu.arch or system.arch,
        tier=facts.cpu.tier,
        libc=system.libc,
        glibc=system.libc_version if system.libc != "musl" else None,
        pythons=good if has_versions or facts.has_finished("programs") else None,
        others=tuple(sorted(running - good, key=version_key)),
    )


def usable_pythons(facts: Facts) -> tuple[Python, ...]:
    """The interpreters that run the agent and take wheels for glibc and x86-64."""
    return tuple(
        python
        for python in facts.software.pythons
        if python.version
        and version_key(python.version) >= version_key(OLDEST_PYTHON)
        and python.libc != "musl"
        and python.arch in (None, *X86)
    )


def profiles(hosts: Mapping[str, Facts]) -> dict[HostProfile, tuple[str, ...]]:
    """Host profiles with the names of their hosts, in order."""
    found: dict[HostProfile, list[str]] = {}
    for name, facts in hosts.items():
        found.setdefault(profile(facts), []).append(name)
    return {kind: tuple(names) for kind, names in found.items()}


def incompatibility(row: StackSpec, facts: Facts) -> str | None:
    """The predicate that says why a host cannot run this row, not even over gloo; None if it can."""
    kind = profile(facts)
    problem = _machine(row, kind)
    return problem[0] if problem else _pythons(row.title, kind, row.without_oneccl().pythons)


def _machine(row: StackSpec, host: HostProfile) -> tuple[str, str] | None:
    """The problem with the machine, and the fix."""
    if host.kernel not in (None, "Linux"):
        return f"runs {host.kernel}; the wheels are for Linux", ""
    if host.arch is not None and host.arch not in X86:
        return f"is {host.arch}; the wheels are for x86_64", ""
    if host.libc == "musl":
        return "has musl instead of glibc", "a system with glibc, such as Debian, Ubuntu or Rocky Linux"
    if row.isa and not has_isa(host.tier, row.isa):
        # Of 1.12, one version needs more than the others.
        alone = row.isa == "avx512" and len(row.ipex_builds) == 1
        needing = f"IPEX {row.ipex}" if alone else row.title
        return f"has no {'AVX-512' if row.isa == 'avx512' else 'AVX2'}, which {needing} needs", ""
    if host.glibc and version_key(host.glibc) < version_key(row.glibc):
        newer = "a newer system, such as RHEL 8, Ubuntu 20.04 or Debian 10"
        return f"has glibc {host.glibc}; {row.title} needs {row.glibc}", newer
    return None


def _pythons(title: str, host: HostProfile, pythons: Sequence[str]) -> str | None:
    if host.pythons is None or host.pythons & set(pythons):
        return None
    if not host.pythons:
        return _no_python(host)
    return f"has {_only(host.pythons)}; {title} is built for {_built_for(pythons)}"


def _no_python(host: HostProfile) -> str:
    if not host.others:
        return "has no Python 3 that runs"
    if not _supported(host.others):
        return f"has only Python {' and '.join(host.others)}; ipexctl needs {OLDEST_PYTHON} or newer on a node"
    return f"has only Python {' and '.join(host.others)}, and not for x86_64 with glibc"


def _only(pythons: Collection[str]) -> str:
    found = sorted(pythons, key=version_key)
    return f"only Python {found[0]}" if len(found) == 1 else f"Python {', '.join(found)}"


def _built_for(pythons: Sequence[str]) -> str:
    return span(_supported(pythons) or pythons)


def _supported(pythons: Sequence[str]) -> list[str]:
    """The Pythons that run the agent."""
    return [python for python in pythons if version_key(python) >= version_key(OLDEST_PYTHON)]


def span(pythons: Sequence[str]) -> str:
    return "no Python" if not pythons else pythons[0] if len(pythons) == 1 else f"{pythons[0]} to {pythons[-1]}"


def has_isa(tier: Tier | None, isa: Isa) -> bool:
    """An unknown CPU counts as the best."""
    return tier is None or TIERS.index(tier) >= TIERS.index(isa)


def incompatibilities(
    row: StackSpec, host_groups: Mapping[HostProfile, tuple[str, ...]], pythons: Sequence[str], title: str = ""
) -> tuple[Incompatibility | None, tuple[str, ...]]:
    """The reason why this row does not run on all hosts, or the Pythons that do, newest first.

    `title` is the part of the row that is built for these Pythons alone.
    """
    title = title or row.title
    problem = _grouped({names: _machine(row, kind) for kind, names in host_groups.items()})
    if problem is None:
        fix = f"install Python {_best_to_add(host_groups, pythons)} there"
        lacking = {names: _pythons(title, kind, pythons) for kind, names in host_groups.items()}
        problem = _grouped({names: (why, fix) if why else None for names, why in lacking.items()})
    if problem is not None:
        return problem, ()
    common = set(_supported(pythons))
    for kind in host_groups:
        if kind.pythons is not None:
            common &= kind.pythons
    if not common:
        return _none_common(title, host_groups, pythons), ()
    return None, tuple(sorted(common, key=version_key, reverse=True))


def _grouped(problems: Mapping[tuple[str, ...], tuple[str, str] | None]) -> Incompatibility | None:
    """One incompatibility for all hosts, grouped by reason; at most three reasons."""
    groups: dict[tuple[str, str], list[str]] = {}
    for names, problem in problems.items():
        if problem:
            groups.setdefault(problem, []).extend(names)
    if not groups:
        return None
    reasons = [f"{join_names(names)} {_agreeing(why, len(names))}" for (why, _), names in list(groups.items())[:3]]
    fixes = dict.fromkeys(fix for _, fix in groups if fix)
    return Incompatibility(
        "; ".join(reasons), tuple(name for names in groups.values() for name in names), ", and ".join(fixes)
    )


def _best_to_add(host_groups: Mapping[HostProfile, tuple[str, ...]], pythons: Sequence[str]) -> str:
    """The Python that most hosts have; the newest of equals."""

    def having(python: str) -> int:
        return sum(max(1, len(names)) for kind, names in host_groups.items() if kind.pythons and python in kind.pythons)

    return max(
        _supported(pythons) or pythons, key=lambda python: (having(python), version_key(python)), default=OLDEST_PYTHON
    )


def _none_common(
    title: str, host_groups: Mapping[HostProfile, tuple[str, ...]], pythons: Sequence[str]
) -> Incompatibility:
    if not _supported(pythons):
        return Incompatibility(
            f"{title} is built for Python {span(pythons)}; ipexctl needs {OLDEST_PYTHON} or newer on a node"
        )
    wanted = _best_to_add(host_groups, pythons)
    lacking = tuple(
        name
        for kind, names in host_groups.items()
        if kind.pythons is not None and wanted not in kind.pythons
        for name in names
    )
    has = "; ".join(
        f"{join_names(names)} {_agreeing(f'has {_only(kind.pythons)}', len(names))}"
        for kind, names in list(host_groups.items())[:4]
        if kind.pythons
    )
    return Incompatibility(
        f"no Python that {title} is built for ({_built_for(pythons)}) is on all hosts: {has}",
        lacking,
        f"install Python {wanted} on {join_names(lacking)}",
    )


def without_python(python: str, host_groups: Mapping[HostProfile, tuple[str, ...]]) -> Refusal | None:
    """Refuse a requested Python that some hosts lack."""
    lacking = {
        kind: names for kind, names in host_groups.items() if kind.pythons is not None and python not in kind.pythons
    }
    if not lacking:
        return None
    kind, names = next(iter(lacking.items()))
    everyone = tuple(name for each in lacking.values() for name in each)
    has = f"Python {', '.join(sorted(kind.pythons or (), key=version_key))}" if kind.pythons else "no usable Python"
    return Refusal(
        f"there is no Python {python} on {join_names(everyone)} ({join_names(names)}: {has})",
        f"install it there, or remove --python {python}",
        everyone,
    )


def interpreters_for(python: str, hosts: Mapping[str, Facts]) -> dict[str, str]:
    """Host → the path of that Python; hosts that share a home get the same path if they have one in common.

    A host with unknown Pythons gets the name, to be found on its PATH; a host without that Python is left out.
    """
    ranked = {name: _ranked(python, facts) for name, facts in hosts.items()}
    chosen = {name: paths[0] for name, paths in ranked.items() if paths}
    stores: dict[str, list[str]] = {}
    for name, facts in hosts.items():
        if name not in chosen and profile(facts).pythons is None:
            chosen[name] = f"python{python}"
        elif name in chosen and facts.home and facts.home.store:
            stores.setdefault(facts.home.store, []).append(name)
    for names in stores.values():
        shared = set.intersection(*(set(ranked[name]) for name in names))
        if shared:
            best = _best_of(shared, [ranked[name] for name in names])
            chosen.update(dict.fromkeys(names, best))
    return {name: chosen[name] for name in hosts if name in chosen}


def _best_of(paths: Collection[str], rankings: Sequence[Sequence[str]]) -> str:
    return min(paths, key=lambda path: (sum(ranking.index(path) for ranking in rankings), path))


def _ranked(python: str, facts: Facts) -> list[str]:
    """The paths of that Python, those known to be for glibc and x86-64 first, then in the order of PATH."""
    good = [each for each in usable_pythons(facts) if minor(each.version or "") == python]
    good.sort(key=lambda each: (each.libc != "glibc", each.arch is None, each.venv is False))
    return list(dict.fromkeys(each.path for each in good))


def join_names(names: Sequence[str], most: int = 5) -> str:
    """`node1, node2 and 3 more`."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else ""


def _agreeing(predicate: str, count: int) -> str:
    """Agree the verb: `has glibc 2.17` for one host, `have glibc 2.17` for several."""
    verb, blank, rest = predicate.partition(" ")
    return predicate if count == 1 else f"{_VERBS.get(verb, verb)}{blank}{rest}"
