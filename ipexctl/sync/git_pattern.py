"""git's patterns, by `pathspec`."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, Literal

from pathspec import GitIgnoreSpec
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

if TYPE_CHECKING:
    from collections.abc import Iterable

_STAR: Final = "[^/]*"
"""A `*` in pathspec's regular expressions."""
_group_numbers = itertools.count()


class _Pattern(GitIgnoreSpecPattern):
    """A pattern whose time grows with the length of a name, also with forty stars.

    A `*` takes as little as it can, up to the first place where the text before the next `*` fits: no later place can
    do better, so the match never goes back to it. Python 3.10 has no atomic groups; a lookahead is one.
    """

    __slots__ = ()

    @staticmethod
    def _translate_segment_glob(pattern: str, range_error: Literal["literal", "raise"]) -> str:
        regex = GitIgnoreSpecPattern._translate_segment_glob(pattern, range_error)
        first, *middle = regex.split(_STAR)
        if len(middle) < 2:
            return regex
        last = middle.pop()
        for text in filter(None, middle):
            group = f"star{next(_group_numbers)}"
            first += f"(?=(?P<{group}>{_STAR}?{text}))(?P={group})"
        return first + _STAR + last


def make_spec(patterns: Iterable[str]) -> GitIgnoreSpec:
    return GitIgnoreSpec.from_lines(patterns, _Pattern, backend="simple")
