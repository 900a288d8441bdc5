"""Decide whether advice that a host sent is ours.

Advice is a command that the user pastes, and a hostile host may send any. The agent's texts are known: they are the
string constants of its code. Only advice that is one of them, with quoted values in its fields, is shown as our own.
"""

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
_ARGUMENT: Final = r"(?:[\w@%+=:,./~-]|'[^']*'|\"'\")+"
"""One argument of a command, as `shlex.quote` writes it. It never matches several arguments, or another command."""
_SHORTEST_TEMPLATE: Final = 12
"""Characters outside its fields; a shorter one, such as `{x}: {x}`, would fit nearly any text."""
_LONGEST_FIX: Final = 2000
"""Longer texts are not compared with templates, because that may take long."""
_MOST_QUOTED: Final = 300


def read_advice(sent: object) -> str:
    """Return a fix of the agent; any other text is quoted as what the host says, so that nobody takes it for ours."""
    fix = fix_from_json(sent)
    text = str(fix)
    if not fix or text in _texts_of_agent() or _fits_a_template(text):
        return fix
    return f"it says: {text[:_MOST_QUOTED]!r}"


def _fits_a_template(fix: str) -> bool:
    return len(fix) <= _LONGEST_FIX and any(_fits(fix, template) for template in _templates())


def _fits(fix: str, template: str) -> bool:
    """True if the fix is the template with one or more arguments of a command in each field."""
    head, *others = map(re.escape, _FIELD.split(template))
    if re.match(head, fix) is None:  # most templates differ there, and the next expression is slow
        return False
    return re.fullmatch(f"{_ARGUMENT}(?: {_ARGUMENT})*".join((head, *others)), fix) is not None


def _templates() -> Iterator[str]:
    """Return the agent's texts that have fields and enough text of their own."""
    return (text for text in _texts_of_agent() if "{" in text and len(_FIELD.sub("", text)) >= _SHORTEST_TEMPLATE)


@functools.cache
def _texts_of_agent() -> frozenset[str]:
    """Return all string constants of the agent's code, with `{x}` for each field of an f-string.

    They are without backticks, as `str(fix)` is.
    """
    texts = {"install one on that host"}  # of node_call.py, from a host without Python
    for path in Path(*node.__path__).rglob("*.py"):
        for expression in ast.walk(ast.parse(path.read_bytes())):
            parts = expression.values if isinstance(expression, ast.JoinedStr) else [expression]
            if isinstance(expression, ast.JoinedStr | ast.Constant):
                pieces = (str(part.value) if isinstance(part, ast.Constant) else "{x}" for part in parts)
                texts.add("".join(pieces).replace("`", ""))
    return frozenset(texts | {text.replace(ANOTHER_HOME, ANOTHER_PATH) for text in texts})
