"""HTML and SVG elements. Texts enter a page only by `escaped`, between tags, never in a name, attribute or address."""

from __future__ import annotations

import html
from typing import NewType

from ipexctl.text import printable

Markup = NewType("Markup", str)
"""Only this module makes one from a text."""


def escaped(text: str) -> Markup:
    """Neither markup nor terminal or direction codes remain."""
    return Markup(html.escape(printable(text), quote=True))


def element(name: str, *children: Markup, **attributes: str | float) -> Markup:
    """Attribute values are our own; `_` in a name becomes `-`, a trailing one is dropped."""
    words = "".join(f' {key.rstrip("_").replace("_", "-")}="{html.escape(_value(v))}"' for key, v in attributes.items())
    return Markup(f"<{name}{words}>{''.join(children)}</{name}>")


def joined(*children: Markup) -> Markup:
    return Markup("".join(children))


def _value(value: str | float) -> str:
    return short(value) if isinstance(value, float) else str(value)


def short(number: float) -> str:
    """At most one decimal place."""
    return f"{number:.1f}".removesuffix(".0")


def path_data(words: str) -> str:
    """Path data: digits, signs and commands, nothing else."""
    if words.strip("0123456789.-MmLlHhVvZz ,"):
        raise ValueError("not the data of a path")
    return words
