"""Match rows of the version table with hosts: whether a row runs there, and with which Python. Pure.

Unknown facts never count against a host: a probe that was cut short must not refuse an install that would work.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ipexctl.facts.cpu import TIERS, X86, Tier
from ipexctl.facts.facts import Facts
from ipexctl.facts.software import Python
from ipexctl.stack.catalog import IPEX, ONECCL, TORCH, Isa, StackSpec, minor, version_key
from ipexctl.stack.lock.wheels import Availability, Target
from ipexctl.stack.resolve import reasons
from ipexctl.stack.resolve.reasons import QueriedIndexes, Reason, because

OLDEST_PYTHON: Final = "3.8"
_EXAMPLES: Final = 4


@dataclass(frozen=True, slots=True)
class HostProfile:
    """Facts that decide which rows fit; large clusters have few different profiles."""

    kernel: str | None
    arch: str | None
    tier: Tier | None
    libc: str | None
    glibc: str | None
    pythons: frozenset[str] | None
    """Usable minor versions; None if the probe did not look for Pythons or was cut short."""
    others: tuple[str, ...] = ()


def profile(facts: Facts) -> HostProfile:
    """Return the facts of a host that decide which rows run there."""
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
    """Return the interpreters that can run the agent and use wheels for glibc and x86-64."""
    return tuple(
        python
        for python in facts.software.pythons
        if python.version
        and version_key(python.version) >= version_key(OLDEST_PYTHON)
        and python.libc != "musl"
        and python.arch in (None, *X86)
    )


def profiles(hosts: Mapping[str, Facts]) -> dict[HostProfile, tuple[str, ...]]:
    """Group hosts by what decides which rows run there: profile → names of its hosts."""
    by_profile: dict[HostProfile, list[str]] = {}
    for name, facts in hosts.items():
        by_profile.setdefault(profile(facts), []).append(name)
    return {kind: tuple(names) for kind, names in by_profile.items()}


def oldest_glibc(hosts: Mapping[str, Facts]) -> str | None:
    """Return the oldest glibc among the hosts, on which wheels for all of them must run; None if none is known."""
    known = [version for facts in hosts.values() if (version := profile(facts).glibc)]
    return min(known, key=version_key, default=None)


def incompatibility(row: StackSpec, facts: Facts) -> Reason | None:
    """Return why a host cannot run a row; None if it can. The bindings' Pythons do not count, because the row also runs
    over gloo."""
    kind, pythons = profile(facts), row.without_oneccl().pythons
    return _machine_problem(row, kind) or _python_problem(row.title, kind, pythons, _best_to_add({}, pythons))


def _machine_problem(row: StackSpec, host: HostProfile) -> Reason | None:
    """Return why a row can't run on hosts with this profile, whatever their Pythons; None if it can."""
    if host.kernel not in (None, "Linux"):
        return because(reasons.other_platform, found=host.kernel, wheels_for="Linux")
    if host.arch is not None and host.arch not in X86:
        return because(reasons.other_platform, found=host.arch, wheels_for="x86_64")
    if host.libc == "musl":
        return because(reasons.musl_instead_of_glibc)
    if row.isa and not has_isa(host.tier, row.isa):
        # One version of IPEX 1.12 needs more than the others.
        alone = row.isa == "avx512" and len(row.ipex_builds) == 1
        return because(reasons.missing_instructions, isa=row.isa, part=f"IPEX {row.ipex}" if alone else row.title)
    if host.glibc and version_key(host.glibc) < version_key(row.glibc):
        return because(reasons.old_glibc, glibc=host.glibc, needed=row.glibc, part=row.title)
    return None


def _python_problem(part: str, host: HostProfile, pythons: Sequence[str], best: str) -> Reason | None:
    """Return why no Python of the hosts fits; None if one fits, or if their Pythons are unknown."""
    if host.pythons is None or host.pythons & set(pythons):
        return None
    if host.pythons:
        built_for, has = tuple(_supported(pythons) or pythons), _sorted(host.pythons)
        return because(reasons.other_pythons, pythons=has, part=part, built_for=built_for, install=best)
    too_old_for = None if _supported(host.others) else OLDEST_PYTHON
    return because(reasons.unusable_pythons, pythons=host.others, too_old_for=too_old_for, install=best)


