"""Read the version table: which builds of torch, IPEX and the oneCCL bindings belong together, and what they need of a
host.

Rows come from the packaged rows.json and from the user's own file, which adds rows or changes packaged ones key by key
(docs/versions.md). `pythons`, `glibc` and `isa` of a stack are what all its parts run on. IPEX compares only the major
and minor version of torch, so `works_with` lists the patches that are known to work.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

from ipexctl.errors import UserError
from ipexctl.facts.software import has_gloo_overflow
from ipexctl.file_reader import STACK_ROWS, read_regular
from ipexctl.found_files import check_own, config_directory
from ipexctl.hosts.host import did_you_mean
from ipexctl.hosts.source import SourceFile
from ipexctl.node.common.json_records import FieldDecoder, JsonError, check_type, decode, decoder_of, parse_json
from ipexctl.node.env.check import normalize
from ipexctl.text import expand_tilde

TORCH: Final = "torch"
IPEX: Final = "intel-extension-for-pytorch"
ONECCL: Final = "oneccl-bind-pt"
PyPI = Literal["available", "yanked", "absent"]
CpuWheel = Literal["published", "unverified", "none"]
Isa = Literal["avx2", "avx512"]
IndexKind = Literal["index", "links"]
RowName: TypeAlias = str
Torch: TypeAlias = str
Version: TypeAlias = str
Numbers: TypeAlias = str
Glibc: TypeAlias = str
Requirement: TypeAlias = str
Url: TypeAlias = str
Module: TypeAlias = str
Setvars: TypeAlias = str
Note: TypeAlias = str
_REQUIREMENT: Final = (
    r"[A-Za-z0-9][A-Za-z0-9._-]*((===?|[<>]=?|~=|!=)\d{1,9}(\.\d{1,9})*(\.?(a|b|rc|post|dev)\d{1,9}){0,3}"
    r"(\.\*)?(,(?=[=<>~!])|$))*"
)


def _matching(pattern: str, example: str, value: object, field: str) -> str:
    text = check_type(str, value, field)
    if not re.fullmatch(pattern, text):
        raise ValueError(f"{field} must be like {example}")
    return text


def _one_of(kind: Any, value: object, field: str) -> str:
    if value not in get_args(kind):
        raise ValueError(f"{field} is one of {', '.join(get_args(kind))}")
    return str(value)


FIELD_DECODERS: Final[Mapping[str, FieldDecoder]] = {
    "RowName": partial(_matching, r"[a-z0-9][a-z0-9._-]{0,40}", "ipex-2.8-site"),
    "Torch": partial(_matching, r"\d{1,9}\.\d{1,9}\.\d{1,9}", "2.8.0"),
    "Version": partial(_matching, r"\d{1,9}(\.\d{1,9}){1,3}", "2.8.0"),
    "Numbers": partial(_matching, r"\d{1,3}\.\d{1,3}", "3.11"),
    "Glibc": partial(_matching, r"\d{1,3}\.\d{1,3}", "2.28"),
    "Requirement": partial(_matching, _REQUIREMENT, "impi-rt>=2021.14,<2021.19"),
    "Url": partial(_matching, r"(https?|file)://\S+", "https://wheels.example.org/simple"),
    "Module": partial(_matching, r"[A-Za-z_]\w*", "oneccl_bindings_for_pytorch"),
    "Setvars": partial(_matching, r"(?!/)(?!.*\.\.)[\w./-]+", "env/setvars.sh"),
    "Note": partial(_matching, r"[^\x00-\x1f]*", "a line of text"),
    **{kind: partial(_one_of, globals()[kind]) for kind in ("PyPI", "CpuWheel", "Isa", "IndexKind")},
}


@dataclass(frozen=True, slots=True)
class IpexBuild:
    """One build of IPEX in a row."""

    version: Version
    built_for: Version
    """The torch with which it was built."""
    pythons: tuple[Numbers, ...]
    pypi: PyPI
    """Whether PyPI has the build. A yanked one can still be installed by its exact version."""
    works_with: tuple[Version, ...]
    """Patch versions of torch with which it is known to work."""
    pypi_pythons: tuple[Numbers, ...] = ()
    wheel_tag: Note | None = None
    glibc: Glibc = "2.17"
    isa: Isa = "avx2"
    note: Note = ""
    """Text for people; nothing depends on it."""
    source: Note = ""


@dataclass(frozen=True, slots=True)
class OnecclBuild:
    """One build of the oneCCL bindings (oneccl_bind_pt) in a row."""

    version: Version
    built_for: Version
    pythons: tuple[Numbers, ...]
    cpu_wheel: CpuWheel
    """`unverified`: only readmes of later versions list a CPU wheel."""
    works_with: tuple[Version, ...]
    """Patch versions of torch with which it is known to work."""
    oneccl: Note | None = None
    """Version of oneCCL inside its wheel; None if there is none inside."""
    mpi: Note | None = None
    """Version of Intel MPI inside its wheel; None if there is none inside."""
    note: Note = ""
    source: Note = ""


@dataclass(frozen=True, slots=True)
class Index:
    """A package index, or a page with links to wheels, that has builds of a row."""

    kind: IndexKind
    url: Url


@dataclass(frozen=True, slots=True)
class KnownBad:
    """A combination that fails or works badly; it applies if all of its versions are chosen."""

    what: Note
    symptom: Note
    instead: Note
    source: Note
    torch: Version | None = None
    ipex: Version | None = None
    oneccl: Version | None = None
    python: Version | None = None


@dataclass(frozen=True, slots=True)
class StackSpec:
    """A row of the version table: what can be installed together, and what it needs of a host."""

    name: RowName
    torch: Torch
    """The recommended patch version."""
    torch_patches: tuple[Version, ...]
    """All patch versions of torch that the row may install."""
    torch_pythons: tuple[Numbers, ...]
    torch_glibc: Glibc = "2.28"
    ipex_builds: tuple[IpexBuild, ...] = ()
    """Newest build first; empty for a row without IPEX."""
    oneccl_builds: tuple[OnecclBuild, ...] = ()
    """Preferred build first."""
    mpi: tuple[tuple[str, str], ...] = ()
    """(oldest glibc that it needs, requirement of impi-rt), the newest glibc first."""
    requires: tuple[Requirement, ...] = ()
    """Packages that the parts import without requiring them, and Intel's OpenMP."""
    constraints: tuple[Requirement, ...] = ()
    """Limits on versions of packages that others require."""
    hugging_face: tuple[tuple[str, str], ...] = ()
    """(transformers or accelerate, last version that works with this torch and IPEX)."""
    indexes: tuple[Index, ...] = ()
    module: Module | None = None
    """Python module of the bindings; None for a row without them."""
    setvars: Setvars | None = None
    """Script that sets the bindings' variables, relative to their module's directory; None without one."""
    known_bad: tuple[KnownBad, ...] = ()
    retired: bool = False
    """True if the row gets no more fixes."""
    note: Note = ""
    sources: tuple[Note, ...] = ()
    origin: str = ""
    """Path of the user's own table that added or changed the row; empty for a packaged row."""

    @property
    def line(self) -> str:
        """Return the major and minor version of the recommended torch, such as `2.8`."""
        return minor(self.torch)

    @property
    def patches(self) -> tuple[str, ...]:
        """Return the row's patch versions of torch: the recommended one first, then the others, newest first."""
        others = (patch for patch in self.torch_patches if patch != self.torch)
        return (self.torch, *sorted(others, key=version_key, reverse=True))

    @property
    def title(self) -> str:
        """Return the title for messages, such as `IPEX 2.8` or `torch 2.13`."""
        return f"IPEX {self.line}" if self.ipex_builds else f"torch {self.line}"

    @property
    def ipex(self) -> str | None:
        """Return the version of the row's newest IPEX build; None for a row without IPEX."""
        return self.ipex_builds[0].version if self.ipex_builds else None

    @property
    def oneccl(self) -> str | None:
        """Return the version of the bindings that were published for CPUs, preferably of a build that works with the
        recommended torch. None if no build was published, although `oneccl_builds` may then still list some."""
        return next((build.version for build in self._published), None)

    @property
    def bundled_mpi(self) -> str | None:
        """Return the version of the Intel MPI inside the bindings that `oneccl` names; None if the table names none."""
        return next((build.mpi for build in self._published), None)

    @property
    def _published(self) -> tuple[OnecclBuild, ...]:
        good = [build for build in self.oneccl_builds if build.cpu_wheel == "published"]
        return tuple(sorted(good, key=lambda build: self.torch not in build.works_with))

    @property
    def backend(self) -> Literal["ccl", "gloo"]:
        """Return the backend for torch.distributed: oneCCL if bindings for CPUs were published, else gloo."""
        return "ccl" if self.oneccl else "gloo"

    @property
    def gloo_overflow(self) -> bool:
        """True if anyone who reaches a rank's port can write into the rank."""
        return has_gloo_overflow(self.torch)

    @property
    def pythons(self) -> tuple[str, ...]:
        """Return the Pythons for which each part of the row has a build, oldest first. Bindings that were not published
        do not count."""
        common = set(self.torch_pythons)
        if self.ipex_builds:
            common &= {python for build in self.ipex_builds for python in build.pythons}
        if self.oneccl:
            common &= {python for build in self._published for python in build.pythons}
        return tuple(sorted(common, key=version_key))

    @property
    def glibc(self) -> str:
        """Return the oldest glibc on which both torch and an IPEX build of the row run."""
        floors = [self.torch_glibc]
        if self.ipex_builds:
            floors.append(min((build.glibc for build in self.ipex_builds), key=version_key))
        return max(floors, key=version_key)

    @property
    def isa(self) -> Isa | None:
        """Return the instruction set that a CPU needs; None if any x86-64 CPU will do."""
        floors = {build.isa for build in self.ipex_builds}
        return None if not floors else "avx2" if "avx2" in floors else "avx512"

    def without_oneccl(self) -> StackSpec:
        """Return the row without its bindings: its ranks communicate over gloo."""
        return replace(self, oneccl_builds=())

    def stock(self) -> StackSpec:
        """Return the row with torch alone, such as `torch-2.7` for `ipex-2.7`. A row without IPEX is returned as it
        is."""
        if not self.ipex_builds:
            return self
        return replace(
            self,
            name=f"torch-{self.line}",
            ipex_builds=(),
            oneccl_builds=(),
            requires=("numpy",),
            indexes=tuple(index for index in self.indexes if ".intel.com/" not in index.url),
            module=None,
            setvars=None,
            known_bad=(),
            retired=False,
            note="",
            sources=self.sources[:1],
        )


