"""Finds calls by which a script starts ranks of its own: with several ranks, each would start a training. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Final

_SPAWN: Final = frozenset({"torch.multiprocessing.spawn", "torch.multiprocessing.start_processes"})
_DETECTRON: Final = ("detectron2.engine.launch", "detectron2.engine.launch.launch")
_IGNITE: Final = "ignite.distributed.Parallel"
_OF_LIGHTNING: Final = ("ddp_spawn", "ddp_notebook", "ddp_fork")


def find_spawner(tree: ast.Module) -> int:
    """The line of the first call that starts ranks; 0 if there is none."""
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
