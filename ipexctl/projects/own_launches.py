"""Finds where code of a project starts ranks of its own: in a run of several ranks, each would start a training. Pure,
but for reading the project's modules.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from ipexctl.file_reader import SOURCE, read_regular
from ipexctl.projects.modules import find_module, names_imported_by, parse

_SPAWN: Final = frozenset({"torch.multiprocessing.spawn", "torch.multiprocessing.start_processes"})
_DETECTRON: Final = ("detectron2.engine.launch", "detectron2.engine.launch.launch")
_IGNITE: Final = "ignite.distributed.Parallel"
_OF_LIGHTNING: Final = ("ddp_spawn", "ddp_notebook", "ddp_fork")


_LAUNCH: Final = re.compile(
    r"(?<![\w.])(torchrun|torch\.distributed\.(?:run|launch)|accelerate[ .]launch|accelerate\.commands\.launch)\b"
)


def find_spawner(tree: ast.Module, text: str) -> int:
    """The line of the first call that starts ranks; 0 if there is none."""
    if not any(word in text for word in ("spawn", "start_processes", "nproc_per_node", "detectron2", "ddp_")):
        return 0
    names = dict(_imported(tree))
    lines = (node.lineno for node in ast.walk(tree) if isinstance(node, ast.Call) and _starts_ranks(node, names))
    return min(lines, default=0)


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Name in the script → the dotted name that it stands for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (alias.asname, alias.name) if alias.asname else (alias.name.partition(".")[0],) * 2
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _starts_ranks(call: ast.Call, names: Mapping[str, str]) -> bool:
    dotted = _dotted(call.func, names)
    keywords = {word.arg: word.value for word in call.keywords if word.arg is not None}
    if dotted in _SPAWN:
        return True
    if dotted == _IGNITE:
        return "nproc_per_node" in keywords
    if dotted in _DETECTRON:
        return True
    strategy = keywords.get("strategy")
    is_trainer = dotted.rpartition(".")[2] in ("Trainer", "Fabric") and "lightning" in dotted
    return is_trainer and isinstance(strategy, ast.Constant) and strategy.value in _OF_LIGHTNING


def _dotted(node: ast.AST, names: Mapping[str, str]) -> str:
    parts = list[str]()
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join((names.get(node.id, node.id), *reversed(parts)))


def find_launch(module: str, places: Sequence[Path]) -> tuple[str, Path, int] | None:
    """The launcher that a command's module, or one that it imports of its own package, starts; its file and line."""
    found = find_module(module, places)
    if found is None:
        return None
    path, package = found
    paths = [path]
    tree = parse(_bytes_of(path))
    for node in ast.walk(tree) if tree is not None else ():
        for imported in names_imported_by(node):
            base = package.split(".")[: len(package.split(".")) - imported.level + 1] if imported.level else []
            if imported.level or imported.module.partition(".")[0] == package.partition(".")[0]:
                dotted = ".".join([*base, *filter(None, (imported.module,))])
                names = (dotted, *(f"{dotted}.{name}" for name in imported.names))
                paths += [each[0] for name in names if (each := find_module(name, places)) is not None]
    for file in dict.fromkeys(paths):
        own = parse(_bytes_of(file))
        for node in ast.walk(own) if own is not None else ():
            text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            if isinstance(node, ast.ImportFrom) and node.module == "accelerate.commands.launch":
                text = node.module
            if (match := _LAUNCH.search(text)) and not _is_prose(text):
                launcher = "accelerate launch" if "accelerate" in match[1] else "torchrun"
                return launcher, file, getattr(node, "lineno", 0)
    return None


def _is_prose(text: str) -> bool:
    """True for a docstring or a help text, which may name a launcher that the code does not start."""
    first = text.strip().partition(" ")[0]
    return len(text) > 40 and _LAUNCH.search(first) is None and "python" not in first


def _bytes_of(path: Path) -> bytes:
    try:
        return read_regular(path, SOURCE)
    except OSError:
        return b""
