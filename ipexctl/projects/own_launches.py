"""Finds where code of a project starts ranks of its own: in a run of several ranks, each would start a training. Pure,
but for reading the project's modules.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ipexctl.file_reader import SOURCE, read_regular
from ipexctl.projects.modules import find_module, names_imported_by, parse

_SPAWN: Final = frozenset({"torch.multiprocessing.spawn", "torch.multiprocessing.start_processes"})
_DETECTRON: Final = ("detectron2.engine.launch", "detectron2.engine.launch.launch")
_IGNITE: Final = "ignite.distributed.Parallel"
_OF_LIGHTNING: Final = ("ddp_spawn", "ddp_notebook", "ddp_fork")


_LAUNCH: Final = re.compile(
    r"(?<![\w.])(torchrun|torch\.distributed\.(?:run|launch)|accelerate[ .]launch|accelerate\.commands\.launch)\b"
)
_MAKES_LAUNCHERS: Final = frozenset(("FORCE_TORCHRUN", "NPROC_PER_NODE"))
"""Variables that make a tool start torchrun: LLaMA-Factory, and ms-swift and xtuner."""


class Spawner(NamedTuple):
    """The first call of a module that starts ranks."""

    file: str
    line: int
    strategy: str
    """Lightning's strategy that starts them; or empty. With a rank's variables, each of them becomes rank 0 of 1."""


def find_spawner(tree: ast.Module, text: str, file: str) -> Spawner | None:
    if not any(word in text for word in ("spawn", "start_processes", "nproc_per_node", "detectron2", "ddp_")):
        return None
    names = dict(_imported(tree))
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    found = (
        Spawner(file, call.lineno, strategy) for call in calls if (strategy := _starts_ranks(call, names)) is not None
    )
    return min(found, default=None, key=lambda spawner: spawner.line)


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Name in the script → the dotted name that it stands for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (alias.asname, alias.name) if alias.asname else (alias.name.partition(".")[0],) * 2
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _starts_ranks(call: ast.Call, names: Mapping[str, str]) -> str | None:
    """The strategy of a call that starts ranks, or empty; None for any other call."""
    dotted = _dotted(call.func, names)
    keywords = {word.arg: word.value for word in call.keywords if word.arg is not None}
    if dotted in (*_SPAWN, *_DETECTRON) or (dotted == _IGNITE and "nproc_per_node" in keywords):
        return ""
    strategy = keywords.get("strategy")
    is_trainer = dotted.rpartition(".")[2] in ("Trainer", "Fabric") and "lightning" in dotted
    value = strategy.value if isinstance(strategy, ast.Constant) else None
    return value if is_trainer and isinstance(value, str) and value in _OF_LIGHTNING else None


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
            elif not _MAKES_LAUNCHERS.isdisjoint(_set_variables(node)):
                text = "torchrun"
            if (match := _LAUNCH.search(text)) and not _is_prose(text):
                launcher = "accelerate launch" if "accelerate" in match[1] else "torchrun"
                return launcher, file, getattr(node, "lineno", 0)
    return None


def _set_variables(node: ast.AST) -> Iterator[str]:
    """Names that a node sets as a mapping's keys: `env["NAME"] = …`, `{"NAME": …}` or `dict(env, NAME=…)`."""
    if isinstance(node, ast.Call):
        yield from (word.arg for word in node.keywords if word.arg is not None)
    keys = node.keys if isinstance(node, ast.Dict) else []
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        keys = [node.slice]
    yield from (key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str))


def _is_prose(text: str) -> bool:
    """True for a docstring or a help text, which may name a launcher that the code does not start."""
    first = text.strip().partition(" ")[0]
    return len(text) > 40 and _LAUNCH.search(first) is None and "python" not in first


def _bytes_of(path: Path) -> bytes:
    try:
        return read_regular(path, SOURCE)
    except OSError:
        return b""
