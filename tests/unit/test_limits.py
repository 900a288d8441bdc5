"""The limits that a user can feel: each has its sentence, and every figure of docs/run-watch.md is one of them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from doc_blocks import ROOT

FILES = (ROOT / "ipexctl/limits.py", ROOT / "ipexctl/node/common/limits.py")
SHOWN_AS = {"DEAD_AFTER": 45.0}
"""The figure of a limit on the page, if another: half of it later, a lost packet is noticed."""


def limits(path: Path) -> list[tuple[str, float, str]]:
    """The name, the seconds and the sentence of each."""
    body = ast.parse(path.read_text()).body
    found = []
    for node, after in zip(body, [*body[1:], None], strict=True):
        target = (
            node.target
            if isinstance(node, ast.AnnAssign)
            else node.targets[0]
            if isinstance(node, ast.Assign)
            else None
        )
        if isinstance(target, ast.Name) and isinstance(node, ast.AnnAssign | ast.Assign) and node.value is not None:
            is_sentence = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            sentence = str(after.value.value) if is_sentence else ""  # type: ignore[union-attr]
            found.append((target.id, float(ast.literal_eval(node.value)), sentence))
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_each_limit_has_a_sentence(path: Path) -> None:
    found = limits(path)
    assert len(found) > 5
    assert [name for name, _, sentence in found if not sentence] == []


def test_each_figure_of_the_page_is_a_limit() -> None:
    section = (ROOT / "docs/run-watch.md").read_text().split("## How long a call waits")[1].split("\n## ")[0]
    shown = {float(number) * {"s": 1, "h": 3600}[unit] for number, unit in re.findall(r"\b(\d+) (s|h)\b", section)}
    values = {SHOWN_AS.get(name, seconds) for path in FILES for name, seconds, _ in limits(path)}
    assert len(shown) > 20
    assert shown - values == set()
