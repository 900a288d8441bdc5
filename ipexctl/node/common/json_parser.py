"""The one way in which ipexctl reads JSON: of its own files, of an answer of a host, of a message from a connection.

In comes a text or a file; out comes a value, or a `JsonError`, which is a ValueError and says what is wrong. The rules
are for what another program, another account, a full disk or a failing one may have left there:

- no deeper than `MAX_DEPTH`, whatever the depth of the stack: Python raises a RecursionError, and a value that is just
  below its limit fails later, where it is written or compared;
- numbers are finite, and integers have at most 20 characters, since `int(1e999)` is an OverflowError and a text of a
  million digits takes minutes;
- texts can be encoded: half of a surrogate pair raises an error where it is printed or becomes a path. The surrogates
  that stand for single bytes of a file name (U+DC80 to U+DCFF) are allowed;
- a file is regular, as a FIFO would block, and no larger than its limit.

What becomes of an error is the caller's: a damaged cache is dropped, a damaged record is that record's failure.
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
"""Bytes of a file: the list of a tree with a million files takes 200 MB."""
_MAX_DIGITS = 20
_TOO_DEEP = "it is nested too deeply"
_OUT_OF_RANGE = "it has a number that is out of range"
_LONE_SURROGATE = re.compile("[\ud800-\udc7f\udd00-\udfff]")
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class JsonError(ValueError):
    """The text is no JSON that ipexctl reads."""

    def __init__(self, problem: str, position: int | None = None, place: str = "") -> None:
        super().__init__(problem + place)
        self.problem = problem
        self.position = position
        """Where the text is no JSON; None where a value is refused."""


def parse_json(text: str | bytes | bytearray, *, any_number: bool = False) -> Any:
    """The value of a text, which is in UTF-8. Raises a JsonError.

    `any_number`: for the values of a user's templates, which may be infinite or have any number of digits.
    """
    try:
        if not isinstance(text, str):
            text = text.decode()
            text = text[1:] if text.startswith("\ufeff") else text  # of an editor
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
    """The same for an object; raises a JsonError for any other value."""
    return as_object(parse_json(text))


def as_object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise JsonError("it is no JSON object")
    return value


def read_json_file(path: AnyPath, limit: int = MAX_FILE) -> Any:
    """The value in a file. Raises an OSError or a JsonError."""
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    with open(number, "rb") as file:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise JsonError("it is no regular file")
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
