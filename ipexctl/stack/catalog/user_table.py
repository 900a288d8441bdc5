"""A user's rows: a JSON file that adds rows to the version table, or changes packaged ones.

`schema` and docs/versions.md describe the format.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ipexctl.errors import FileError, UserError
from ipexctl.stack.catalog.json_positions import FormatError, JsonNode, line_of, read
from ipexctl.stack.catalog.schema import check_row
from ipexctl.stack.catalog.table import StackSpec, newest_first, packaged, row_from, rows
from ipexctl.stack.lock.wheels import split_requirement

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


VARIABLE: Final = "IPEXCTL_ROWS"
_LARGEST: Final = 4_000_000
_KINDS: Final = ("ipex", "torch")


def rows_file(environ: Mapping[str, str]) -> Path | None:
    """The user's file: $IPEXCTL_ROWS, else rows.json in their configuration if it exists."""
    if named := environ.get(VARIABLE):
        return Path(named).expanduser()
    import platformdirs

    usual = Path(platformdirs.user_config_dir("ipexctl", appauthor=False)) / "rows.json"
    return usual if usual.is_file() else None


def known_rows(environ: Mapping[str, str]) -> tuple[StackSpec, ...]:
    """The version table with the user's rows, newest first. Raises a FileError for a bad file."""
    path = rows_file(environ)
    if path is None:
        return rows()
    by = f" (${VARIABLE})" if environ.get(VARIABLE) else ""
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "no path"
        raise UserError(
            f"{path}{by}: {why}", fix=f"unset {VARIABLE} to use the packaged table alone" if by else ""
        ) from None
    if len(data) > _LARGEST:
        raise UserError(f"{path}{by}: too large for a version table")
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
        own = _read_rows(text, path)
    except FormatError as error:
        line, shown, column = line_of(text, error.at)
        raise FileError(path, line, error.what, text=shown, column=column, fix=error.fix) from None
    return newest_first({**{row.name: row for row in rows()}, **own}.values())


def _read_rows(text: str, path: str) -> dict[str, StackSpec]:
    document = read(text)
    if not isinstance(document.value, list):
        raise FormatError("the file must be a list of rows", document.at, '[{"name": "ipex-2.8", ...}]')
    found: dict[str, StackSpec] = {}
    for node, own in zip(document.value, json.loads(text), strict=True):
        row = _read_row(node, own, path)
        if row.name in found:
            raise FormatError(f"the row {row.name!r} occurs twice", node.at, "")
        found[row.name] = row
    return found


def _read_row(node: JsonNode, own: Mapping[str, Any], path: str) -> StackSpec:
    check_row(node, "a row")
    keys = node.value if isinstance(node.value, dict) else {}
    name = str(keys["name"].value)
    if name in _KINDS:
        what = f"{name!r} is the name of the newest row of that kind"
        raise FormatError(what, keys["name"].at, "choose another name for the row")
    by_name = {str(row["name"]): row for row in packaged()}
    packaged_row = by_name.get(name, {})
    data: dict[str, Any] = {**packaged_row, **own, "requires": _requirements(packaged_row, own)}
    if packaged_row and "torch" in keys and "torch_patches" not in keys:
        data["torch_patches"] = list(dict.fromkeys([*data["torch_patches"], data["torch"]]))
    for needed in ("torch", "torch_pythons"):
        if not data.get(needed):
            near = get_close_matches(name, by_name, n=1)
            fix = f"to change a packaged row use its exact name, such as {near[0]!r}" if near else ""
            raise FormatError(f"the row {name!r} has no {needed!r}", node.at, fix)
    row = row_from(data, path)
    _check_together(row, keys, node)
    return row


def _check_together(row: StackSpec, keys: Mapping[str, JsonNode], node: JsonNode) -> None:
    """Check keys against one another."""
    if row.torch not in row.torch_patches:
        at = keys.get("torch_patches", node).at
        raise FormatError(f"torch {row.torch} is not among the 'torch_patches'", at, "")
    for key, builds in (("ipex", row.ipex_builds), ("oneccl", row.oneccl_builds)):
        for build in builds:
            if not set(build.works_with) & set(row.torch_patches):
                what = f"{key} {build.version} works with no torch of this row"
                raise FormatError(what, keys.get(key, node).at, "see its 'works_with'")
    if row.oneccl_builds and not row.ipex_builds:
        raise FormatError("a row cannot have oneCCL bindings without IPEX", keys.get("oneccl", node).at, "")


def _requirements(packaged_row: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    """The user's `requires` adds to the packaged row, and wins for the same project; `replaces` replaces all of it."""
    added = own.get("requires", [])
    projects = {split_requirement(line)[0] for line in added}
    base = own.get("replaces", packaged_row.get("requires", []))
    return [*(line for line in base if split_requirement(line)[0] not in projects), *added]
