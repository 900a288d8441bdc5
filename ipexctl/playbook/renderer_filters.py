"""Ansible's common filters and tests for the sandbox. Pure: none reads a file or starts a program."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import posixpath
import re
import shlex
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, pass_context, pass_environment
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.filters import do_unique

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from jinja2.runtime import Context

_TRUE: Final = frozenset({"yes", "true", "on", "1", "y"})
_MAX_SIZE: Final = 1 << 20


class TooMuch(Exception):
    """An operation that would take too much memory or time."""


def to_bool(value: Any) -> bool:
    return str(value).strip().lower() in _TRUE if isinstance(value, str) else bool(value)


def ternary(value: Any, true: Any, false: Any, none: Any = None) -> Any:
    return none if value is None and none is not None else true if value else false


def combine(*parts: Mapping[str, Any], recursive: bool = False) -> dict[str, Any]:
    combined: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            merge = recursive and isinstance(value, dict) and isinstance(combined.get(key), dict)
            combined[key] = combine(combined[key], value, recursive=True) if merge else value
    return combined


def flatten(value: Iterable[Any], levels: int | None = None) -> list[Any]:
    items: list[Any] = []
    for item in value:
        if isinstance(item, list | tuple) and levels != 0:
            items += flatten(item, None if levels is None else levels - 1)
        else:
            items.append(item)
    return items


def regex_replace(value: Any, pattern: str = "", replacement: str = "", ignorecase: bool = False) -> str:
    return re.sub(pattern, replacement, str(value), flags=re.IGNORECASE if ignorecase else 0)


def regex_search(value: Any, pattern: str, *groups: str, ignorecase: bool = False) -> Any:
    match = re.search(pattern, str(value), re.IGNORECASE if ignorecase else 0)
    if match is None:
        return None
    if not groups:
        return match[0]
    return [match[int(group[1:]) if group[1:].isdigit() else group[3:-1]] for group in groups]


def regex_findall(value: Any, pattern: str) -> list[Any]:
    return re.findall(pattern, str(value))


def mandatory(value: Any, msg: str = "") -> Any:
    if type(value).__name__ == "Undefined":
        raise ValueError(msg or "a value that is mandatory is undefined")
    return value


def dict2items(value: Mapping[str, Any], key_name: str = "key", value_name: str = "value") -> list[dict[str, Any]]:
    return [{key_name: key, value_name: item} for key, item in value.items()]


def items2dict(value: Iterable[Mapping[str, Any]], key_name: str = "key", value_name: str = "value") -> dict[str, Any]:
    return {str(item[key_name]): item[value_name] for item in value}


def hashed(value: Any, kind: str = "sha256") -> str:
    if kind not in ("sha1", "sha256", "sha512", "md5"):
        raise ValueError(f"no hash is called {kind!r}")
    return hashlib.new(kind, str(value).encode(), usedforsecurity=False).hexdigest()


def quote(value: Any) -> str:
    return shlex.quote(str(value))


def product(first: Iterable[Any], *others: Iterable[Any]) -> list[tuple[Any, ...]]:
    return list(itertools.islice(itertools.product(first, *others), _MAX_SIZE))


def extract(key: Any, container: Any, more: Any = None) -> Any:
    value = container[key]
    for part in (more if isinstance(more, list) else [more]) if more is not None else ():
        value = value[part]
    return value


def _listed(name: str) -> Callable[..., list[Any]]:
    """`map`, `select` and the like as lists, so that `| last` and `| length` work on their results."""
    lazy = JINJA_FILTERS[name]

    @pass_context
    def listed(context: Context, *args: Any, **kwargs: Any) -> list[Any]:
        return list(itertools.islice(lazy(context, *args, **kwargs), _MAX_SIZE))

    return listed


@pass_environment
def unique(environment: Environment, value: Iterable[Any], *args: Any, **kwargs: Any) -> list[Any]:
    return list(do_unique(environment, value, *args, **kwargs))


def _bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A Jinja filter whose numeric arguments are bounded."""

    def limited(value: Any, *args: Any, **kwargs: Any) -> Any:
        for number in (*args, *kwargs.values()):
            if isinstance(number, int) and abs(number) > _MAX_SIZE:
                raise TooMuch(f"{name} of {number} comes to too much")
        return function(value, *args, **kwargs)

    return limited


def _bounded_filters() -> dict[str, Callable[..., Any]]:
    plain = ("center", "batch", "slice", "wordwrap", "round", "truncate")
    return {
        name: _bounded(name, JINJA_FILTERS[name])
        for name in plain
        if not hasattr(JINJA_FILTERS[name], "jinja_pass_arg")
    }


def _failed(result: Any) -> bool:
    return bool(result.get("failed"))


FILTERS: Final[dict[str, Callable[..., Any]]] = {
    "bool": to_bool,
    "unique": unique,
    "ternary": ternary,
    "combine": combine,
    "flatten": flatten,
    "regex_replace": regex_replace,
    "regex_search": regex_search,
    "regex_findall": regex_findall,
    "regex_escape": lambda value: re.escape(str(value)),
    "mandatory": mandatory,
    "dict2items": dict2items,
    "items2dict": items2dict,
    "hash": hashed,
    "quote": quote,
    "product": product,
    "extract": extract,
    "zip": lambda first, *others: list(zip(first, *others, strict=False)),
    "basename": lambda value: posixpath.basename(str(value)),
    "dirname": lambda value: posixpath.dirname(str(value)),
    "splitext": lambda value: list(posixpath.splitext(str(value))),
    "path_join": lambda parts: posixpath.join(*map(str, parts)),
    "b64encode": lambda value: base64.b64encode(str(value).encode()).decode(),
    "b64decode": lambda value: base64.b64decode(str(value)).decode("utf-8", "replace"),
    "to_json": lambda value, indent=None: json.dumps(value, indent=indent),
    "to_nice_json": lambda value, indent=4: json.dumps(value, indent=indent, sort_keys=True),
    "from_json": lambda value: json.loads(str(value)),
    "intersect": lambda first, other: [item for item in first if item in other],
    "difference": lambda first, other: [item for item in first if item not in other],
    "union": lambda first, other: [*first, *(item for item in other if item not in first)],
    "split": lambda value, separator=None: str(value).split(separator),
    **{name: _listed(name) for name in ("map", "select", "reject", "selectattr", "rejectattr")},
    **_bounded_filters(),
}

TESTS: Final[dict[str, Callable[..., Any]]] = {
    "failed": _failed,
    "succeeded": lambda result: not _failed(result),
    "success": lambda result: not _failed(result),
    "changed": lambda result: bool(result.get("changed")),
    "skipped": lambda result: bool(result.get("skipped")),
    "match": lambda value, pattern: re.match(pattern, str(value)) is not None,
    "search": lambda value, pattern: re.search(pattern, str(value)) is not None,
    "contains": lambda value, item: item in value,
    "subset": lambda first, other: set(first) <= set(other),
    "superset": lambda first, other: set(first) >= set(other),
}
