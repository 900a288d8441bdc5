"""The rooms of docs/architecture.md, held against the imports as they are."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "ipexctl"
FILES = sorted(PACKAGE.rglob("*.py"))
MAY_IMPORT = {
    "cli": {
        "cli",
        "playbook",
        "ui",
        "export",
        "jobs",
        "launch",
        "doctor",
        "stack",
        "sync",
        "trust",
        "facts",
        "remote",
        "hosts",
        "lab",
        "errors",
        "text",
    },
    "ui": {
        "ui",
        "playbook",
        "jobs",
        "launch",
        "doctor",
        "stack",
        "sync",
        "trust",
        "facts",
        "remote",
        "hosts",
        "lab",
        "errors",
        "text",
    },
    "playbook": {
        "playbook",
        "jobs",
        "launch",
        "doctor",
        "stack",
        "sync",
        "trust",
        "facts",
        "remote",
        "hosts",
        "errors",
        "text",
    },
    "lab": {"lab", "errors", "text"},
    "export": {"export", "launch", "hosts", "errors", "text"},
    "jobs": {"jobs", "launch", "stack", "sync", "trust", "facts", "remote", "hosts", "errors", "text"},
    "doctor": {"doctor", "stack", "launch", "trust", "facts", "remote", "hosts", "errors", "text"},
    "stack": {"stack", "trust", "facts", "remote", "hosts", "errors", "text"},
    "sync": {"sync", "trust", "facts", "remote", "hosts", "errors", "text"},
    "launch": {"launch", "facts", "hosts", "errors", "text"},
    "facts": {"facts", "remote", "hosts", "errors", "text"},
    "node": set(),
    "trust": {"trust", "remote", "hosts", "errors", "text"},
    "remote": {"remote", "hosts", "errors", "text"},
    "hosts": {"hosts", "errors", "text"},
}


def imports_of(file: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_a_room_imports_only_what_it_may(file: Path) -> None:
    room = file.relative_to(PACKAGE).parts[0]
    if room not in MAY_IMPORT:
        assert file.parent == PACKAGE, f"the room {room} is not in the table"
        return
    ours = {name.split(".")[1] for name in imports_of(file) if name.startswith("ipexctl.")}
    assert ours <= MAY_IMPORT[room]


def test_only_ui_knows_rich() -> None:
    users = {
        file.relative_to(PACKAGE).parts[0] for file in FILES if any(n.split(".")[0] == "rich" for n in imports_of(file))
    }
    assert users == {"ui"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_a_file_is_one_thing_and_says_which(file: Path) -> None:
    text = file.read_text()
    assert len(text.splitlines()) <= 400
    assert ast.get_docstring(ast.parse(text))
