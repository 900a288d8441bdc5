"""Public functions say what they return, and what an empty value or None means."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "ipexctl"


def undocumented(source: str) -> list[str]:
    """Return the public functions, and public methods of public classes, that have no docstring."""
    tree = ast.parse(source)
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    scopes: list[ast.Module | ast.ClassDef] = [tree, *classes]
    members = [node for scope in scopes for node in scope.body if isinstance(node, ast.FunctionDef)]
    return [each.name for each in members if not each.name.startswith("_") and ast.get_docstring(each) is None]


def test_a_function_without_a_docstring_is_found() -> None:
    assert undocumented('def a():\n    "Return 1."\nclass C:\n    def b(self): ...\n    def _c(self): ...') == ["b"]


def test_each_public_function_has_a_docstring() -> None:
    paths = sorted(PACKAGE.rglob("*.py"))
    assert len(paths) > 300
    missing = {str(path): names for path in paths if (names := undocumented(path.read_text(encoding="utf-8")))}
    assert missing == {}
