"""Tells which files of the checkout import which, and how far a test is from a module.

`tests/selection.py` and the mutants ask it.

In: the Python files that git knows. Out: for each file the files that it imports, and for some files the distance of
each file that reaches them: the number of imports of the product between. A helper of tests counts as the test. A test
of the agent's programs names a module in place of importing it (`agent_argv(python, "run.supervisor")`): that counts.
"""

from __future__ import annotations

import ast
import subprocess
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_PATHS = (".", "tests", "tests/lab", "tests/process", *(f"tests/unit/{name}" for name in (
    "cli", "doctor", "extras/lab", "extras/play", "extras/report", "extras/slow", "hosts", "launch", "node", "run",
    "stack", "sync", "trust", "ui",
)))  # fmt: skip
"""Where `import` finds a module, as `pythonpath` of pyproject.toml."""


def is_test(path: str) -> bool:
    return path.startswith("tests/") and Path(path).name.startswith("test_") and path.endswith(".py")


def distances(changed: Iterable[str], imports: Mapping[str, frozenset[str]]) -> dict[str, int]:
    """File → the fewest imports of the product between it and one of these files. Pure."""
    importers: dict[str, set[str]] = defaultdict(set)
    for file, targets in imports.items():
        for target in targets:
            importers[target].add(file)
    found = dict.fromkeys(changed, 0)
    waiting = deque(found)
    while waiting:
        file = waiting.popleft()
        for importer in importers[file]:
            further = found[file] + (not importer.startswith("tests/"))
            if further < found.get(importer, further + 1):
                found[importer] = further
                waiting.append(importer)
    return found


@cache
def project_imports() -> dict[str, frozenset[str]]:
    argv = ["git", "-C", str(ROOT), "ls-files", "-coz", "--exclude-standard", "*.py"]
    listed = subprocess.run(argv, capture_output=True, text=True, check=True)
    present = [file for file in listed.stdout.split("\0") if file and (ROOT / file).exists()]
    named = {name: file for file in present for name in _names_of(file)}
    return {file: frozenset(named[name] for name in _imported(file) if name in named) for file in present}


def _names_of(file: str) -> Iterator[str]:
    """The names by which a file is imported."""
    path = file.removesuffix(".py").removesuffix("/__init__")
    for place in _PATHS:
        if place == "." or path.startswith(f"{place}/"):
            yield path.removeprefix(f"{place}/").replace("/", ".")


def _imported(file: str) -> Iterator[str]:
    """The names of modules, and of what may be one, in a file's imports; of a test also those that it names."""
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytest_plugins":
            yield from ast.literal_eval(node.value)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and file.startswith("tests/"):
            yield f"ipexctl.node.{node.value}"