TABLE: Final = Path(__file__).with_name("rows.json")


@cache
def rows() -> tuple[StackSpec, ...]:
    """Return the packaged rows, newest torch first."""
    return newest_first(row_from(item) for item in packaged())


@cache
def packaged() -> tuple[Mapping[str, Any], ...]:
    """Return the packaged rows as JSON objects. Keys that a row lacks come from the row that its `like` names, and that
    row may name another in turn."""
    table = parse_json(TABLE.read_text(encoding="utf-8"))
    by_name = {row["name"]: row for row in table}

    def complete(row: Mapping[str, Any]) -> dict[str, Any]:
        like = by_name.get(row.get("like"))
        return {**({} if like is None else complete(like)), **row}

    return tuple({key: value for key, value in complete(row).items() if key != "like"} for row in table)


def newest_first(made: Iterable[StackSpec]) -> tuple[StackSpec, ...]:
    """Sort rows by torch, newest first. Among rows with the same torch, the user's own are before packaged ones, and
    rows with IPEX before those without."""
    return tuple(
        sorted(made, key=lambda row: (version_key(row.torch), bool(row.origin), row.ipex is not None), reverse=True)
    )


def row_from(data: Mapping[str, Any], origin: str = "") -> StackSpec:
    """Return the row that a JSON object describes; docs/versions.md lists the defaults. `origin`: path of the user's
    file, empty for a packaged row. Raises a ValueError if a value is invalid."""

    def value(key: str, type_: str, default: Any = ()) -> Any:
        return default if data.get(key) is None else decoder_of(type_, __name__)(data[key], key)

    torch, pythons = value("torch", "Torch"), value("torch_pythons", "tuple[Numbers, ...]")
    patches, floor = value("torch_patches", "tuple[Version, ...]") or (torch,), value("torch_glibc", "Glibc", "2.28")
    of_row = {"built_for": torch, "pythons": [*pythons], "works_with": [*patches]}
    of_ipex, of_oneccl = {"glibc": floor, "pypi": "absent"}, {"cpu_wheel": "published"}
    ipex = [decode(IpexBuild, of_row | of_ipex | _given(item), "ipex") for item in value("ipex", _OBJECTS)]
    oneccl = [decode(OnecclBuild, of_row | of_oneccl | _given(item), "oneccl") for item in value("oneccl", _OBJECTS)]
    mpi = value("mpi", "dict[str, Requirement]", {})
    for libc in mpi:
        FIELD_DECODERS["Glibc"](libc, "the glibc of mpi")
    given = {
        "torch_patches": patches,
        "torch_glibc": floor,
        "ipex_builds": tuple(sorted(ipex, key=lambda build: version_key(build.version), reverse=True)),
        "oneccl_builds": tuple(
            sorted(oneccl, key=lambda build: (build.cpu_wheel == "published", version_key(build.version)), reverse=True)
        ),
        "mpi": tuple(sorted(mpi.items(), key=lambda item: version_key(item[0]), reverse=True)),
        "hugging_face": tuple(value("hugging_face", "dict[str, Version]", {}).items()),
        "retired": value("retired", "bool", bool(ipex)),
        "origin": origin,
    }
    return decode(StackSpec, data, "the row", given)


