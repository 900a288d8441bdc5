"""Find the available wheels that run on a target: Python, glibc, processor and build. Pure.

The choice is pip's, except that CPU builds are preferred. A torch wheel without a label counts as CUDA from 350 MB on,
like PyPI's. A oneccl_bind_pt wheel built with USE_SYSTEM_ONECCL fails at import unless oneccl and impi-rt are also
installed; a wheel on disk is inspected for this before a lock is made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from ipexctl.node.common.fix import Fix
from ipexctl.node.env.env_replies import AvailableWheel, SourceFailure
from ipexctl.stack.catalog import minor, project_of, rows, version_key
from ipexctl.stack.resolve.model import StackPlan

BINDINGS: Final = "oneccl-bind-pt"
PACKAGES: Final = frozenset({"oneccl", "impi-rt"})
_OLDEST_ON_PYPI: Final = "2021.14"
"""Oldest versions of oneccl and impi-rt that belong together on PyPI (November 2026)."""
_NEWEST: Final = "2021.15"
"""Version of oneCCL for bindings that are not in the version table: torch-ccl 2.8 is built with 2021.15.2."""


def lacks_oneccl(plan: StackPlan, packages: Iterable[str], availability: Availability) -> tuple[str, str] | None:
    """Return problem and fix if the bindings' wheel is known to contain no oneCCL, and the call does not ask for both
    packages that replace it; else None."""
    if plan.oneccl is None:
        return None
    wheel = availability.build(BINDINGS, Version(plan.oneccl).public, Target(plan.python, plan.glibc))
    names = {canonicalize_name(Requirement(line).name) for line in (*plan.requirements, *packages)}
    if wheel is None or wheel.oneccl is not False or names >= PACKAGES:
        return None
    return f"the wheel of oneccl_bind_pt {plan.oneccl} has no oneCCL inside", add_oneccl(plan.row.name, plan.oneccl)


def add_oneccl(stack: str, bindings: str) -> str:
    """Return the fix that adds oneCCL and Intel MPI as packages to a stack's row, in the versions that the bindings
    were built with. If these are too old for PyPI, the fix is another wheel of the bindings."""
    row = next((row for row in rows() if row.name == stack), None)
    built_with = [build.oneccl for build in row.oneccl_builds if bindings.startswith(build.version)] if row else []
    version = minor(next(filter(None, built_with), _NEWEST))
    if version_key(version) < version_key(_OLDEST_ON_PYPI):
        return "use a wheel of oneccl_bind_pt with oneCCL inside, such as Intel's: --wheelhouse DIR"
    entry = json.dumps({"name": stack, "requires": [f"oneccl=={version}.*", f"impi-rt=={version}.*"]})
    return Fix(
        f"add the packages oneccl and impi-rt to the stack: add {entry} to the list in $IPEXCTL_ROWS or "
        f"~/.config/ipexctl/rows.json (if there is no such file, create it with [{entry}]), then run "
        "`ipexctl install` again"
    )


OLDEST_GLIBC: Final = 17
"""Minor version of glibc, assumed if a host's is unknown."""
_LEGACY: Final = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
_SMALLEST_CUDA: Final = 350_000_000
"""Bytes. PyPI's CUDA builds of torch have 600 MB and more, CPU builds about 200 MB."""
_LOCALS: Final = ("cpu", None)
"""Local versions of CPU builds, preferred one first."""


@dataclass(frozen=True, slots=True)
class Target:
    """What wheels must fit: the same on all hosts."""

    python: str
    """Such as `3.11`."""
    glibc: str
    """The oldest glibc of the hosts, such as `2.28`."""


