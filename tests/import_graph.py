"""Tells which files of the checkout import which, and how far a test is from a module.

`tests/selection.py` and the mutants ask it.

In: the Python files that git knows. Out: for each file the files that it imports, and for some files the distance of
each file that reaches them: the number of imports of the product between. A helper of tests counts as the test. A test
of the agent's programs names a module in place of importing it (`agent_argv(python, "run.supervisor")`): that counts.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_PATHS = (".", "tools", "tests", "tests/lab", "tests/process", *(f"tests/unit/{name}" for name in (
    "cli", "doctor", "addons/lab", "addons/play", "addons/report", "hosts", "launch", "node", "run",
    "node/run/decisions", "homes", "stack", "sync", "ui",
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
            further = found[file] + (not importer.startswith(("tests/", "tools/")))
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


_IMPORT = re.compile(r"^ *(?:from ([\w.]+) )?import (\([^)]*\)|[^\n]*)", re.MULTILINE)
"""Read as text: to parse the whole project takes six seconds, and several workers need the graph."""
_PLUGINS = re.compile(r"^pytest_plugins = (.*)$", re.MULTILINE)


def _imported(file: str) -> Iterator[str]:
    """The names of modules, and of what may be one, in a file's imports; of a test also those that it names."""
    text = (ROOT / file).read_text(encoding="utf-8")
    for module, listed in _IMPORT.findall(text):
        names = re.findall(r"[\w.]+", re.sub(r" as \w+|#[^\n]*", "", listed))
        yield from (f"{module}.{name}" for name in names) if module else names
        yield module
    for listed in _PLUGINS.findall(text):
        yield from re.findall(r"[\w.]+", listed)
    if file.startswith(("tests/", "tools/")):
        for name in re.findall(r'"([a-z_.]+)"', text):
            yield from (f"ipexctl.node.{name}", f"ipexctl.node.{name}.__main__")


def imported_names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def statements(tree: ast.AST, *, with_types: bool = True) -> Iterator[ast.AST]:
    """The statements of a file at any depth; a fifth of the time of `ast.walk`, which visits each expression, too."""
    for field in ("body", "handlers", "orelse", "finalbody", "cases"):
        is_of_types = field == "body" and isinstance(tree, ast.If) and ast.unparse(tree.test) == "TYPE_CHECKING"
        for node in () if is_of_types and not with_types else getattr(tree, field, ()):
            yield node
            yield from statements(node, with_types=with_types)