def _sorted(pythons: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(pythons, key=version_key))


def _supported(pythons: Sequence[str]) -> list[str]:
    return [python for python in pythons if version_key(python) >= version_key(OLDEST_PYTHON)]


def has_isa(tier: Tier | None, isa: Isa) -> bool:
    """True if a CPU of that tier has the instructions. An unknown CPU counts as having them."""
    return tier is None or TIERS.index(tier) >= TIERS.index(isa)


def common_pythons(
    row: StackSpec, host_groups: Mapping[HostProfile, tuple[str, ...]], pythons: Sequence[str], part: str
) -> tuple[str, ...] | Reason:
    """Return the Pythons that run this row on all hosts, newest first, or the reason why there is none.

    `pythons`: those for which `part` is built. `part`: what a message names, such as `IPEX 2.8`.
    """
    best = _best_to_add(host_groups, pythons)
    problems = _grouped({names: _machine_problem(row, kind) for kind, names in host_groups.items()})
    if problems is None:
        of_groups = {names: _python_problem(part, kind, pythons, best) for kind, names in host_groups.items()}
        problems = _grouped(of_groups)
    if problems is not None:
        return problems
    common = set(_supported(pythons))
    for kind in host_groups:
        if kind.pythons is not None:
            common &= kind.pythons
    if not common:
        return _none_common(part, host_groups, pythons, best)
    return _sorted(common)[::-1]


def _grouped(problems: Mapping[tuple[str, ...], Reason | None]) -> Reason | None:
    """Return one reason for the problems of all groups of hosts; None if no group has one. Equal problems are told
    together."""
    groups: dict[Reason, list[str]] = {}
    for names, problem in problems.items():
        if problem is not None:
            groups.setdefault(problem, []).extend(names)
    if not groups:
        return None
    return because(reasons.host_problems, groups=tuple((problem, tuple(names)) for problem, names in groups.items()))


def _best_to_add(host_groups: Mapping[HostProfile, tuple[str, ...]], pythons: Sequence[str]) -> str:
    """Return the Python that most hosts have, of those for which the row is built; if several, the newest."""

    def having(python: str) -> int:
        return sum(max(1, len(names)) for kind, names in host_groups.items() if kind.pythons and python in kind.pythons)

    return max(
        _supported(pythons) or pythons, key=lambda python: (having(python), version_key(python)), default=OLDEST_PYTHON
    )


def _none_common(
    part: str, host_groups: Mapping[HostProfile, tuple[str, ...]], pythons: Sequence[str], wanted: str
) -> Reason:
    """Return the reason for hosts that have no fitting Python in common."""
    supported = tuple(_supported(pythons))
    if not supported:
        return because(reasons.built_for_old_pythons, part=part, pythons=tuple(pythons), oldest=OLDEST_PYTHON)
    lacking = tuple(
        name
        for kind, names in host_groups.items()
        if kind.pythons is not None and wanted not in kind.pythons
        for name in names
    )
    examples = tuple(
        (names, _sorted(kind.pythons)) for kind, names in list(host_groups.items())[:_EXAMPLES] if kind.pythons
    )
    return because(
        reasons.no_common_python, part=part, built_for=supported, found=examples, install=wanted, hosts=lacking
    )


def without_python(python: str, host_groups: Mapping[HostProfile, tuple[str, ...]]) -> Reason | None:
    """Return the reason that names the hosts without this Python; None if no host is known to lack it."""
    lacking = {
        kind: names for kind, names in host_groups.items() if kind.pythons is not None and python not in kind.pythons
    }
    if not lacking:
        return None
    kind, example = next(iter(lacking.items()))
    hosts = tuple(name for names in lacking.values() for name in names)
    has = _sorted(kind.pythons or ())
    return because(reasons.missing_python, python=python, hosts=hosts, example=example, example_pythons=has)


