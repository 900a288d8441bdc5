"""The limits that a user can feel: each has its sentence, and docs/run.md has its value."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from doc_blocks import ROOT

FILES = (ROOT / "ipexctl/limits.py", ROOT / "ipexctl/node/common/limits.py")
OTHERWISE = {"DEAD_AFTER": 45.0}
"""Of another length where a user sees it: half of it later, a lost packet is noticed."""


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
def test_each_limit_has_a_sentence_and_is_on_the_page(path: Path) -> None:
    page = (ROOT / "docs/run.md").read_text()
    section = page.split("## How long a call waits")[1].split("\n## ")[0]
    shown = {float(number) * {"s": 1, "h": 3600}[unit] for number, unit in re.findall(r"\b(\d+) (s|h)\b", section)}
    found = limits(path)
    assert len(found) > 5
    for name, seconds, sentence in found:
        assert sentence, name
        assert OTHERWISE.get(name, seconds) in shown, name
