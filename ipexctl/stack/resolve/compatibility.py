"""Whether a row of the table can run on given hosts, and by which of their Pythons. Pure.

What isn't known of a host is no reason against it. What an index has is `wheels`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ipexctl.facts.cpu import TIERS, X86
from ipexctl.stack.catalog.table import minor, version_key
from ipexctl.stack.resolve.model import Refusal

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ipexctl.facts.cpu import Tier
    from ipexctl.facts.facts import Facts
    from ipexctl.facts.software import Python
    from ipexctl.stack.catalog.table import Isa, StackSpec

OUR_FLOOR: Final = "3.8"
"""Our own part on the nodes runs under the environment's Python, and needs this."""
_VERBS: Final = {"has": "have", "is": "are", "runs": "run", "lacks": "lack"}


@dataclass(frozen=True, slots=True)
class HostProfile:
    """What of a host decides which rows fit it: large clusters have few different ones."""

    kernel: str | None
    arch: str | None
    tier: Tier | None
    libc: str | None
    glibc: str | None
    pythons: frozenset[str] | None
    """Minor versions a stack could be made with; None where nobody looked, or not to the end."""
    others: tuple[str, ...] = ()
    """Minor versions it has too, which are no use."""


@dataclass(frozen=True, slots=True)
class Incompatibility:
    """Why a row can't be had on these hosts."""

    reason: str
    """A whole clause: `node3 has glibc 2.17; IPEX 2.8 needs 2.28`."""
    hosts: tuple[str, ...] = ()
    fix: str = ""


def profile(facts: Facts) -> HostProfile:
    system, software = facts.system, facts.software
    running = {minor(python.version) for python in software.pythons if python.version}
    good = frozenset(minor(python.version) for python in usable_pythons(facts) if python.version)
    heard = bool(software.pythons) and any(python.version for python in software.pythons)
    return HostProfile(
        kernel=system.kernel_name,
        arch=facts.cpu.arch or system.arch,
        tier=facts.cpu.tier,
        libc=system.libc,
        glibc=system.libc_version if system.libc != "musl" else None,
        pythons=good if heard or _was_asked(facts) else None,
        others=tuple(sorted(running - good, key=version_key)),
    )


def _was_asked(facts: Facts) -> bool:
    """Whether the probe got through its look for programs: only then does no Python mean none."""
    return "programs" not in facts.cut and (facts.complete or bool(facts.cut))


def usable_pythons(facts: Facts) -> tuple[Python, ...]:
    """The interpreters that run, for our wheels' libc and processor, and our own part on the node."""
    return tuple(
        python
        for python in facts.software.pythons
        if python.version
        and version_key(python.version) >= version_key(OUR_FLOOR)
        and python.libc != "musl"
        and python.arch in (None, *X86)
    )


def profiles(hosts: Mapping[str, Facts]) -> dict[HostProfile, tuple[str, ...]]:
    """Each kind of host with the names of those that are so, in the hosts' order."""
    found: dict[HostProfile, list[str]] = {}
    for name, facts in hosts.items():
        found.setdefault(profile(facts), []).append(name)
    return {kind: tuple(names) for kind, names in found.items()}


def incompatibility(row: StackSpec, facts: Facts) -> str | None:
    """Why a host can't have this row, not even with gloo, as the rest of a sentence about it."""
    kind = profile(facts)
    wrong = _machine(row, kind)
    return wrong[0] if wrong else _pythons(row.title, kind, row.without_oneccl().pythons)


def _machine(row: StackSpec, host: HostProfile) -> tuple[str, str] | None:
    """What is wrong with it, and what could be done."""
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
    if all(version_key(version) < version_key(OUR_FLOOR) for version in host.others):
        return f"has only Python {' and '.join(host.others)}; ipexctl needs {OUR_FLOOR} or newer on a node"
    return f"has only Python {' and '.join(host.others)}, and not for x86_64 with glibc"


def _only(pythons: Collection[str]) -> str:
    found = sorted(pythons, key=version_key)
    return f"only Python {found[0]}" if len(found) == 1 else f"Python {', '.join(found)}"


def _built_for(pythons: Sequence[str]) -> str:
    known = [python for python in pythons if version_key(python) >= version_key(OUR_FLOOR)]
    return span(known or pythons)


def span(pythons: Sequence[str]) -> str:
    return "no Python" if not pythons else pythons[0] if len(pythons) == 1 else f"{pythons[0]} to {pythons[-1]}"


def has_isa(tier: Tier | None, isa: Isa) -> bool:
    """Of a CPU we know nothing about, the best is assumed."""
    return tier is None or TIERS.index(tier) >= TIERS.index(isa)


