"""Decodes a host's answers: a missing or mistyped field is an error of that host alone."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from ipexctl.node.common.json_records import decode, decoder_of
from ipexctl.remote.outcome import HostError
from ipexctl.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable

Value = TypeVar("Value")
_MOST_SHOWN: Final = 120
_CREDENTIALS: Final = re.compile(r"//[^/@\s\"]*@")


class MalformedReply(HostError):
    """The reason quotes the beginning of its first line."""

    def __init__(self, problem: str, answer: str) -> None:
        lines = (line.strip() for line in answer.splitlines())
        first = printable(next(filter(None, lines), ""))
        shown = first if len(first) <= _MOST_SHOWN else f"{first[:_MOST_SHOWN]}…"
        super().__init__(
            f"its answer can't be read ({printable(problem)[:_MOST_SHOWN]}): {shown}",
            "run the same command again with -vv; does a login script there print something?",
        )


class Reply(dict[str, Any]):
    """A JSON object from a host. Each method returns a field of that type or raises MalformedReply."""

    def __missing__(self, key: str) -> NoReturn:
        raise self.error(f"{key} is missing")

    def text(self, key: str) -> str:
        return self._checked_value(key, str)

    def flag(self, key: str) -> bool:
        return self._checked_value(key, bool)

    def integer(self, key: str) -> int:
        return self._checked_value(key, int)

    def integer_or_none(self, key: str) -> int | None:
        return None if self.get(key) is None else self.integer(key)

    def number(self, key: str) -> float:
        return self._checked_value(key, float)

    def texts(self, key: str) -> tuple[str, ...]:
        return self._checked_value(key, tuple, "tuple[str, ...]")

    def record(self, key: str) -> Reply:
        return Reply(self._checked_value(key, dict, "Json"))

    def records(self, key: str) -> tuple[Reply, ...]:
        return tuple(map(Reply, self._checked_value(key, tuple, "tuple[Json, ...]")))

    def decode(self, kind: Callable[..., Value], **given: object) -> Value:
        try:
            return decode(kind, dict(self), "it", given)
        except ValueError as error:
            raise self.error(str(error)) from None

    def _checked_value(self, key: str, kind: type[Value], type_: str = "") -> Value:
        try:
            value: Value = decoder_of(type_ or kind.__name__)(self.get(key), key)
        except ValueError as error:
            raise self.error(str(error)) from None
        return value

    def error(self, problem: str) -> MalformedReply:
        shown = json.dumps({**self, "logins": "***"} if "logins" in self else self, ensure_ascii=False)
        return MalformedReply(problem, _CREDENTIALS.sub("//***@", shown))
