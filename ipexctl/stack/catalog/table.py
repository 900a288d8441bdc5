"""The version table: builds that belong together, and their requirements on hosts.

In comes rows.json; out come `StackSpec`s, newest first, with what the resolver asks of them: Pythons, glibc, processor,
indexes, known problems. A row is data with its source, and no rule about a version is written anywhere else.

A stack is the intersection of its parts: `pythons`, `glibc` and `isa` say what all of them run on. IPEX itself compares
major and minor of torch only, so `works_with` has the patches that are known to work. Pure but for the one file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ipexctl.facts.software import has_gloo_overflow
from ipexctl.node.common.json_parser import parse_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PyPI = Literal["available", "yanked", "absent"]
CpuWheel = Literal["published", "unverified", "none"]
Isa = Literal["avx2", "avx512"]


@dataclass(frozen=True, slots=True)
class IpexBuild:
    """One version of IPEX."""

    version: str
    built_for: str
    """The torch that it was built against."""
    pythons: tuple[str, ...]
    pypi: PyPI
    works_with: tuple[str, ...]
    """Patch versions of torch; IPEX itself compares only major and minor."""
    pypi_pythons: tuple[str, ...] = ()
    wheel_tag: str | None = None
    glibc: str = "2.17"
    isa: Isa = "avx2"
    note: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class OnecclBuild:
    """One version of oneccl_bind_pt, oneCCL's bindings for PyTorch."""

    version: str
    built_for: str
    pythons: tuple[str, ...]
    cpu_wheel: CpuWheel
    """Whether a wheel for CPUs was ever published; `unverified`: only readmes of later versions list it."""
    works_with: tuple[str, ...]
    oneccl: str | None = None
    """The version of oneCCL inside."""
    mpi: str | None = None
    """The version of Intel MPI inside; None if there is none."""
    note: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Index:
    """A place where a row's wheels are published."""

    kind: Literal["index", "links"]
    url: str


@dataclass(frozen=True, slots=True)
class KnownBad:
    """A combination that fails or works badly; it applies if all given versions are chosen."""

    what: str
    symptom: str
    instead: str
    source: str
    torch: str | None = None
    ipex: str | None = None
    oneccl: str | None = None
    python: str | None = None
    """`3.13`: taken only if there is no other."""


@dataclass(frozen=True, slots=True)
class StackSpec:
    """One stack: versions that were built for one another, and their requirements on hosts."""

    name: str
    torch: str
    """The recommended patch."""
    torch_patches: tuple[str, ...]
    torch_pythons: tuple[str, ...]
    torch_glibc: str = "2.28"
    ipex_builds: tuple[IpexBuild, ...] = ()
    """The preferred one first."""
    oneccl_builds: tuple[OnecclBuild, ...] = ()
    """The preferred one first."""
    mpi: tuple[tuple[str, str], ...] = ()
    """(oldest glibc, requirement), newest glibc first."""
    requires: tuple[str, ...] = ()
    """Packages that its parts import without requiring them, and Intel's OpenMP."""
    constraints: tuple[str, ...] = ()
    hugging_face: tuple[tuple[str, str], ...] = ()
    """(transformers or accelerate, the last version that works with this torch and, if there is one, this IPEX)."""
    indexes: tuple[Index, ...] = ()
    module: str | None = None
    """The module that registers the ccl backend."""
    setvars: str | None = None
    """The script with its variables, relative to the module's directory."""
    known_bad: tuple[KnownBad, ...] = ()
    retired: bool = False
    note: str = ""
    sources: tuple[str, ...] = ()
    origin: str = ""
    """The user's file that defines or changes the row."""

    @property
    def line(self) -> str:
        """`2.8`."""
        return minor(self.torch)

    @property
    def patches(self) -> tuple[str, ...]:
        """The patches of torch, preferred first."""
        others = (patch for patch in self.torch_patches if patch != self.torch)
        return (self.torch, *sorted(others, key=version_key, reverse=True))

    @property
    def title(self) -> str:
        """For messages: `IPEX 2.8`, `torch 2.13`."""
        return f"IPEX {self.line}" if self.ipex_builds else f"torch {self.line}"

    @property
    def ipex(self) -> str | None:
        return self.ipex_builds[0].version if self.ipex_builds else None

    @property
    def oneccl(self) -> str | None:
        """The bindings published for CPUs and the recommended torch."""
        return next((build.version for build in self._published), None)

    @property
    def bundled_mpi(self) -> str | None:
        return next((build.mpi for build in self._published), None)

    @property
    def _published(self) -> tuple[OnecclBuild, ...]:
        good = [build for build in self.oneccl_builds if build.cpu_wheel == "published"]
        return tuple(sorted(good, key=lambda build: self.torch not in build.works_with))

    @property
    def backend(self) -> Literal["ccl", "gloo"]:
        return "ccl" if self.oneccl else "gloo"

    @property
    def gloo_overflow(self) -> bool:
        """Whether anyone who reaches a rank's port can write into the rank."""
        return has_gloo_overflow(self.torch)

    @property
    def pythons(self) -> tuple[str, ...]:
        """The Python versions that every part was built for."""
        found = set(self.torch_pythons)
        if self.ipex_builds:
            found &= {python for build in self.ipex_builds for python in build.pythons}
        if self.oneccl:
            found &= {python for build in self._published for python in build.pythons}
        return tuple(sorted(found, key=version_key))

    @property
    def glibc(self) -> str:
        """The oldest glibc that every part runs on."""
        floors = [self.torch_glibc]
        if self.ipex_builds:
            floors.append(min((build.glibc for build in self.ipex_builds), key=version_key))
        return max(floors, key=version_key)

    @property
    def isa(self) -> Isa | None:
        """The instructions that a CPU needs; None if any x86-64 will do."""
        floors = {build.isa for build in self.ipex_builds}
        return None if not floors else "avx2" if "avx2" in floors else "avx512"

    def without_oneccl(self) -> StackSpec:
        """The row without bindings, for gloo."""
        return replace(self, oneccl_builds=())

    def stock(self) -> StackSpec:
        """The row of its torch alone: `torch-2.7` of `ipex-2.7`."""
        if not self.ipex_builds:
            return self
        return replace(
            self,
            name=f"torch-{self.line}",
            ipex_builds=(),
            oneccl_builds=(),
            requires=("numpy",),
            module=None,
            setvars=None,
            known_bad=(),
            retired=False,
            note="",
            sources=self.sources[:1],
        )


