"""A user's own rows: a JSON file of theirs that adds rows to the version table, or changes some of ours.

What may stand in it is `row_format`'s, and in docs/versions.md; the values are made by `table`.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ipexctl.errors import FileError, UserError
from ipexctl.stack.catalog.json_positions import NotJson, line_of, plain, read
from ipexctl.stack.catalog.schema import ROW
from ipexctl.stack.catalog.table import newest_first, packaged, row_from, rows
from ipexctl.stack.lock.wheels import split_requirement

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ipexctl.stack.catalog.json_positions import Place
    from ipexctl.stack.catalog.table import StackSpec

VARIABLE: Final = "IPEXCTL_ROWS"
_LARGEST: Final = 4_000_000
_KINDS: Final = ("ipex", "torch")


def rows_file(environ: Mapping[str, str]) -> Path | None:
    """The user's file: what $IPEXCTL_ROWS names, or the one in their configuration where that is there."""
    if named := environ.get(VARIABLE):
        return Path(named).expanduser()
    import platformdirs

    usual = Path(platformdirs.user_config_dir("ipexctl", appauthor=False)) / "rows.json"
    return usual if usual.is_file() else None


def known_rows(environ: Mapping[str, str]) -> tuple[StackSpec, ...]:
    """The whole table, with the user's own rows, newest first. A bad file is a FileError."""
    path = rows_file(environ)
    if path is None:
        return rows()
    by = f" (${VARIABLE})" if environ.get(VARIABLE) else ""
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "no path"
        raise UserError(f"{path}{by}: {why}", fix=f"unset {VARIABLE} to go by our table alone" if by else "") from None
    if len(data) > _LARGEST:
        raise UserError(f"{path}{by}: larger than any version table")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path}{by}: this is not UTF-8 text") from None
    return merged(text, str(path))


def merged(text: str, path: str) -> tuple[StackSpec, ...]:
    """Our rows with those of this text added, or put over ours of the same name key by key."""
    return _Reader(text, path).rows()


class _Reader:
    def __init__(self, text: str, path: str) -> None:
        self._text = text
        self._path = path
        self._ours = {str(row["name"]): row for row in packaged()}

    def rows(self) -> tuple[StackSpec, ...]:
        try:
            top = read(self._text)
        except NotJson as error:
            self._fail(error.what, error.at, "JSON has names and texts in double quotes, and no comma behind the last")
        if not isinstance(top.value, list):
            self._fail("the file must be a list of rows", top.at, '[{"name": "ipex-2.8", ...}]')
        found = {name: row_from(row) for name, row in self._ours.items()}
        seen: set[str] = set()
        for place in top.value:
            row = self._row(place)
            if row.name in seen:
                self._fail(f"the row {row.name!r} is there twice", place.at)
            seen.add(row.name)
            found[row.name] = row
        return newest_first(found.values())

    def _row(self, place: Place) -> StackSpec:
        for wrong in ROW.wrong(place, "a row"):
            self._fail(wrong.what, wrong.at, wrong.fix)
        said = place.value if isinstance(place.value, dict) else {}
        name = str(said["name"].value)
        if name in _KINDS:
            self._fail(f"{name!r} means the newest row of that kind", said["name"].at, "give the row another name")
        packaged_row, own = self._ours.get(name, {}), {key: plain(value) for key, value in said.items()}
        data: dict[str, Any] = {**packaged_row, **own, "requires": _requirements(packaged_row, own)}
        if name in self._ours and "torch" in said and "torch_patches" not in said:
            data["torch_patches"] = list(dict.fromkeys([*data["torch_patches"], data["torch"]]))
        for needed in ("torch", "torch_pythons"):
            if not data.get(needed):
                near = get_close_matches(name, self._ours, n=1)
                fix = f"to change a row of ours give its very name, such as {near[0]!r}" if near else ""
                self._fail(f"the row {name!r} has no {needed!r}", place.at, fix)
        row = row_from(data, self._path)
        self._check_together(row, said, place)
        return row

    def _check_together(self, row: StackSpec, said: Mapping[str, Place], place: Place) -> None:
        """What each key may say, but not beside the others."""
        if row.torch not in row.torch_patches:
            at = said.get("torch_patches", place).at
            self._fail(f"torch {row.torch} is not among the 'torch_patches'", at)
        for key, builds in (("ipex", row.ipex_builds), ("oneccl", row.oneccl_builds)):
            for build in builds:
                if not set(build.works_with) & set(row.torch_patches):
                    at = said.get(key, place).at
                    self._fail(f"{key} {build.version} works with no torch of this row", at, "see its 'works_with'")
        if row.oneccl_builds and not row.ipex_builds:
            self._fail("oneCCL bindings without IPEX are no stack of ours", said.get("oneccl", place).at)

    def _fail(self, what: str, at: int, fix: str = "") -> NoReturn:
        line, text, column = line_of(self._text, at)
        raise FileError(self._path, line, what, text=text, column=column, fix=fix)


def _requirements(packaged_row: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    """The user's `requires` adds to the packaged row, and wins for the same project; `replaces` replaces all of it."""
    added = own.get("requires", [])
    projects = {split_requirement(line)[0] for line in added}
    base = own.get("replaces", packaged_row.get("requires", []))
    return [*(line for line in base if split_requirement(line)[0] not in projects), *added]
