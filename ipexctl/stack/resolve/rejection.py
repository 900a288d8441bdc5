"""Problems with wheels, from the indexes' answer, and the one to show. Pure.

It is the easiest to solve: of a row without bindings whose torch is available, on the fewest hosts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ipexctl.stack.catalog.table import StackSpec, version_key
from ipexctl.stack.lock.wheels import Availability, Target
from ipexctl.stack.resolve import reasons
from ipexctl.stack.resolve.compatibility import HostProfile
from ipexctl.stack.resolve.model import IPEX, ONECCL, TORCH
from ipexctl.stack.resolve.reasons import QueriedIndexes, Reason, because


def queried_indexes(wheels: Availability) -> QueriedIndexes:
    return QueriedIndexes(wheels.answered, tuple(failure.source for failure in wheels.failures))


def missing_wheels(row: StackSpec, targets: Sequence[Target], wheels: Availability) -> Reason:
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
