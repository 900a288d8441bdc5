"""Names and words that the project no longer uses stay out of the code, the messages and the pages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from doc_blocks import PAGES, ROOT

MODULES = sorted((ROOT / "ipexctl").rglob("*.py"))
RETIRED_NAMES = frozenset(
    {"ahead", "aside", "asked", "begin_again", "blame", "crew", "go_on", "hand_on", "handover", "hear", "heard", "heed"}
    | {"let_go", "move_in", "obey", "ours", "reach", "said", "scene", "see_to", "spool", "take_in", "told", "ways"}
    | {"whoever", "wishes", "Ahead", "Aside", "Beginning", "Begun", "Blob", "Crew", "Gate", "Heard", "Reach", "Scene"}
    | {"Seat", "StackRow", "Talk", "Told", "Way", "Wishes"}
)
"""docs/concepts.md and the code use a technical term instead of each."""
RETIRED_WORDS = re.compile(r"\b(ours|whoever|somebody|heeds?|hung up|to be had|the house)\b", re.IGNORECASE)


def names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno


def texts(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value, node.lineno


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def begins_well(path: Path) -> bool:
    """Whether the opening names its subject, and asks no question."""
    first = (ast.get_docstring(ast.parse(path.read_text())) or "").partition(" ")[0]
    return first not in {"What", "Who", "Where", "Whether", "How", "When", "Which", "Why"}


def test_openings_of_tests_name_their_subject() -> None:
    assert [relative(path) for path in sorted((ROOT / "tests").rglob("*.py")) if not begins_well(path)] == []


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_modules_use_no_retired_names_or_words(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert path.stem not in RETIRED_NAMES
    assert [f"{line}: {name}" for name, line in names(tree) if name in RETIRED_NAMES] == []
    assert begins_well(path)
    assert [f"{line}: {found[0]}" for text, line in texts(tree) if (found := RETIRED_WORDS.search(text))] == []


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_docs_pages_use_no_retired_words(page: Path) -> None:
    lines = page.read_text().splitlines()
    assert [f"{number}: {line}" for number, line in enumerate(lines, 1) if RETIRED_WORDS.search(line)] == []