def incompatibilities(
    row: StackSpec, kinds: Mapping[HostProfile, tuple[str, ...]], pythons: Sequence[str], title: str = ""
) -> tuple[Incompatibility | None, tuple[str, ...]]:
    """Why this row is not for all these hosts, or else the Pythons that would do, the newest first.

    `title`: what of it is built for these Pythons alone, where that isn't all of it.
    """
    title = title or row.title
    wrong = _grouped({names: _machine(row, kind) for kind, names in kinds.items()})
    if wrong is None:
        fix = f"install Python {_best_to_add(kinds, pythons)} there"
        lacking = {names: _pythons(title, kind, pythons) for kind, names in kinds.items()}
        wrong = _grouped({names: (why, fix) if why else None for names, why in lacking.items()})
    if wrong is not None:
        return wrong, ()
    common = {python for python in pythons if version_key(python) >= version_key(OUR_FLOOR)}
    for kind in kinds:
        if kind.pythons is not None:
            common &= kind.pythons
    if not common:
        return _none_common(title, kinds, pythons), ()
    return None, tuple(sorted(common, key=version_key, reverse=True))


def _grouped(wrongs: Mapping[tuple[str, ...], tuple[str, str] | None]) -> Incompatibility | None:
    """Hosts with the same reason together; a few reasons are enough."""
    groups: dict[tuple[str, str], list[str]] = {}
    for names, wrong in wrongs.items():
        if wrong:
            groups.setdefault(wrong, []).extend(names)
    if not groups:
        return None
    reasons = [f"{few(names)} {_agreeing(why, len(names))}" for (why, _), names in list(groups.items())[:3]]
    fixes = dict.fromkeys(fix for _, fix in groups if fix)
    return Incompatibility(
        "; ".join(reasons), tuple(name for names in groups.values() for name in names), ", and ".join(fixes)
    )


def _best_to_add(kinds: Mapping[HostProfile, tuple[str, ...]], pythons: Sequence[str]) -> str:
    """The Python that most hosts have already; of equals the newest."""
    known = [python for python in pythons if version_key(python) >= version_key(OUR_FLOOR)] or list(pythons)

    def having(python: str) -> int:
        return sum(max(1, len(names)) for kind, names in kinds.items() if kind.pythons and python in kind.pythons)

    return max(known, key=lambda python: (having(python), version_key(python)), default=OUR_FLOOR)


def _none_common(title: str, kinds: Mapping[HostProfile, tuple[str, ...]], pythons: Sequence[str]) -> Incompatibility:
    if not any(version_key(python) >= version_key(OUR_FLOOR) for python in pythons):
        return Incompatibility(
            f"{title} is built for Python {span(pythons)}; ipexctl needs {OUR_FLOOR} or newer on a node"
        )
    wanted = _best_to_add(kinds, pythons)
    lacking = tuple(
        name
        for kind, names in kinds.items()
        if kind.pythons is not None and wanted not in kind.pythons
        for name in names
    )
    has = "; ".join(
        f"{few(names)} {_agreeing(f'has {_only(kind.pythons)}', len(names))}"
        for kind, names in list(kinds.items())[:4]
        if kind.pythons
    )
    return Incompatibility(
        f"no Python that {title} is built for ({_built_for(pythons)}) is on all hosts: {has}",
        lacking,
        f"install Python {wanted} on {few(lacking)}",
    )


def without_python(python: str, kinds: Mapping[HostProfile, tuple[str, ...]]) -> Refusal | None:
    """Hosts that are known not to have the one that was asked for."""
    lacking = {kind: names for kind, names in kinds.items() if kind.pythons is not None and python not in kind.pythons}
    if not lacking:
        return None
    kind, names = next(iter(lacking.items()))
    everyone = tuple(name for each in lacking.values() for name in each)
    has = f"Python {', '.join(sorted(kind.pythons or (), key=version_key))}" if kind.pythons else "no Python of use"
    return Refusal(
        f"there is no Python {python} on {few(everyone)} ({few(names)}: {has})",
        f"install it there, or leave --python {python} out",
        everyone,
    )


def interpreters_for(python: str, hosts: Mapping[str, Facts]) -> dict[str, str]:
    """Host → the path of that Python there; hosts with one home get one path, where they have one in common.

    Of a host whose Pythons nobody knows it is the name, for its PATH to find; one that hasn't got it is left out.
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
    """Those that say they are for glibc and this processor first, then in the order of PATH."""
    good = [each for each in usable_pythons(facts) if minor(each.version or "") == python]
    good.sort(key=lambda each: (each.libc != "glibc", each.arch is None, each.venv is False))
    return list(dict.fromkeys(each.path for each in good))


def few(names: Sequence[str], most: int = 5) -> str:
    """`node1, node2 and 3 more`: a message stays a line."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else ""


def _agreeing(predicate: str, count: int) -> str:
    """`has glibc 2.17` of one host, `have glibc 2.17` of several."""
    verb, blank, rest = predicate.partition(" ")
    return predicate if count == 1 else f"{_VERBS.get(verb, verb)}{blank}{rest}"
