"""HTML and SVG elements; `escaped` is the only way by which a text enters a page.

A text of a host stands between tags alone: no element, attribute or address is made from one.
"""

from __future__ import annotations

import html
from typing import NewType

from ipexctl.text import printable

Markup = NewType("Markup", str)
"""A piece of the page. Only this module makes one from a text."""


def escaped(text: str) -> Markup:
    """The text as the page shows it: nothing in it is markup, nothing obeys a terminal or turns its direction."""
    return Markup(html.escape(printable(text), quote=True))


def element(name: str, *children: Markup, **attributes: str | float) -> Markup:
    """An element. An attribute's value is of our own making; `_` in its name is `-`, one at its end is dropped."""
    words = "".join(f' {key.rstrip("_").replace("_", "-")}="{html.escape(_value(v))}"' for key, v in attributes.items())
    return Markup(f"<{name}{words}>{''.join(children)}</{name}>")


def joined(*children: Markup) -> Markup:
    return Markup("".join(children))


def _value(value: str | float) -> str:
    return short(value) if isinstance(value, float) else str(value)


def short(number: float) -> str:
    """A coordinate with at most one decimal place."""
    return f"{number:.1f}".removesuffix(".0")


def path_data(words: str) -> str:
    """The data of a path: digits, signs and commands, nothing else."""
    if words.strip("0123456789.-MmLlHhVvZz ,"):
        raise ValueError("not the data of a path")
    return words