_OBJECTS: Final = "tuple[Json, ...]"


def _given(data: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out missing values and empty lists, because these have defaults."""
    return {key: value for key, value in data.items() if value != []}


def minor(version: str) -> str:
    """Return the first two numbers of a version: `2.8` for `2.8.0`."""
    return ".".join(version.split(".")[:2])


@lru_cache(maxsize=4096)
def version_key(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, for sorting. A local version (`+cpu`) and parts with letters, such as `0rc1`,
    are left out."""
    return tuple(int(part) for part in version.partition("+")[0].split(".") if part.isdigit())


VARIABLE: Final = "IPEXCTL_ROWS"
_KINDS: Final = ("ipex", "torch")


_BUILDS: Final = {"ipex_builds": "ipex", "oneccl_builds": "oneccl"}
ROW_KEYS: Final = (
    *(_BUILDS.get(field.name, field.name) for field in fields(StackSpec) if field.name != "origin"),
    "replaces",
)
_OF_ITEMS: Final = {"ipex": IpexBuild, "oneccl": OnecclBuild, "indexes": Index, "known_bad": KnownBad}
_NAMES: Final = {key: tuple(field.name for field in fields(kind)) for key, kind in _OF_ITEMS.items()}


class _FormatError(Exception):
    def __init__(self, what: str, fix: str = "") -> None:
        super().__init__(what)
        self.what, self.fix = what, fix


def _check_keys(row: Mapping[str, object], what: str) -> None:
    """Refuse a key that a row, or an object in it, can't have; a misspelled key would otherwise be ignored."""
    places: list[tuple[str, object, tuple[str, ...]]] = [(what, row, ROW_KEYS)]
    places.append((f"'hugging_face' of {what}", row.get("hugging_face"), ("transformers", "accelerate")))
    for key, names in _NAMES.items():
        items = row.get(key)
        places += [(f"{key!r} of {what}", item, names) for item in (items if isinstance(items, list) else ())]
    for owner, entry, names in places:
        for key in entry if isinstance(entry, dict) else ():
            if key not in names:
                fix = did_you_mean(key, names, f"one of: {', '.join(names)}")
                raise _FormatError(f"{owner} has no key {key!r}", fix)


def rows_file(environ: Mapping[str, str]) -> Path | None:
    """Return the path of the user's own table: $IPEXCTL_ROWS, which may name a missing file, else rows.json in the
    user's configuration directory. None if the variable is not set and there is no such file."""
    if named := environ.get(VARIABLE):
        return expand_tilde(named)
    usual = config_directory() / "rows.json"
    try:
        return usual if usual.is_file() else None
    except PermissionError:
        raise UserError(
            f"{usual}: this account may not read it",
            fix="check the mode and owner of your home, or name another directory: XDG_CONFIG_HOME=DIR",
        ) from None


def known_rows(environ: Mapping[str, str]) -> tuple[StackSpec, ...]:
    """Return the packaged rows, changed by the user's own table if there is one. Raises a UserError if that table can't
    be read or has an invalid row."""
    path = rows_file(environ)
    if path is None:
        return rows()
    by = f" (${VARIABLE})" if environ.get(VARIABLE) else ""
    if not by:
        check_own(path)
    try:
        data = read_regular(path, STACK_ROWS)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no path"
        raise UserError(
            f"{path}{by}: {reason}", fix=f"unset {VARIABLE} to use only the packaged table" if by else ""
        ) from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path}{by}: not UTF-8 text") from None
    return merged(text, str(path))


