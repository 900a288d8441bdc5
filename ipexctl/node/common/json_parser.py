"""Parses all JSON: our own files, a host's answers, messages from a connection. Raises a `JsonError` (a ValueError) for

- nesting deeper than `MAX_DEPTH`: Python raises a RecursionError, and a value just below Python's limit fails later;
- infinite numbers, and integers of more than 20 characters: `int(1e999)` fails, and a million digits take minutes;
- half a surrogate pair, which can't be encoded. U+DC80 to U+DCFF are allowed: they stand for bytes of a file name;
- files that are too large or not regular, because reading a FIFO would block.
"""

from __future__ import annotations

import json
import os
import re
import stat
from typing import TYPE_CHECKING, Any, Iterable

if TYPE_CHECKING:
    from ipexctl.node.common.files import AnyPath

MAX_DEPTH = 100
MAX_FILE = 512 << 20
"""Bytes. The list of a tree with a million files takes 200 MB."""
_MAX_DIGITS = 20
_TOO_DEEP = "it is nested too deeply"
_OUT_OF_RANGE = "it has a number that is out of range"
_LONE_SURROGATE = re.compile("[\ud800-\udc7f\udd00-\udfff]")
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class JsonError(ValueError):
    def __init__(self, problem: str, position: int | None = None, place: str = "") -> None:
        super().__init__(problem + place)
        self.problem = problem
        self.position = position
        """Where the text stops being JSON; None if it is JSON with a refused value."""


def parse_json(text: str | bytes | bytearray, *, any_number: bool = False) -> Any:
    """Parse a JSON text; raises a JsonError.

    `any_number` allows infinite numbers and any number of digits, for a user's templates.
    """
    try:
        if not isinstance(text, str):
            text = text.decode()
            text = text[1:] if text.startswith("\ufeff") else text  # some editors write a byte order mark
        value = (_ANY_NUMBER if any_number else _DECODER).decode(text)
    except json.JSONDecodeError as error:
        place = f": line {error.lineno}, column {error.colno}"
        raise JsonError(error.msg[:1].lower() + error.msg[1:], error.pos, place) from None
    except JsonError:
        raise
    except UnicodeDecodeError:
        raise JsonError("it is not in UTF-8") from None
    except RecursionError:
        raise JsonError(_TOO_DEEP) from None
    except ValueError:  # more digits than Python accepts
        raise JsonError(_OUT_OF_RANGE) from None
    if text.count("[") + text.count("{") > MAX_DEPTH and _is_deeper(value, MAX_DEPTH):
        raise JsonError(_TOO_DEEP)
    if "\\u" in text and _ESCAPED_SURROGATE.search(text) and _has_lone_surrogate(value):
        raise JsonError("it has half a surrogate pair")
    return value


def parse_object(text: str | bytes | bytearray) -> dict[str, Any]:
    return as_object(parse_json(text))


def as_object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise JsonError("it is not a JSON object")
    return value


def read_json_file(path: AnyPath, limit: int = MAX_FILE) -> Any:
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    with open(number, "rb") as file:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise JsonError("it is not a regular file")
        data = file.read(limit + 1)
    if len(data) > limit:
        raise JsonError(f"it is larger than {limit >> 20} MB")
    return parse_json(data)


def _finite(text: str) -> float:
    number = float(text)
    if number - number != 0.0:  # 1e999
        raise JsonError(_OUT_OF_RANGE)
    return number


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise JsonError(_OUT_OF_RANGE)
    return int(text)


def _refuse_constant(_: str) -> float:
    raise JsonError(_OUT_OF_RANGE)


_DECODER = json.JSONDecoder(parse_float=_finite, parse_int=_integer, parse_constant=_refuse_constant)
_ANY_NUMBER = json.JSONDecoder()


def _is_deeper(value: Any, depth: int) -> bool:
    level = _containers([value])
    for _ in range(depth):
        level = [item for container in level for item in _containers(_items(container))]
    return bool(level)


def _items(container: Any) -> Iterable[Any]:
    return container.values() if type(container) is dict else container


def _containers(items: Iterable[Any]) -> list[Any]:
    return [item for item in items if type(item) in (dict, list)]


def _has_lone_surrogate(value: Any) -> bool:
    pending = [value]
    while pending:
        item = pending.pop()
        if type(item) is str:
            if _LONE_SURROGATE.search(item):
                return True
        elif type(item) is dict:
            pending += item
            pending += item.values()
        elif type(item) is list:
            pending += item
    return False
