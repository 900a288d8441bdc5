"""A user's rows: a JSON file that adds rows to the version table, or changes packaged ones.

In comes the file that docs/versions.md describes; out come the rows of the table with those of the user, or a UserError
that names the row and the key. The format is the table `_ROW` below: each value has a pattern, a type, or a list or an
object of such.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ipexctl.errors import UserError
from ipexctl.file_reader import STACK_ROWS, read_regular
from ipexctl.found_files import check_own
from ipexctl.hosts.names import did_you_mean
from ipexctl.hosts.source import SourceFile
from ipexctl.node.common.json_parser import JsonError, parse_json
from ipexctl.stack.catalog.table import StackSpec, newest_first, packaged, row_from, rows
from ipexctl.stack.lock.wheels import split_requirement
from ipexctl.text import expanded
from ipexctl.user_config import config_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


VARIABLE: Final = "IPEXCTL_ROWS"
_KINDS: Final = ("ipex", "torch")


class _Text(NamedTuple):
    """A text that matches a pattern."""

    example: str = ""
    pattern: str = r"[^\x00-\x1f]*"
    nullable: bool = False


class _Object(NamedTuple):
    """An object with these keys, some of them required."""

    keys: Mapping[str, Any]
    needed: tuple[str, ...] = ()


_NOTE, _MAYBE = _Text(), _Text(nullable=True)
_VERSION: Final = _Text("2.8.0", r"\d{1,9}(\.\d{1,9}){1,3}")
_NUMBERS: Final = _Text("3.11", r"\d{1,3}\.\d{1,3}")
_REQUIREMENT: Final = _Text(
    "impi-rt>=2021.14,<2021.19",
    r"[A-Za-z0-9][A-Za-z0-9._-]*((===?|[<>]=?|~=|!=)\d{1,9}(\.\d{1,9})*(\.?(a|b|rc|post|dev)\d{1,9}){0,3}(\.\*)?(,(?=[=<>~!])|$))*",
)
_BUILD: Final = {
    "version": _VERSION, "built_for": _VERSION, "works_with": [_VERSION], "pythons": [_NUMBERS], "note": _NOTE,
    "source": _NOTE,
}  # fmt: skip
_IPEX: Final = {
    **_BUILD,
    "pypi": ("available", "yanked", "absent"),
    "pypi_pythons": [_NUMBERS],
    "wheel_tag": _MAYBE,
    "glibc": _NUMBERS,
    "isa": ("avx2", "avx512"),
}
_ONECCL: Final = {**_BUILD, "cpu_wheel": ("published", "unverified", "none"), "oneccl": _MAYBE, "mpi": _MAYBE}
_INDEX: Final = {
    "kind": ("index", "links"),
    "url": _Text("https://wheels.example.org/simple", r"(https?|file)://\S+"),
}
_OF_PROBLEM: Final = ("what", "symptom", "instead", "source")
_KNOWN_BAD: Final = {
    **dict.fromkeys(("torch", "ipex", "oneccl", "python"), _VERSION),
    **dict.fromkeys(_OF_PROBLEM, _NOTE),
}
_ROW: Final[Mapping[str, Any]] = {
    "name": _Text("ipex-2.8-site", r"[a-z0-9][a-z0-9._-]{0,40}"),
    "torch": _Text("2.8.0", r"\d{1,9}\.\d{1,9}\.\d{1,9}"),
    "torch_patches": [_VERSION],
    "torch_pythons": [_NUMBERS],
    "torch_glibc": _NUMBERS,
    "ipex": [_Object(_IPEX, ("version",))],
    "oneccl": [_Object(_ONECCL, ("version",))],
    "mpi": {_NUMBERS.pattern: _REQUIREMENT},
    "requires": [_REQUIREMENT],
    "replaces": [_REQUIREMENT],
    "constraints": [_REQUIREMENT],
    "hugging_face": _Object({"transformers": _VERSION, "accelerate": _VERSION}),
    "indexes": [_Object(_INDEX, ("kind", "url"))],
    "module": _Text("oneccl_bindings_for_pytorch", r"[A-Za-z_]\w*", nullable=True),
    "setvars": _Text("env/setvars.sh", r"(?!/)(?!.*\.\.)[\w./-]+", nullable=True),
    "known_bad": [_Object(_KNOWN_BAD, _OF_PROBLEM)],
    "retired": bool,
    "note": _NOTE,
    "sources": [_NOTE],
}
"""The keys of a row. A list has items of its one format, a tuple the words of which the value is one; a mapping has the
pattern of its keys, which are versions of glibc."""
ROW_KEYS: Final = tuple(_ROW)


class _FormatError(Exception):
    """A value of the file that it can't have, with the fix."""

    def __init__(self, what: str, fix: str = "") -> None:
        super().__init__(what)
        self.what, self.fix = what, fix


def check_row(row: object) -> None:
    """Raises a _FormatError for a row that has not the format."""
    name = row.get("name") if isinstance(row, dict) else None
    what = f"the row {name!r}" if isinstance(name, str) and len(name) < 100 else "a row"
    _check_object(row, _Object(_ROW, ("name",)), what)