def rows_digest(rows: Iterable[StackSpec]) -> str | None:
    """Return a short hash of the rows that the user's own table added or changed; None if there are none. The path of
    that table does not count.

    Requests in env.json contain the hash, so an install after a change of the table does not find the old environment
    again.
    """
    own = [replace(row, origin="") for row in rows if row.origin]
    return hashlib.sha256(repr(own).encode()).hexdigest()[:16] if own else None


def merged(text: str, path: str) -> tuple[StackSpec, ...]:
    """Return the packaged rows together with those of `text`, the user's own table. A row with a new name is added; one
    with a packaged row's name changes that row key by key. `path` is named in errors."""
    try:
        own = _rows_of(parse_json(text), path)
    except JsonError as error:
        at, source = error.position or 0, SourceFile(path, Path(path).parent, text.split("\n"))
        fix = "JSON needs double quotes around names and texts, and has no comma after the last item"
        line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
        raise source.error(line, column, error.problem, fix=fix) from None
    except _FormatError as error:
        raise UserError(f"{path}: {error.what}", fix=error.fix or "docs/versions.md shows the format") from None
    return newest_first({**{row.name: row for row in rows()}, **own}.values())


def _rows_of(document: object, path: str) -> dict[str, StackSpec]:
    """Return name → row of a user's table. Raises a _FormatError for the first mistake."""
    if not isinstance(document, list):
        raise _FormatError("the file must be a list of rows", '[{"name": "ipex-2.8", ...}]')
    own_rows: dict[str, StackSpec] = {}
    for own in document:
        if not isinstance(own, dict):
            raise _FormatError("a row must be an object", "{...}")
        shown = own.get("name")
        what = f"the row {shown!r}" if isinstance(shown, str) and len(shown) < 100 else "a row"
        _check_keys(own, what)
        try:
            name = FIELD_DECODERS["RowName"](own.get("name"), "name")
            row = _row_of(name, own, path)
        except ValueError as error:
            raise _FormatError(f"{what}: {error}") from None
        if name in own_rows:
            raise _FormatError(f"the row {name!r} occurs twice")
        own_rows[name] = row
    return own_rows


