"""Placeholders: `{run}` in the arguments of every run, and in a command behind `--` those that each rank replaces, such
as `{port}`. Pure.

`{{port}}` is the text `{port}`, and `{{` is a brace. Other braces stay: `${HOME}` of a shell, JSON, `a{3}`. Only a word
of letters in braces is a name.
"""

from __future__ import annotations

import re
from typing import Mapping, Sequence

RUN = "run"
NAMES = ("rank", "local_rank", "host", "node0", "hosts", "port", "node0_port", "peers", RUN)
_PLACEHOLDER = re.compile(r"\{(?P<literal>\{[A-Za-z_]\w*\})\}|\{\{|(?<!\$)\{(?P<name>[A-Za-z_]\w*)\}")
_RUN = re.compile(r"\{(?P<literal>\{run\})\}|(?<!\$)\{run\}")


def find_wrong_name(words: Sequence[str]) -> tuple[int, str] | None:
    """Return the position of the first word with an unknown placeholder, and its name; None if there is none."""
    return next(
        (
            (at, match["name"])
            for at, word in enumerate(words)
            for match in _PLACEHOLDER.finditer(word)
            if match["name"] is not None and match["name"] not in NAMES
        ),
        None,
    )


def used_names(words: Sequence[str]) -> frozenset[str]:
    """Return the names of the placeholders in these words, also of unknown ones."""
    return frozenset(match["name"] for word in words for match in _PLACEHOLDER.finditer(word) if match["name"])


def fill(words: Sequence[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """Return the words with a value in place of each placeholder that `values` has. `{{port}}` becomes `{port}`, and
    `{{` a brace."""

    def value_of(found: re.Match[str]) -> str:
        name = found["name"]
        return found["literal"] or "{" if name is None else values.get(name, found[0])

    return tuple(_PLACEHOLDER.sub(value_of, word) for word in words)


def fill_run(words: Sequence[str], run: str) -> tuple[str, ...]:
    """Return the words with the id in place of `{run}`, as in `out/{run}`. All other braces stay as they are."""
    return tuple(_RUN.sub(lambda found: found["literal"] or run, word) for word in words)


def uses_run(words: Sequence[str]) -> bool:
    """Return True if one of these words has `{run}`."""
    return any(match["literal"] is None for word in words for match in _RUN.finditer(word))