@cache
def rows() -> tuple[StackSpec, ...]:
    """All rows of the package, newest first."""
    return newest_first(row_from(item) for item in packaged())


@cache
def packaged() -> tuple[Mapping[str, Any], ...]:
    """The rows of rows.json as JSON values; a row has the keys that it lacks from the row that it is `like`."""
    found = parse_json(Path(__file__).with_name("rows.json").read_text(encoding="utf-8"))
    by_name = {row["name"]: row for row in found}
    merged = ({**by_name.get(row.get("like"), {}), **row} for row in found)
    return tuple({key: value for key, value in row.items() if key != "like"} for row in merged)


def newest_first(made: Iterable[StackSpec]) -> tuple[StackSpec, ...]:
    """Sorted by torch; for one torch the user's rows come first, then rows with IPEX."""
    return tuple(
        sorted(made, key=lambda row: (version_key(row.torch), bool(row.origin), row.ipex is not None), reverse=True)
    )


def row_from(data: Mapping[str, Any], origin: str = "") -> StackSpec:
    """A row from its JSON; docs/versions.md has the defaults."""
    torch, pythons = data["torch"], tuple(data["torch_pythons"])
    patches = tuple(data.get("torch_patches") or (torch,))
    of_row: dict[str, Any] = {"built_for": torch, "pythons": pythons, "works_with": patches}
    floor = data.get("torch_glibc", "2.28")
    ipex = [IpexBuild(**{**of_row, "glibc": floor, "pypi": "absent", **_given(item)}) for item in data.get("ipex", ())]
    oneccl = [OnecclBuild(**{**of_row, "cpu_wheel": "published", **_given(item)}) for item in data.get("oneccl", ())]
    others = ("name", "torch", "requires", "constraints", "module", "setvars", "note", "sources")
    return StackSpec(
        **_given({key: data[key] for key in others if key in data}),
        torch_patches=patches,
        torch_pythons=pythons,
        torch_glibc=floor,
        ipex_builds=tuple(sorted(ipex, key=lambda build: version_key(build.version), reverse=True)),
        oneccl_builds=tuple(
            sorted(oneccl, key=lambda build: (build.cpu_wheel == "published", version_key(build.version)), reverse=True)
        ),
        mpi=tuple(sorted(data.get("mpi", {}).items(), key=lambda item: version_key(item[0]), reverse=True)),
        hugging_face=tuple(data.get("hugging_face", {}).items()),
        indexes=tuple(Index(**item) for item in data.get("indexes", ())),
        known_bad=tuple(KnownBad(**item) for item in data.get("known_bad", ())),
        retired=data.get("retired", bool(ipex)),
        origin=origin,
    )


def _given(data: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are given; an empty list leaves its default."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in data.items() if value != []}


def minor(version: str) -> str:
    """`3.11.2` → `3.11`."""
    return ".".join(version.split(".")[:2])


@lru_cache(maxsize=4096)
def version_key(version: str) -> tuple[int, ...]:
    """A sort key: the numbers before a local version."""
    return tuple(int(part) for part in version.partition("+")[0].split(".") if part.isdigit())
