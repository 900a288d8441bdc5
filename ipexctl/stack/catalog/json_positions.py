"""JSON with the place of every value in its text, for messages that say where. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

_BLANK: Final = " \t\r\n"


class NotJson(Exception):
    def __init__(self, what: str, at: int) -> None:
        super().__init__(what)
        self.what = what
        self.at = at


@dataclass(frozen=True, slots=True)
class Place:
    """A value and where it begins; the values inside lists and objects are places themselves."""

    value: str | int | float | bool | list[Place] | dict[str, Place] | None
    at: int
    key_at: int = 0
    """Where its key begins, for a value of an object."""


def read(text: str) -> Place:
    """Raises NotJson with the place."""
    try:
        json.loads(text)
        return _value(text, _skip(text, 0))[0]
    except json.JSONDecodeError as error:
        raise NotJson(error.msg[:1].lower() + error.msg[1:], error.pos) from None
    except RecursionError:
        raise NotJson("nested too deeply", 0) from None
    except ValueError:
        raise NotJson("a number of too many digits", 0) from None


def _value(text: str, at: int) -> tuple[Place, int]:
    """What begins here, of a text that is known to be JSON."""
    if text[at] == "[":
        items: list[Place] = []
        end = _skip(text, at + 1)
        while text[end] != "]":
            item, end = _value(text, end)
            items.append(item)
            end = _after_comma(text, end)
        return Place(items, at), end + 1
    if text[at] == "{":
        nodes: dict[str, Place] = {}
        end = _skip(text, at + 1)
        while text[end] != "}":
            key_at = end
            key, end = _DECODER.raw_decode(text, end)
            value, end = _value(text, _skip(text, _skip(text, end) + 1))
            if key in nodes:
                raise NotJson(f"{key!r} is there twice", key_at)
            nodes[key] = Place(value.value, value.at, key_at)
            end = _after_comma(text, end)
        return Place(nodes, at), end + 1
    value, end = _DECODER.raw_decode(text, at)
    return Place(value, at), end


_DECODER: Final = json.JSONDecoder()


def _after_comma(text: str, at: int) -> int:
    at = _skip(text, at)
    return _skip(text, at + 1) if text[at] == "," else at


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _BLANK:
        at += 1
    return at


def plain(place: Place) -> object:
    """The value as json.loads would have it."""
    if isinstance(place.value, list):
        return [plain(item) for item in place.value]
    if isinstance(place.value, dict):
        return {key: plain(item) for key, item in place.value.items()}
    return place.value


def line_of(text: str, at: int) -> tuple[int, str, int]:
    """Its line's number, from 1, the line, and the column, from 1."""
    start = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at)
    line = text[start : end if end >= 0 else len(text)].rstrip("\r")
    return text.count("\n", 0, at) + 1, line, at - start + 1
