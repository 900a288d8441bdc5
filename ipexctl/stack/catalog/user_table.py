"""A user's rows: a JSON file that adds rows to the version table or changes packaged ones (docs/versions.md).

The types of the fields in `table.py` say what a value may be.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from ipexctl.errors import UserError
from ipexctl.file_reader import STACK_ROWS, read_regular
from ipexctl.found_files import check_own, config_directory
from ipexctl.hosts.names import did_you_mean
from ipexctl.hosts.source import SourceFile
from ipexctl.node.common.json_parser import JsonError, parse_json
from ipexctl.node.common.json_records import decoder_of
from ipexctl.stack.catalog.table import (
    FIELD_DECODERS,
    Index,
    IpexBuild,
    KnownBad,
    OnecclBuild,
    StackSpec,
    newest_first,
    packaged,
    row_from,
    rows,
)
from ipexctl.stack.lock.wheels import split_requirement
from ipexctl.text import expanded

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
    """Raise a _FormatError for a key that neither rows nor their items have."""
    places: list[tuple[str, object, tuple[str, ...]]] = [(what, row, ROW_KEYS)]
    places.append((f"'hugging_face' of {what}", row.get("hugging_face"), ("transformers", "accelerate")))
    for key, names in _NAMES.items():
        items = row.get(key)
        places += [(f"{key!r} of {what}", item, names) for item in (items if isinstance(items, list) else ())]
    for place, found, names in places:
        for key in found if isinstance(found, dict) else ():
            if key not in names:
                fix = did_you_mean(key, names, f"there are: {', '.join(names)}")
                raise _FormatError(f"no key of {place} is called {key!r}", fix)


def rows_file(environ: Mapping[str, str]) -> Path | None:
    """$IPEXCTL_ROWS, else rows.json in the user's configuration if it exists."""
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
    own = [replace(row, origin="") for row in rows if row.origin]
    return hashlib.sha256(repr(own).encode()).hexdigest()[:16] if own else None


def merged(text: str, path: str) -> tuple[StackSpec, ...]:
    """Packaged rows with the rows of `text` added, or merged key by key into rows of the same name."""
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
        if name in found:
            raise _FormatError(f"the row {name!r} occurs twice")
        found[name] = row
    return found


def _row_of(name: str, own: Mapping[str, Any], path: str) -> StackSpec:
    if name in _KINDS:
        raise _FormatError(f"{name!r} is the name of the newest row of that kind", "choose another name for the row")
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
    """The user's `requires` adds to the packaged row and wins for the same project; `replaces` replaces all of it."""
    added, replaced = (_decode_requirements(own.get(key) or [], key) for key in ("requires", "replaces"))
    projects = {split_requirement(line)[0] for line in added}
    base = replaced if "replaces" in own else packaged_row.get("requires", [])
    return [*(line for line in base if split_requirement(line)[0] not in projects), *added]


_decode_requirements: Final = decoder_of("tuple[Requirement, ...]", row_from.__module__)
