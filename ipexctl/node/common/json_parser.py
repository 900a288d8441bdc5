"""The one way to parse JSON: our own files, a host's answers, messages from a connection.

Raises a `JsonError` (a ValueError) for what other programs, accounts or failing disks may leave:

- deeper than `MAX_DEPTH`: Python raises a RecursionError, and a value just below its limit fails later, where it is
  written or compared;
- numbers that are infinite, and integers of more than 20 characters: `int(1e999)` is an OverflowError, and a million
  digits take minutes;
- texts that can't be encoded, such as half a surrogate pair. U+DC80 to U+DCFF, single bytes of a file name, are
  allowed;
- files that are not regular, because a FIFO would block, or too large.
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
"""A list of a tree with a million files takes 200 MB."""
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
        """Where the text is no JSON; None if a value is refused."""


def parse_json(text: str | bytes | bytearray, *, any_number: bool = False) -> Any:
    """Raises a JsonError. `any_number`: for a user's templates, with infinite numbers and any number of digits."""
    try:
        if not isinstance(text, str):
            text = text.decode()
            text = text[1:] if text.startswith("\ufeff") else text  # from an editor
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
    except ValueError:  # Python's own limit of digits
        raise JsonError(_OUT_OF_RANGE) from None
    if text.count("[") + text.count("{") > MAX_DEPTH and _is_deeper(value, MAX_DEPTH):
        raise JsonError(_TOO_DEEP)
    if "\\u" in text and _ESCAPED_SURROGATE.search(text) and _has_lone_surrogate(value):
        raise JsonError("it has half of a character")
    return value


def parse_object(text: str | bytes | bytearray) -> dict[str, Any]:
    return as_object(parse_json(text))


def as_object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise JsonError("it is no JSON object")
    return value


def read_json_file(path: AnyPath, limit: int = MAX_FILE) -> Any:
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    with open(number, "rb") as file:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise JsonError("it is not a regular file")
        data = file.read(limit + 1)
    if len(data) > limit:
        raise JsonError(f"it has more than {limit >> 20} MB")
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
