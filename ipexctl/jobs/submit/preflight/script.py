"""What a script is, without running it: whether it is Python at all, and which modules it can't do without. Pure."""

from __future__ import annotations

import ast
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ipexctl.errors import UserError
from ipexctl.hosts.names import quoted

if TYPE_CHECKING:
    from collections.abc import Iterator

_OTHERS: Final = re.compile(
    rb"#!\s*(?:\S*/)?(?:env\s+(?:-\S+\s+)*)?(?:\S*/)?"
    rb"((?:ba|da|z|k|c|tc|fi)?sh|perl|ruby|node|Rscript|lua|awk|tclsh|php|make)(?:\s|$)"
)
"""First lines that name somebody else than Python."""
_READS_BY: Final = {"awk": "-f ", "make": "-f "}
_PATHS: Final = frozenset({"path", "meta_path", "path_hooks", "modules"})
"""What of `sys` decides where imports come from."""


@dataclass(frozen=True, slots=True)
class Import:
    """A module the script can't begin without."""

    module: str
    """Its top level: `torch` of `import torch.nn`."""
    line: int


@dataclass(frozen=True, slots=True)
class Script:
    """What is known of it."""

    name: str
    """As the user calls it."""
    text: str | None = None
    """None where it isn't text: a zip archive, compiled code."""
    imports: tuple[Import, ...] = ()
    doubt: str = ""
    """Why an import that is found nowhere may be found all the same."""

    def line(self, number: int) -> str:
        lines = (self.text or "").split("\n")
        return lines[number - 1].rstrip("\r") if 0 < number <= len(lines) else ""


def read_script(name: str, data: bytes) -> Script:
    """Raises a UserError where it surely is no Python. Whether its syntax is right the environment's Python knows."""
    if data.startswith((b"PK\x03\x04", b"PK\x05\x06")) or name.endswith(".pyc"):
        return Script(name)  # Python runs these as well
    head = data[:8192]
    if data.startswith(b"\x7fELF"):
        raise _no_python(name, "is a program")
    if b"\0" in head:
        raise _no_python(name, "is a binary file")
    other = _OTHERS.match(head)
    if other is not None and b"python" not in b"".join(head.splitlines()[:4]):
        by = other[1].decode()
        raise _no_python(name, f"is for {by}, as its first line says", f"{by} {_READS_BY.get(by, '')}")
    if name.endswith(".ipynb"):
        raise UserError(
            f"the script {quoted(name)} is a notebook, not Python", fix=f"jupyter nbconvert --to script {quoted(name)}"
        )
    text = data.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        if name.endswith((".sh", ".bash", ".zsh")):
            raise _no_python(name, "is a shell script", "bash ") from None
        return Script(name, text)  # perhaps it is for a newer Python than ours
    return Script(name, text, tuple(_imports(tree)), _doubt(tree))


def _no_python(name: str, what: str, by: str = "") -> UserError:
    path = name if "/" in name else f"./{name}"
    return UserError(
        f"the script {quoted(name)} {what}, not Python", fix=f"a command: ipexctl run -- {by}{shlex.quote(path)}"
    )


def _imports(tree: ast.Module) -> Iterator[Import]:
    """The unconditional ones; what is also imported behind an `if` or a `try` is wanted, not needed."""
    guards = [node for node in tree.body if isinstance(node, (ast.If, ast.Try, ast.With))]
    guarded = {name for guard in guards for node in ast.walk(guard) for name in _modules(node)}
    seen = set(guarded)
    for node in tree.body:
        for name in _modules(node):
            if name not in seen:
                seen.add(name)
                yield Import(name, getattr(node, "lineno", 0))


def _modules(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
        yield node.module.partition(".")[0]


def _doubt(tree: ast.Module) -> str:
    for node in ast.walk(tree):
        if _is_of_sys(node) or (isinstance(node, ast.Attribute) and node.attr == "addsitedir"):
            return f"it changes where Python looks (line {getattr(node, 'lineno', 0)})"
        if isinstance(node, ast.Call) and any(_installs(word) for word in ast.walk(node)):
            return f"it may install what it needs (line {node.lineno})"
    return ""


def _is_of_sys(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module == "sys" and any(alias.name in _PATHS for alias in node.names)
    of_sys = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "sys"
    return of_sys and isinstance(node, ast.Attribute) and node.attr in _PATHS


def _installs(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        return False
    return node.value == "pip" or node.value.startswith(("pip install", "python -m pip install"))
