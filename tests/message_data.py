"""Looks for data in a message: names, numbers, paths and options, whatever words are around them."""

from __future__ import annotations

import re


def missing(message: str, data: str) -> list[str]:
    """Which of these words are nowhere in the message; each must stand there by itself, in any order."""
    return [word for word in data.split() if not re.search(_whole(word), message)]


def _whole(word: str) -> str:
    before = r"(?<![\w-])" if re.match(r"[\w-]", word) else ""
    after = r"(?!\w)" if re.search(r"\w$", word) else ""
    return before + re.escape(word) + after
