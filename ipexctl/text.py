"""Text on its way to a terminal."""

from __future__ import annotations

import re
from typing import Final

_ABOUT_HOSTS: Final = re.compile(r"\bipexctl (?:doctor|envs|exec|install|run|sync|trust)\b")


def printable(text: str) -> str:
    """The text with everything a terminal would obey rather than show replaced, character for character."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else " " if c == "\t" or c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in text
    )


def readable(size: float) -> str:
    """Bytes, as people say them."""
    for unit, step in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= step:
            return f"{size / step:.1f} {unit}"
    return "1 byte" if size == 1 else f"{size:.0f} bytes"


def on_same_hosts(text: str, options: str) -> str:
    """What is to be typed next, with the options that choose the same hosts again behind each command about hosts."""
    return _ABOUT_HOSTS.sub(lambda command: command[0] + options, text) if options else text
