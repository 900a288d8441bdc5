"""Searches a message for data: names, numbers, paths and options, independent of its wording."""

from __future__ import annotations

import re


def missing(message: str, data: str) -> list[str]:
    """The words that the message does not contain, each as a separate word, in any order."""
    return [word for word in data.split() if not re.search(_whole(word), message)]


def _whole(word: str) -> str:
    before = r"(?<![\w-])" if re.match(r"[\w-]", word) else ""
    after = r"(?!\w)" if re.search(r"\w$", word) else ""
    return before + re.escape(word) + after
