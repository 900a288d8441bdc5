"""The note on a package that has an older version because of the order of indexes. Pure.

A package comes from the first index that has a fitting version (`docs/install.md`), where pip takes the newest one of
all. So with an index of one's own a requirement may get an older version than pip would install: in come the locked
versions and the answer of the indexes, out goes one sentence that names the index that decided. Only requirements of
the call are compared, and only where a named index is asked beside others; what other packages exclude is no matter of
indexes: the locked version must be the newest one of its index.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ipexctl.stack.lock.wheels import Availability, Target


def named_projects(requirements: Iterable[str]) -> tuple[str, ...]:
    """The projects that indexes are asked about for the note."""
    parsed = map(Requirement, requirements)
    return tuple(dict.fromkeys(str(canonicalize_name(line.name)) for line in parsed if line.url is None))


def index_order_note(
    requirements: Iterable[str],
    packages: Mapping[str, str],
    availability: Availability,
    target: Target,
    deciding: frozenset[str],
) -> str:
    """Empty if pip would take the same versions. `deciding`: the labels of the indexes that the call names."""
    found = []
    for line in map(Requirement, requirements):
        project = canonicalize_name(line.name)
        newest: dict[str, Version] = {}
        for candidate, version in availability.runnable(project, target):
            if not candidate.yanked and line.specifier.contains(version, prereleases=False):
                newest[candidate.source] = max(version, newest.get(candidate.source, version))
        if project not in packages or not newest:
            continue
        locked = Version(packages[project])
        best = max(newest, key=lambda source: newest[source])
        decided = next((source for source in newest if source in deciding and newest[source] == locked), None)
        if decided is not None and newest[best] > locked:
            found.append(
                f"{project} {locked} is from {decided}, which comes first; pip would take {newest[best]} of {best}"
            )
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return f"{found[0]}{more}" if found else ""