def _row_of(name: str, own: Mapping[str, Any], path: str) -> StackSpec:
    """Return the row of a user's table, with the values of the packaged row of its name for keys that it lacks."""
    if name in _KINDS:
        raise _FormatError(f"{name!r} already means the newest row of that kind", "choose another name for the row")
    by_name = {str(row["name"]): row for row in packaged()}
    packaged_row = by_name.get(name, {})
    data: dict[str, Any] = {**packaged_row, **own, "requires": _requirements(packaged_row, own)}
    if packaged_row and "torch_patches" not in own and data["torch"] not in data["torch_patches"]:
        data["torch_patches"] = [*data["torch_patches"], data["torch"]]
    for needed in ("torch", "torch_pythons"):
        if not data.get(needed):
            raise _FormatError(
                f"the row {name!r} has no {needed!r}, which a new row needs", did_you_mean(name, by_name)
            )
    row = row_from(data, path)
    if row.torch not in row.torch_patches:
        raise _FormatError(f"the row {name!r}: torch {row.torch} is not among the 'torch_patches'")
    builds = [*((build.version, build.works_with) for build in row.ipex_builds)]
    builds += [(build.version, build.works_with) for build in row.oneccl_builds]
    for version, works_with in builds:
        if not set(works_with) & set(row.torch_patches):
            what = f"the row {name!r}: version {version} works with no torch of this row"
            raise _FormatError(what, "see its 'works_with'")
    if row.oneccl_builds and not row.ipex_builds:
        raise _FormatError(f"the row {name!r} cannot have oneCCL bindings without IPEX")
    return row


def _requirements(packaged_row: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    """Return what a row requires: the packaged requirements with the user's own `requires` added, which win for the
    same project. With `replaces`, its lines stand in place of all packaged ones."""
    added, replaced = (_decode_requirements(own.get(key) or [], key) for key in ("requires", "replaces"))
    projects = {project_of(line) for line in added}
    base = replaced if "replaces" in own else packaged_row.get("requires", [])
    return [*(line for line in base if project_of(line) not in projects), *added]


def project_of(requirement: str) -> str:
    """Return `impi-rt` for `impi-rt>=2021.14,<2021.19`."""
    return normalize(re.split("[<>=!~ ]", requirement, maxsplit=1)[0])


_decode_requirements: Final = decoder_of("tuple[Requirement, ...]", row_from.__module__)