def _check(value: object, form: Any, what: str) -> None:
    if isinstance(form, list):
        if not isinstance(value, list):
            raise _FormatError(f"{what} must be a list", "[...]")
        for number, item in enumerate(value, start=1):
            _check(item, form[0], f"item {number} of {what}")
    elif isinstance(form, _Object):
        _check_object(value, form, what)
    elif isinstance(form, dict):
        _check_mapping(value, form, what)
    elif form is bool:
        if not isinstance(value, bool):
            raise _FormatError(f"{what} must be true or false")
    elif not isinstance(form, _Text):
        if value not in form:
            raise _FormatError(f"{what} is one of {', '.join(form)}", did_you_mean(str(value), form))
    else:
        _check_text(value, form, what)


def _check_text(value: object, form: _Text, what: str) -> None:
    if value is None and form.nullable:
        return
    if not isinstance(value, str):
        raise _FormatError(f"{what} must be a text", f'such as "{form.example}"' if form.example else "")
    if not re.fullmatch(form.pattern, value):
        raise _FormatError(f"{what} has another format", f'such as "{form.example}"' if form.example else "")


def _check_object(value: object, form: _Object, what: str) -> None:
    found = dict(_items_of(value, what))
    for key, item in found.items():
        if key not in form.keys:
            fix = did_you_mean(key, form.keys, f"there are: {', '.join(form.keys)}")
            raise _FormatError(f"no key of {what} is called {key!r}", fix)
        _check(item, form.keys[key], f"{key!r} of {what}")
    if missing := [key for key in form.needed if key not in found]:
        raise _FormatError(f"{missing[0]!r} is missing in {what}")


def _check_mapping(value: object, form: Mapping[str, Any], what: str) -> None:
    ((pattern, form_of_value),) = form.items()
    for key, item in _items_of(value, what):
        if not re.fullmatch(pattern, key):
            raise _FormatError(f"{key!r} in {what} must be the oldest glibc that it is for", 'such as "2.28"')
        _check(item, form_of_value, f"{key!r} of {what}")


def _items_of(value: object, what: str) -> Iterable[tuple[str, object]]:
    if not isinstance(value, dict):
        raise _FormatError(f"{what} must be an object", "{...}")
    return value.items()


def rows_file(environ: Mapping[str, str]) -> Path | None:
    """The user's file: $IPEXCTL_ROWS, else rows.json in their configuration if it exists."""
    if named := environ.get(VARIABLE):
        return expanded(named)
    usual = config_directory() / "rows.json"
    try:
        return usual if usual.is_file() else None
    except PermissionError:
        raise UserError(
            f"{usual}: this account may not look there",
            fix="check the mode and owner of your home, or name another directory: XDG_CONFIG_HOME=DIR",
        ) from None


def known_rows(environ: Mapping[str, str]) -> tuple[StackSpec, ...]:
    """The version table with the user's rows, newest first. Raises a FileError for a bad file."""
    path = rows_file(environ)
    if path is None:
        return rows()
    by = f" (${VARIABLE})" if environ.get(VARIABLE) else ""
    if not by:
        check_own(path)
    try:
        data = read_regular(path, STACK_ROWS)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "no path"
        raise UserError(
            f"{path}{by}: {why}", fix=f"unset {VARIABLE} to use the packaged table alone" if by else ""
        ) from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path}{by}: not UTF-8 text") from None
    return merged(text, str(path))


def rows_digest(rows: Iterable[StackSpec]) -> str | None:
    """A hash of the user's rows; None if there are none."""
    own = [replace(row, origin="") for row in rows if row.origin]
    return hashlib.sha256(repr(own).encode()).hexdigest()[:16] if own else None


def merged(text: str, path: str) -> tuple[StackSpec, ...]:
    """The packaged rows, with the rows of this text added or merged key by key into those of the same name."""
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
    if not isinstance(document, list):
        raise _FormatError("the file must be a list of rows", '[{"name": "ipex-2.8", ...}]')
    found: dict[str, StackSpec] = {}
    for own in document:
        check_row(own)
        if own["name"] in found:
            raise _FormatError(f"the row {own['name']!r} occurs twice")
        found[own["name"]] = _row_of(own, path)
    return found


def _row_of(own: Mapping[str, Any], path: str) -> StackSpec:
    name = own["name"]
    if name in _KINDS:
        raise _FormatError(f"{name!r} is the name of the newest row of that kind", "choose another name for the row")
    by_name = {str(row["name"]): row for row in packaged()}
    packaged_row = by_name.get(name, {})
    data: dict[str, Any] = {**packaged_row, **own, "requires": _requirements(packaged_row, own)}
    if packaged_row and "torch" in own and "torch_patches" not in own:
        data["torch_patches"] = list(dict.fromkeys([*data["torch_patches"], data["torch"]]))
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
    """The user's `requires` adds to the packaged row, and wins for the same project; `replaces` replaces all of it."""
    added = own.get("requires", [])
    projects = {split_requirement(line)[0] for line in added}
    base = own.get("replaces", packaged_row.get("requires", []))
    return [*(line for line in base if split_requirement(line)[0] not in projects), *added]
