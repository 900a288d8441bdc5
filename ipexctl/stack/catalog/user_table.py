"""A user's rows: a JSON file that adds rows to the version table, or changes packaged ones.

docs/versions.md describes the format. An error has the line and column of the value: the file is read by a small reader
that keeps the position of every value. `hosts/yaml_tree` can't read it: YAML 1.1 takes single quotes, comments and
trailing commas, reads 1e3 as a text, and refuses characters beyond U+FFFF as JSON writes them ("\\ud83d\\ude00").
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

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
_FIX_VALUE: Final = "write a list of rows, as docs/versions.md shows it"
_BLANK: Final = " \t\r\n"
_FIX: Final = "JSON needs double quotes around names and texts, and has no comma after the last item"
_DECODER: Final = json.JSONDecoder()


class FormatError(Exception):
    """An error at a position of the text, with the fix."""

    def __init__(self, what: str, at: int, fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.at = at
        self.fix = fix


@dataclass(frozen=True, slots=True)
class JsonNode:
    """A value and its position; items of lists and objects are nodes too."""

    value: str | int | float | bool | list[JsonNode] | dict[str, JsonNode] | None
    at: int
    key_at: int = 0
    """The position of its key, for a value of an object."""


def parse_nodes(text: str) -> tuple[JsonNode, Any]:
    """The nodes and the plain value of JSON. Raises FormatError with the position."""
    try:
        value = parse_json(text)
    except JsonError as error:
        is_syntax = error.position is not None
        raise FormatError(error.problem, error.position or 0, _FIX if is_syntax else _FIX_VALUE) from None
    return _value(text, _skip(text, 0))[0], value


def _value(text: str, at: int) -> tuple[JsonNode, int]:
    """The value at this position of valid JSON, and the position after it."""
    if text[at] not in "[{":
        value, end = _DECODER.raw_decode(text, at)
        return JsonNode(value, at), end
    items: list[JsonNode] = []
    nodes: dict[str, JsonNode] = {}
    end = _skip(text, at + 1)
    while text[end] not in "]}":
        if text[at] == "[":
            item, end = _value(text, end)
            items.append(item)
        else:
            key_at = end
            key, end = _DECODER.raw_decode(text, end)
            item, end = _value(text, _skip(text, _skip(text, end) + 1))
            if key in nodes:
                raise FormatError(f"{key!r} is there twice", key_at, "remove one of them")
            nodes[key] = JsonNode(item.value, item.at, key_at)
        end = _skip(text, end)
        if text[end] == ",":
            end = _skip(text, end + 1)
    return JsonNode(items if text[at] == "[" else nodes, at), end + 1


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _BLANK:
        at += 1
    return at


Check = Callable[[JsonNode, str], None]
"""Raises a FormatError if a value, which has this name in messages, has another format."""
_TWO_NUMBERS: Final = r"\d{1,3}\.\d{1,3}"


def _text(
    meaning: str = "a text", example: str = "", pattern: str = r"[^\x00-\x1f]*", *, nullable: bool = False
) -> Check:
    def check(node: JsonNode, what: str) -> None:
        is_text = isinstance(node.value, str) and re.fullmatch(pattern, node.value)
        if not is_text and not (nullable and node.value is None):
            raise FormatError(f"{what} must be {meaning}", node.at, f'such as "{example}"' if example else "")

    return check


def _one_of(*words: str) -> Check:
    def check(node: JsonNode, what: str) -> None:
        if node.value not in words:
            raise FormatError(f"{what} is one of {', '.join(words)}", node.at, did_you_mean(str(node.value), words))

    return check


def _true_or_false(node: JsonNode, what: str) -> None:
    if not isinstance(node.value, bool):
        raise FormatError(f"{what} must be true or false", node.at)


def _list_of(check_item: Check) -> Check:
    def check(node: JsonNode, what: str) -> None:
        if not isinstance(node.value, list):
            raise FormatError(f"{what} must be a list", node.at, "[...]")
        for item in node.value:
            check_item(item, f"an item of {what}")

    return check


def _by_glibc(check_value: Check) -> Check:
    """An object whose keys are versions of glibc."""

    def check(node: JsonNode, what: str) -> None:
        if not isinstance(node.value, dict):
            raise FormatError(f"{what} must be an object", node.at, '{"2.28": "impi-rt>=2021.14,<2021.19"}')
        for key, item in node.value.items():
            if not re.fullmatch(_TWO_NUMBERS, key):
                raise FormatError(f"{key!r} must be the oldest glibc that it is for", item.key_at, 'such as "2.28"')
            check_value(item, f"{what} of glibc {key}")

    return check


def _keys(known: Mapping[str, Check], needed: tuple[str, ...]) -> Check:
    """An object with these keys, some of them required."""

    def check(node: JsonNode, what: str) -> None:
        if not isinstance(node.value, dict):
            raise FormatError(f"{what} must be an object", node.at, "{...}")
        for key, item in node.value.items():
            if key not in known:
                fix = did_you_mean(key, known, f"there are: {', '.join(known)}")
                raise FormatError(f"no key of {what} is called {key!r}", item.key_at, fix)
            known[key](item, repr(key))
        for key in needed:
            if key not in node.value:
                raise FormatError(f"{key!r} is missing in {what}", node.at)

    return check


_VERSION: Final = _text("a version", "2.8.0", r"\d+(\.\d+){1,3}")
_NUMBERS: Final = _text("two numbers", "3.11", _TWO_NUMBERS)
_REQUIREMENT: Final = _text(
    "a requirement as for pip",
    "impi-rt>=2021.14,<2021.19",
    r"[A-Za-z0-9][A-Za-z0-9._-]*((===?|[<>]=?|~=|!=)[A-Za-z0-9.]+(\.\*)?(,(?=[=<>~!])|$))*",
)
_NOTE: Final = _text()
_MAYBE: Final = _text(nullable=True)
_BUILD: Final = {
    "version": _VERSION,
    "built_for": _VERSION,
    "works_with": _list_of(_VERSION),
    "pythons": _list_of(_NUMBERS),
    "note": _NOTE,
    "source": _NOTE,
}
_IPEX: Final = {
    **_BUILD,
    "pypi": _one_of("available", "yanked", "absent"),
    "pypi_pythons": _list_of(_NUMBERS),
    "wheel_tag": _MAYBE,
    "glibc": _NUMBERS,
    "isa": _one_of("avx2", "avx512"),
}
_ONECCL: Final = {
    **_BUILD,
    "cpu_wheel": _one_of("published", "unverified", "none"),
    "oneccl": _MAYBE,
    "mpi": _MAYBE,
}
_INDEX: Final = {
    "kind": _one_of("index", "links"),
    "url": _text("a URL", "https://wheels.example.org/simple", r"(https?|file)://\S+"),
}
_KNOWN_BAD: Final = {
    **dict.fromkeys(("torch", "ipex", "oneccl", "python"), _VERSION),
    **dict.fromkeys(("what", "symptom", "instead", "source"), _NOTE),
}
ROW_KEYS: Final[Mapping[str, Check]] = {
    "name": _text("small letters, digits, dots and dashes", "ipex-2.8-site", r"[a-z0-9][a-z0-9._-]{0,40}"),
    "torch": _text("a version with its patch", "2.8.0", r"\d+\.\d+\.\d+"),
    "torch_patches": _list_of(_VERSION),
    "torch_pythons": _list_of(_NUMBERS),
    "torch_glibc": _NUMBERS,
    "ipex": _list_of(_keys(_IPEX, ("version",))),
    "oneccl": _list_of(_keys(_ONECCL, ("version",))),
    "mpi": _by_glibc(_REQUIREMENT),
    "requires": _list_of(_REQUIREMENT),
    "replaces": _list_of(_REQUIREMENT),
    "constraints": _list_of(_REQUIREMENT),
    "hugging_face": _keys({"transformers": _VERSION, "accelerate": _VERSION}, ()),
    "indexes": _list_of(_keys(_INDEX, ("kind", "url"))),
    "module": _text("a module's name", "oneccl_bindings_for_pytorch", r"[A-Za-z_]\w*", nullable=True),
    "setvars": _text(
        "a path below the module's directory", "env/setvars.sh", r"(?!/)(?!.*\.\.)[\w./-]+", nullable=True
    ),
    "known_bad": _list_of(_keys(_KNOWN_BAD, ("what", "symptom", "instead", "source"))),
    "retired": _true_or_false,
    "note": _NOTE,
    "sources": _list_of(_NOTE),
}
check_row: Final = _keys(ROW_KEYS, ("name",))


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
        own = _read_rows(text, path)
    except FormatError as error:
        source = SourceFile(path, Path(path).parent, text.split("\n"))
        line, column = text.count("\n", 0, error.at) + 1, error.at - text.rfind("\n", 0, error.at)
        raise source.error(line, column, error.what, fix=error.fix) from None
    return newest_first({**{row.name: row for row in rows()}, **own}.values())


def _read_rows(text: str, path: str) -> dict[str, StackSpec]:
    document, rows_of_user = parse_nodes(text)
    if not isinstance(document.value, list):
        raise FormatError("the file must be a list of rows", document.at, '[{"name": "ipex-2.8", ...}]')
    found: dict[str, StackSpec] = {}
    for node, own in zip(document.value, rows_of_user, strict=True):
        row = _read_row(node, own, path)
        if row.name in found:
            raise FormatError(f"the row {row.name!r} occurs twice", node.at)
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
            what = f"the row {name!r} has no {needed!r}, which a new row needs"
            raise FormatError(what, node.at, did_you_mean(name, by_name))
    row = row_from(data, path)
    _check_together(row, keys, node)
    return row


def _check_together(row: StackSpec, keys: Mapping[str, JsonNode], node: JsonNode) -> None:
    """Check keys against one another."""
    if row.torch not in row.torch_patches:
        at = keys.get("torch_patches", node).at
        raise FormatError(f"torch {row.torch} is not among the 'torch_patches'", at)
    for key, builds in (("ipex", row.ipex_builds), ("oneccl", row.oneccl_builds)):
        for build in builds:
            if not set(build.works_with) & set(row.torch_patches):
                what = f"{key} {build.version} works with no torch of this row"
                raise FormatError(what, keys.get(key, node).at, "see its 'works_with'")
    if row.oneccl_builds and not row.ipex_builds:
        raise FormatError("a row cannot have oneCCL bindings without IPEX", keys.get("oneccl", node).at)


def _requirements(packaged_row: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    """The user's `requires` adds to the packaged row, and wins for the same project; `replaces` replaces all of it."""
    added = own.get("requires", [])
    projects = {split_requirement(line)[0] for line in added}
    base = own.get("replaces", packaged_row.get("requires", []))
    return [*(line for line in base if split_requirement(line)[0] not in projects), *added]
