"""The decoder of a host's answers: a field that is missing or has another type is an error of that host alone."""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from ipexctl.remote.outcome import HostError
from ipexctl.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import DataclassInstance

Value = TypeVar("Value")
Instance = TypeVar("Instance", bound="DataclassInstance")
_MOST_SHOWN: Final = 120
_LARGEST: Final = 1 << 63
"""No figure of a host is larger; a float takes it."""
_CREDENTIALS: Final = re.compile(r"//[^/@\s\"]*@")


class MalformedReply(HostError):
    """An answer that cannot be decoded. The reason quotes the beginning of its first line."""

    def __init__(self, problem: str, answer: str) -> None:
        lines = (line.strip() for line in answer.splitlines())
        first = printable(next(filter(None, lines), ""))
        shown = first if len(first) <= _MOST_SHOWN else f"{first[:_MOST_SHOWN]}…"
        super().__init__(
            f"its answer can't be read ({printable(problem)[:_MOST_SHOWN]}): {shown}",
            "run the same command again with -vv; does a login script there print something?",
        )


class Reply(dict[str, Any]):
    """A JSON object from a host. Each method returns the field if it has that type and raises MalformedReply if not."""

    def __missing__(self, key: str) -> NoReturn:
        raise self._error(f"{key} is missing")

    def text(self, key: str) -> str:
        return self._typed(key, str, "text")

    def text_or_none(self, key: str) -> str | None:
        return None if self.get(key) is None else self.text(key)

    def flag(self, key: str) -> bool:
        return self._typed(key, bool, "true or false")

    def integer(self, key: str) -> int:
        value = self[key]
        if type(value) is not int or abs(value) > _LARGEST:
            raise self._error(f"{key} is no integer")
        return value

    def integer_or_none(self, key: str) -> int | None:
        return None if self.get(key) is None else self.integer(key)

    def number(self, key: str) -> float:
        return self._number(key, self[key])

    def numbers(self, key: str) -> tuple[float, ...]:
        return tuple(self._number(key, value) for value in self._typed(key, list, "list"))

    def texts(self, key: str) -> tuple[str, ...]:
        return tuple(self._entries(key, list(self._typed(key, list, "list")), str))

    def optional_texts(self, key: str) -> tuple[str, ...]:
        return () if self.get(key) is None else self.texts(key)

    def texts_by_name(self, key: str) -> dict[str, str]:
        entries = self._typed(key, dict, "object")
        self._entries(key, list(entries.values()), str)
        return entries

    def record(self, key: str) -> Reply:
        return Reply(self._typed(key, dict, "object"))

    def records(self, key: str) -> tuple[Reply, ...]:
        return tuple(map(Reply, self._entries(key, self._typed(key, list, "list"), dict)))

    def decode(self, kind: type[Instance], **given: object) -> Instance:
        """A dataclass with the fields of these names; one that has a default may be missing or null."""
        make: Callable[..., Instance] = kind
        found = dict(given)
        for field in fields(kind):
            is_optional = field.default is not MISSING or field.default_factory is not MISSING
            if field.name not in given and not (is_optional and self.get(field.name) is None):
                found[field.name] = _READERS[str(field.type)](self, field.name)
        return make(**found)

    def _number(self, key: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= _LARGEST:
            raise self._error(f"{key} is no number")
        return value

    def _typed(self, key: str, wanted: type[Value], name: str) -> Value:
        value = self[key]
        if not isinstance(value, wanted):
            raise self._error(f"{key} is no {name}")
        return value

    def _entries(self, key: str, values: list[Any], wanted: type[Value]) -> list[Value]:
        if not all(isinstance(value, wanted) for value in values):
            raise self._error(f"an entry of {key} has another type")
        return values

    def _error(self, problem: str) -> MalformedReply:
        shown = json.dumps({**self, "logins": "***"} if "logins" in self else self, ensure_ascii=False)
        return MalformedReply(problem, _CREDENTIALS.sub("//***@", shown))


_READERS: Final[dict[str, Callable[[Reply, str], object]]] = {
    "str": Reply.text,
    "str | None": Reply.text_or_none,
    "bool": Reply.flag,
    "int": Reply.integer,
    "int | None": Reply.integer_or_none,
    "float": Reply.number,
    "tuple[float, ...]": Reply.numbers,
    "tuple[str, ...]": Reply.texts,
    "Mapping[str, str]": Reply.texts_by_name,
    "dict[str, str]": Reply.texts_by_name,
}
"""Type of a field → its reader."""
