"""Find where the module of a command starts a launcher, such as torchrun: in a run of several ranks, each rank would
start a training of its own. The modules are read, not run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ipexctl.file_reader import SOURCE, read_or_empty
from ipexctl.projects.modules import find_module, names_imported_by, parse

_LAUNCHER_TEXT: Final = re.compile(
    r"(?<![\w.])(torchrun|torch\.distributed\.(?:run|launch)|accelerate[ .]launch|accelerate\.commands\.launch)\b"
)
_MAKES_LAUNCHERS: Final = frozenset(("FORCE_TORCHRUN", "NPROC_PER_NODE"))
"""Variables that make a tool start torchrun: LLaMA-Factory, and ms-swift and xtuner."""
_STARTS_PROCESS: Final = re.compile(
    r"subprocess\.(run|call|Popen|check_call|check_output|getoutput|getstatusoutput)|os\.(system|popen|exec\w+|spawn\w+)"
    r"|os\.posix_spawnp?|asyncio\.create_subprocess_(exec|shell)"
)
_LAUNCHER_FUNCTION: Final = re.compile(
    r"torch\.distributed\.(run|launch)\.(main|run)|torch\.distributed\.launcher\.(api\.)?elastic_launch"
    r"|accelerate\.commands\.launch\.(main|launch_command|multi_gpu_launcher|simple_launcher)"
)
"""Functions of launchers that start ranks."""
_LOOKS_FOR: Final = re.compile(r"(which|whereis|command -v|pip3?|pgrep|pkill|killall)\b")
"""Programs that get the name of a launcher as an argument and do not start it."""
_TARGET: Final = re.compile(
    r"(?:^|\s)(?:-m\s+(?!torch\.|accelerate\.)(?P<module>[A-Za-z_][\w.]*)|(?P<file>[\w./-]+\.py))(?=\s|$)"
)


class LauncherCall(NamedTuple):
    """A call that starts a launcher."""

    launcher: str
    file: Path
    line: int
    targets: tuple[str, ...]
    """What the launcher may be given to start: paths of scripts, and names of modules behind `-m `."""


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield each name that the script imports, and the dotted name for which it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (alias.asname, alias.name) if alias.asname else (alias.name.partition(".")[0],) * 2
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _dotted(node: ast.AST, names: Mapping[str, str]) -> str:
    """Return the dotted name of an expression, such as `os.system`, with imported names resolved; empty for any other
    expression."""
    parts = list[str]()
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join((names.get(node.id, node.id), *reversed(parts)))


def find_launch(module: str, places: Sequence[Path]) -> LauncherCall | None:
    """Return the first call that starts a launcher, in a command's module or in a module of its own package that it
    imports; None if there is none."""
    module_file = find_module(module, places)
    if module_file is None:
        return None
    path, package = module_file
    paths = [path]
    tree = parse(read_or_empty(path, SOURCE))
    for node in ast.walk(tree) if tree is not None else ():
        for imported in names_imported_by(node):
            base = package.split(".")[: len(package.split(".")) - imported.level + 1] if imported.level else []
            if imported.level or imported.module.partition(".")[0] == package.partition(".")[0]:
                dotted = ".".join([*base, *filter(None, (imported.module,))])
                names = (dotted, *(f"{dotted}.{name}" for name in imported.names))
                paths += [
                    imported_file[0] for name in names if (imported_file := find_module(name, places)) is not None
                ]
    trees = {file: own for file in dict.fromkeys(paths) if (own := parse(read_or_empty(file, SOURCE))) is not None}
    helpers = frozenset(name for own in trees.values() for name in _process_helpers(own))
    return next((launch for file, own in trees.items() if (launch := _launch_in(own, file, helpers)) is not None), None)


def _launch_in(tree: ast.Module, file: Path, helpers: Collection[str]) -> LauncherCall | None:
    """Return the first call in a module that starts a launcher; None if there is none. `helpers`: functions that start
    a process from their arguments."""
    names, values = dict(_imported(tree)), _values_by_name(tree)
    for node in ast.walk(tree):
        if not _MAKES_LAUNCHERS.isdisjoint(_set_variables(node)):
            return LauncherCall("torchrun", file, getattr(node, "lineno", 0), ())
        if not isinstance(node, ast.Call):
            continue
        dotted = _dotted(node.func, names)
        texts = [dotted] if _LAUNCHER_FUNCTION.fullmatch(dotted) else []
        if _STARTS_PROCESS.fullmatch(dotted) or dotted.rpartition(".")[2] in helpers:
            texts = list(_texts_reached([*node.args, *(word.value for word in node.keywords)], values))
        if match := next((match for text in texts if (match := _LAUNCHER_TEXT.search(text))), None):
            targets = (target[2] or f"-m {target[1]}" for text in texts for target in _TARGET.finditer(text))
            launcher = "accelerate launch" if "accelerate" in match[1] else "torchrun"
            return LauncherCall(launcher, file, node.lineno, tuple(targets))
    return None


def _process_helpers(tree: ast.Module) -> Iterator[str]:
    """Yield the names of functions that start a process."""
    names = dict(_imported(tree))
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            calls = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
            if any(_STARTS_PROCESS.fullmatch(_dotted(call, names)) for call in calls):
                yield function.name


def _values_by_name(tree: ast.Module) -> dict[str, list[ast.AST]]:
    """Return what code assigns or appends to each variable or attribute, and what each function returns, by name."""
    values: dict[str, list[ast.AST]] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                values.setdefault(_last_name(target), []).append(node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("append", "extend", "insert"):
                values.setdefault(_last_name(node.func.value), []).extend(node.args)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            returned = (statement.value for statement in ast.walk(node) if isinstance(statement, ast.Return))
            values.setdefault(node.name, []).extend(value for value in returned if value is not None)
    return values


def _last_name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _texts_reached(nodes: Sequence[ast.AST], values: Mapping[str, Sequence[ast.AST]]) -> Iterator[str]:
    """Yield the texts in a command's expressions, and in the values of their names. What is only compared is left
    out."""
    waiting, seen = list(nodes), {""}
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.Compare):
            continue
        text = _text_of(node)
        if text and not _LOOKS_FOR.match(text):
            yield text
        if (name := _last_name(node)) not in seen:
            seen.add(name)
            waiting += values.get(name, ())
        waiting += [child for child in ast.iter_child_nodes(node) if not (text and isinstance(child, ast.Constant))]


def _text_of(node: ast.AST) -> str:
    """Return a literal text, with `_` for what it does not show; the words of a list, joined by blanks; empty for
    anything else."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text_of(part) or "_" for part in node.values)
    if isinstance(node, (ast.List, ast.Tuple)):
        return " ".join(_text_of(item) or "_" for item in node.elts)
    return ""


def _set_variables(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node sets as a mapping's keys: `env["NAME"] = …`, `{"NAME": …}` or `dict(env, NAME=…)`."""
    if isinstance(node, ast.Call):
        yield from (word.arg for word in node.keywords if word.arg is not None)
    keys = node.keys if isinstance(node, ast.Dict) else []
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        keys = [node.slice]
    yield from (key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str))
