"""The names of Python's own modules that Linux has and macOS lacks, by the stubs that mypy brings (typeshed).

Used by the contract for the control machine's code, and by the machine of `tests/lab/foreign_control.py`, which takes
them away.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import mypy

MODULES = ("errno", "fcntl", "mmap", "os", "resource", "select", "signal", "socket", "stat", "termios", "time")
_STUBS = Path(mypy.__file__).parent / "typeshed/stdlib"


@cache
def absent_names(module: str) -> frozenset[str]:
    return frozenset(_names(module, "linux")) - frozenset(_names(module, "darwin"))


def _names(module: str, platform: str) -> Iterator[str]:
    path = _STUBS / f"{module}.pyi"
    tree = ast.parse((path if path.exists() else _STUBS / module / "__init__.pyi").read_text())
    found = SimpleNamespace(platform=platform, version_info=sys.version_info)
    waiting = [*tree.body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If):
            is_so = eval(compile(ast.Expression(node.test), str(path), "eval"), {"sys": found})
            waiting += node.body if is_so else node.orelse
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