def interpreters_for(python: str, hosts: Mapping[str, Facts]) -> dict[str, str]:
    """Return host → path of that Python, the same path on hosts that share a home if possible.

    If a host's Pythons are unknown, the path is just a name such as `python3.11`, to be found on PATH. A host without
    that Python is left out.
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
    """Return the paths of this Python on a host, the best one first."""
    good = [entry for entry in usable_pythons(facts) if minor(entry.version or "") == python]
    good.sort(key=lambda entry: (entry.libc != "glibc", entry.arch is None, entry.venv is False))
    return list(dict.fromkeys(entry.path for entry in good))


def queried_indexes(wheels: Availability) -> QueriedIndexes:
    """Return which indexes answered and which failed, as reasons name them."""
    return QueriedIndexes(wheels.answered, tuple(failure.source for failure in wheels.failures))


def missing_wheels(row: StackSpec, targets: Sequence[Target], wheels: Availability) -> Reason:
    """Return the reason why no builds of a row fit together on these targets. If the indexes were queried, it names
    each part that none of them has for a target."""
    if not wheels.queried:
        if row.oneccl_builds and all(build.cpu_wheel != "published" for build in row.oneccl_builds):
            return because(reasons.bindings_never_published, line=row.line)
        return because(reasons.parts_disagree, title=row.title)
    absent: list[tuple[str, str | None]] = []
    other_builds: list[tuple[str, str, tuple[str, ...]]] = []
    for project, versions in _parts(row).items():
        if any(wheels.build(project, version, target) for version in versions for target in targets):
            continue
        has = {version.partition("+")[0] for version in wheels.versions(project)}
        available = next((version for version in versions if version in has), None)
        if available is not None:
            other_builds.append((project, available, wheels.pythons(project, available)))
        else:
            absent.append((project, versions[0] if has else None))
    return because(
        reasons.missing_wheels,
        title=row.title,
        absent=tuple(absent),
        others=tuple(other_builds),
        pythons=tuple(target.python for target in targets),
        glibc=targets[0].glibc,
        line=row.line if row.oneccl_builds and not row.oneccl else None,
        indexes=queried_indexes(wheels),
    )


def _parts(row: StackSpec) -> dict[str, list[str]]:
    """Return project → versions of the builds that a row may install."""
    parts = {TORCH: list(row.patches)}
    if row.ipex_builds:
        parts[IPEX] = [build.version for build in row.ipex_builds]
    if row.oneccl_builds:
        parts[ONECCL] = [build.version for build in row.oneccl_builds]
    return parts


def easiest_problem(
    tried: Sequence[tuple[StackSpec, Reason]],
    host_groups: Mapping[HostProfile, tuple[str, ...]],
    wheels: Availability,
) -> tuple[StackSpec, Reason]:
    """Return the candidate, and its problem, that a refusal explains.

    If some host's glibc is too old for every candidate, that is the problem. Otherwise candidates without bindings, and
    then those with published bindings, are preferred; among these, those whose torch an index has, and last the one
    that the fewest hosts prevent.
    """
    floor = min((row.glibc for row, _ in tried), key=version_key)
    old = {
        kind.glibc: names
        for kind, names in host_groups.items()
        if kind.glibc and version_key(kind.glibc) < version_key(floor)
    }
    if old and len({row.name for row, _ in tried}) > 1:
        glibc, names = next(iter(old.items()))
        problem = because(reasons.old_glibc, glibc=glibc, needed=floor, part="every stack")
        return tried[0][0], because(reasons.host_problems, groups=((problem, names),))
    good = [(row, problem) for row, problem in tried if not row.oneccl_builds]
    good = good or [(row, problem) for row, problem in tried if row.oneccl] or list(tried)
    if wheels.queried:
        at_hand = [
            (row, problem)
            for row, problem in good
            if {version.partition("+")[0] for version in wheels.versions(TORCH)} & set(row.torch_patches)
        ]
        good = at_hand or good
    return min(good, key=lambda item: len(item[1].hosts))
