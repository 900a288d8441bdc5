"""JSON with the position of every value, for error messages. Pure.

`hosts/yaml_tree` can't read it: YAML 1.1 takes single quotes, comments and trailing commas, reads 1e3 as a text, and
refuses characters beyond U+FFFF as JSON writes them ("\\ud83d\\ude00").
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

_BLANK: Final = " \t\r\n"
_FIX: Final = "JSON needs double quotes around names and texts, and has no comma after the last item"
_DECODER: Final = json.JSONDecoder()


class FormatError(Exception):
    """An error at a position of the text, with the fix."""

    def __init__(self, what: str, at: int, fix: str) -> None:
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


def read(text: str) -> JsonNode:
    """Parse JSON. Raises FormatError with the position."""
    try:
        json.loads(text)
        return _value(text, _skip(text, 0))[0]
    except json.JSONDecodeError as error:
        raise FormatError(error.msg[:1].lower() + error.msg[1:], error.pos, _FIX) from None
    except RecursionError:
        raise FormatError("nested too deeply", 0, "write a list of rows, as docs/versions.md shows it") from None
    except ValueError:
        raise FormatError("a number of too many digits", 0, "write a shorter number") from None


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


def line_of(text: str, at: int) -> tuple[int, str, int]:
    """The line's number, the line and the column, counted from 1."""
    start = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at)
    line = text[start : end if end >= 0 else len(text)].rstrip("\r")
    return text.count("\n", 0, at) + 1, line, at - start + 1