@dataclass(frozen=True, slots=True)
class Availability:
    """The wheels that indexes and directories have."""

    candidates: Mapping[str, tuple[AvailableWheel, ...]] = field(default_factory=dict, hash=False)
    """Normalized name of a project → its wheels, in the order of the sources."""
    answered: tuple[str, ...] = ()
    """Labels of the sources that answered for all projects."""
    failures: tuple[SourceFailure, ...] = ()
    queried: bool = True
    """False: no index was queried, and every published wheel counts as available."""

    def of(self, project: str) -> tuple[AvailableWheel, ...]:
        """Return all wheels of a project, in the order of the sources; empty if there are none."""
        return self.candidates.get(project, ())

    def build(self, project: str, version: str, target: Target) -> AvailableWheel | None:
        """Return the wheel of exactly this version that the target can install; None if there is none. A build labelled
        `+cpu` is preferred to one without a label, builds with another label never count, and yanked wheels are the
        last choice."""
        wanted = _version(version)
        of_version = [
            (candidate, known)
            for candidate, known in self.runnable(project, target)
            if wanted is not None and Version(known.public) == wanted
        ]
        for local in _LOCALS:
            good = [candidate for candidate, known in of_version if known.local == local]
            if good:
                return min(good, key=lambda candidate: candidate.yanked)
        return None

    def can_satisfy(self, requirement: str, target: Target) -> bool:
        """True if a wheel for the target fulfils the requirement, or if no index was queried. A yanked wheel counts
        only for an exact pin, as in pip."""
        if not self.queried:
            return True
        project = project_of(requirement)
        specifier = SpecifierSet(re.sub(r"^[^<>=!~ ]+", "", requirement))
        exact = "==" in str(specifier) and "*" not in str(specifier)
        return any(
            specifier.contains(known, prereleases=known.is_prerelease and exact)
            for candidate, known in self.runnable(project, target)
            if exact or not candidate.yanked
        )

    def newest(self, project: str, specifier: SpecifierSet, python: str) -> Version | None:
        """Return the newest release that is not yanked and that this Python may use; None if there is none. Platform
        and glibc do not count."""
        usable = (c for c in self.of(project) if not c.yanked and allows_python(c.requires_python, python))
        known = (version for version in (_version(wheel.version) for wheel in usable) if version is not None)
        return max((version for version in known if specifier.contains(version, prereleases=False)), default=None)

    def versions(self, project: str) -> tuple[str, ...]:
        """Return all versions of a project, oldest first, with their local labels (`2.8.0+cpu`)."""
        return tuple(sorted({candidate.version for candidate in self.of(project)}, key=version_key))

    def pythons(self, project: str, version: str) -> tuple[str, ...]:
        """Return the Pythons for which there are wheels of this version, oldest first. Wheels for any Python 3 are not
        seen."""
        parsed = [_parse_filename(candidate.filename) for candidate in self.of(project)]
        tags = [tag.interpreter for file in parsed if file and file[0].base_version == version for tag in file[1]]
        versions = {f"3.{tag[3:]}" for tag in tags if tag.startswith("cp3") and tag[3:].isdigit()}
        return tuple(sorted(versions, key=version_key))

    def runnable(self, project: str, target: Target) -> Iterator[tuple[AvailableWheel, Version]]:
        """Yield the wheels that the target can install, each with its version. Files that are no wheels are left
        out."""
        fitting = tag_ranks(target.python, target.glibc)
        for candidate in self.of(project):
            if (parsed := _parse_filename(candidate.filename)) is None:
                continue
            known, tags = parsed
            if any(tag in fitting for tag in tags) and allows_python(candidate.requires_python, target.python):
                yield candidate, known


NOT_QUERIED: Final = Availability(queried=False)


def is_cpu_build(torch: AvailableWheel) -> bool:
    """True if a torch wheel is a build for CPUs, by its label or its size. Without both, it counts as CUDA."""
    return torch.version.endswith("+cpu") or (torch.size is not None and torch.size < _SMALLEST_CUDA)


@lru_cache(maxsize=8192)
def _parse_filename(filename: str) -> tuple[Version, frozenset[Tag]] | None:
    """Return version and tags of a wheel's file name; None if it is no wheel's."""
    try:
        _, version, _, tags = parse_wheel_filename(filename)
    except (InvalidWheelFilename, InvalidVersion):
        return None
    return version, tags


@lru_cache(maxsize=256)
def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def is_prerelease(text: str) -> bool:
    """True for a pre-release, such as `2.9.0rc1`. A text that is no version is none."""
    version = _version(text)
    return version is not None and version.is_prerelease


@lru_cache(maxsize=64)
def tag_ranks(python: str, glibc: str) -> Mapping[Tag, int]:
    """Return the rank of each tag that CPython on Linux x86_64 with that glibc can install; 0 is best."""
    version = tuple(int(part) for part in python.split(".")[:2])
    interpreter = f"cp{version[0]}{version[1]}"
    platforms = []
    for number in range(glibc_minor(glibc), 4, -1):
        platforms.append(f"manylinux_2_{number}_x86_64")
        if number in _LEGACY:
            platforms.append(f"{_LEGACY[number]}_x86_64")
    platforms.append("linux_x86_64")
    abis = [interpreter, f"{interpreter}m"] if version < (3, 8) else [interpreter]
    tags = (*cpython_tags(version, abis, platforms), *compatible_tags(version, interpreter, platforms))
    return {tag: rank for rank, tag in enumerate(dict.fromkeys(tags))}


def glibc_minor(glibc: str) -> int:
    """Return `28` for `2.28`. A text that is no glibc 2 counts as 2.17, the oldest that is assumed."""
    match = re.match(r"2\.(\d+)", glibc)
    return int(match[1]) if match else OLDEST_GLIBC


@lru_cache(maxsize=1024)
def allows_python(requires_python: str | None, python: str) -> bool:
    """True if this Python is allowed by `requires_python`; also if that is unknown or malformed."""
    if not requires_python:
        return True
    try:
        return SpecifierSet(requires_python).contains(f"{python}.99", prereleases=True)
    except InvalidSpecifier:
        return True
