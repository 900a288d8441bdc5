"""Decides whether advice that a host sent is ours: the agent's code has its text. A hostile host may send any."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ipexctl import node
from ipexctl.node.common.answer import ANOTHER_HOME, ANOTHER_PATH
from ipexctl.node.common.fix import fix_from_json

_FIELD: Final = re.compile(r"\{\*?\w+\}")
_WORD: Final = r"(?:[\w@%+=:,./~-]|'[^']*'|\"'\")+"
"""As `shlex.quote` writes it: never more than a word of a command."""
_SHORTEST, _LONGEST, _MOST_QUOTED = 12, 2000, 300


def read_advice(sent: object) -> str:
    """A fix of the agent. Other text is quoted as the host's."""
    fix = fix_from_json(sent)
    text = str(fix)
    if (
        not fix
        or text in _texts_of_agent()
        or (len(text) <= _LONGEST and any(_fits(text, own) for own in _templates()))
    ):
        return fix
    return f"it says: {text[:_MOST_QUOTED]!r}"


def _fits(fix: str, template: str) -> bool:
    head, *others = map(re.escape, _FIELD.split(template))
    return bool(re.match(head, fix)) and bool(re.fullmatch(f"{_WORD}(?: {_WORD})*".join((head, *others)), fix))


def _templates() -> Iterator[str]:
    return (text for text in _texts_of_agent() if "{" in text and len(_FIELD.sub("", text)) >= _SHORTEST)


@functools.cache
def _texts_of_agent() -> frozenset[str]:
    texts = {"install one on that host"}
    for path in Path(*node.__path__).rglob("*.py"):
        for each in ast.walk(ast.parse(path.read_bytes())):
            parts = each.values if isinstance(each, ast.JoinedStr) else [each]
            if isinstance(each, ast.JoinedStr | ast.Constant):
                found = (str(part.value) if isinstance(part, ast.Constant) else "{x}" for part in parts)
                texts.add("".join(found).replace("`", ""))
    return frozenset(texts | {text.replace(ANOTHER_HOME, ANOTHER_PATH) for text in texts})
