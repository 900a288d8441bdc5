"""The format of a row in rows.json; errors have their position. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Final

from ipexctl.stack.catalog.json_positions import FormatError, JsonNode

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
            near = get_close_matches(str(node.value), words, n=1)
            fix = f"did you mean {near[0]!r}?" if near else ""
            raise FormatError(f"{what} is one of {', '.join(words)}", node.at, fix)

    return check


def _true_or_false(node: JsonNode, what: str) -> None:
    if not isinstance(node.value, bool):
        raise FormatError(f"{what} must be true or false", node.at, "")


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
                near = get_close_matches(key, known, n=1)
                fix = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
                raise FormatError(f"no key of {what} is called {key!r}", item.key_at, fix)
            known[key](item, repr(key))
        for key in needed:
            if key not in node.value:
                raise FormatError(f"{key!r} is missing in {what}", node.at, "")

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
    **dict.fromkeys(("torch", "ipex", "oneccl"), _VERSION),
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
