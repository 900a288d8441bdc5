"""Find which checkpoints a script reads, from its text: the constants that reach a call which looks for a file or loads
one.

The call's arguments and variables may name other files, or keep the script from reading: `of_call` tells.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

_LOOKS: Final = frozenset({"exists", "isfile", "is_file", "glob", "iglob"})
_READS: Final = frozenset({*_LOOKS, "load", "open", "load_file", "load_checkpoint", "read_bytes"})
_OF_CHECKPOINT: Final = re.compile(r"(?=.*[^*/.].*\.)[^\n]{1,200}\.(?:pt|pth|ckpt|safetensors|pkl|npz|tar)")
_RANK_0: Final = re.compile(r"(?i)rank\b.* == 0$")
_OF_RANK_0: Final = "rank 0"
_MOST_CHECKPOINTS: Final = 20
_MOST_ASSIGNMENTS: Final = 6


class NamedCheckpoint(NamedTuple):
    file: str
    """A pattern; relative, or the end of a path that the script joins."""
    inputs: tuple[str, ...] = ()
    """Variables and `--options` from which the script makes the path."""
    guards: tuple[tuple[str, bool], ...] = ()
    """Flags under which the script reads the file: with the flag (True), or without it."""


def find_named_checkpoints(tree: ast.Module) -> tuple[NamedCheckpoint, ...]:
    """Return the checkpoints that a script reads; none unless it looks whether some file exists."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    if _LOOKS.isdisjoint(map(_name_of, calls)):
        return ()
    script = _ReadFiles(tree, calls)
    checkpoints = (checkpoint for call in calls if _name_of(call) in _READS for checkpoint in script.read_by(call))
    return tuple(dict.fromkeys(checkpoints))[:_MOST_CHECKPOINTS]


def of_call(
    named: Sequence[NamedCheckpoint], argv: Sequence[str], variables: Mapping[str, str | None]
) -> tuple[str, ...]:
    """Return the paths and patterns that a call reads. `variables`: those that the call sets; None for a secret."""
    return tuple(dict.fromkeys(path for checkpoint in named if (path := _path_of_call(checkpoint, argv, variables))))


def _path_of_call(checkpoint: NamedCheckpoint, argv: Sequence[str], variables: Mapping[str, str | None]) -> str:
    """Return the path of a checkpoint in this call; empty if the call's options keep the script from reading it, or if
    a secret names it."""
    options = {word.partition("=")[0].replace("_", "-") for word in argv}
    if any((flag in options) != is_wanted for flag, is_wanted in checkpoint.guards):
        return ""
    for name in checkpoint.inputs:
        value = _value_of(name, argv) if name.startswith("--") else variables.get(name, "")
        if value is None:
            return ""
        if value:
            is_file = _OF_CHECKPOINT.fullmatch(value)
            return posixpath.normpath(value if is_file else posixpath.join(value, posixpath.basename(checkpoint.file)))
    return checkpoint.file


def _value_of(option: str, argv: Sequence[str]) -> str:
    """Return the value of an option in the arguments; empty if it is not among them."""
    for at, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == option:
            return value if equals else next(iter(argv[at + 1 : at + 2]), "")
    return ""


class _ReadFiles:
    def __init__(self, tree: ast.Module, calls: Sequence[ast.Call]) -> None:
        self._values: dict[str, list[ast.expr]] = {}
        """Name or attribute → what is assigned to it."""
        self._above = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        self._flags = set[str]()
        for node in ast.walk(tree):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if isinstance(value := getattr(node, "value", None), ast.expr):
                for target in targets:
                    if name := getattr(target, "id", "") or getattr(target, "attr", ""):
                        self._values.setdefault(name, []).append(value)
        for call in calls:
            if _name_of(call) == "add_argument":
                names = [text.lstrip("-").replace("-", "_") for text in map(_text, call.args) if text] or [""]
                keywords = {keyword.arg: keyword.value for keyword in call.keywords}
                self._values.setdefault(f"--{names[-1]}", []).extend(filter(None, (keywords.get("default"),)))
                if _text(keywords.get("action")) == "store_true":
                    self._flags.add(names[-1])

    def read_by(self, call: ast.Call) -> Iterator[NamedCheckpoint]:
        """Yield the checkpoints that a call reads. A file that only rank 0 reads is left out, because rank 0 sends it
        to the others."""
        receiver = [call.func.value] if isinstance(call.func, ast.Attribute) else []
        files, inputs = dict[str, None](), dict[str, None]()
        for part in (*receiver, *call.args):
            self._follow(part, files, inputs, _MOST_ASSIGNMENTS)
        guards = tuple(dict.fromkeys(self._guards(call)))
        if (_OF_RANK_0, True) in guards:  # rank 0 sends the checkpoint to the others
            return
        for file in files:
            yield NamedCheckpoint(file, tuple(inputs), guards)

    def _follow(self, part: ast.AST, files: dict[str, None], inputs: dict[str, None], depth: int) -> None:
        """Add the files, and the options and variables that may name others, from which an expression gets its value.
        Names are followed through `depth` assignments."""
        for node in ast.walk(part):
            text = _text(node)
            if text and _OF_CHECKPOINT.fullmatch(text):
                files[posixpath.normpath(text)] = None
            if isinstance(node, ast.Call) and _name_of(node) in ("get", "getenv") and "env" in ast.unparse(node.func):
                inputs[_text(next(iter(node.args), None))] = None
            if isinstance(node, ast.Subscript) and "environ" in ast.unparse(node.value):
                inputs[_text(node.slice)] = None
            name = getattr(node, "id", "") or getattr(node, "attr", "")
            defaults = self._values.get(f"--{name}")
            if isinstance(node, ast.Attribute) and defaults is not None:
                inputs[f"--{name.replace('_', '-')}"] = None
            values = (*self._values.get(name, ()), *(defaults or ()))
            values += tuple(self._values.get("--", ())) if isinstance(node, ast.Attribute) else ()
            for value in values if name and depth else ():
                self._follow(value, files, inputs, depth - 1)

    def _guards(self, call: ast.Call) -> Iterator[tuple[str, bool]]:
        """Yield the flags in the conditions around a call that are joined by `and`, and whether each must be set."""
        node: ast.AST = call
        while (above := self._above.get(node)) is not None:
            tests: list[ast.expr] = []
            if isinstance(above, (ast.If, ast.IfExp)) and node is not above.test and node not in _orelse(above):
                tests = [above.test]
            elif isinstance(above, ast.BoolOp) and isinstance(above.op, ast.And):
                tests = above.values
            for test in tests:
                parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
                for part in parts:
                    if isinstance(part, ast.Compare) and _RANK_0.search(ast.unparse(part)):
                        yield _OF_RANK_0, True
                    is_wanted = not (isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Not))
                    name = getattr(part if is_wanted else getattr(part, "operand", None), "attr", "")
                    if name in self._flags:
                        yield f"--{name.replace('_', '-')}", is_wanted
            node = above


def _orelse(node: ast.If | ast.IfExp) -> Sequence[ast.AST]:
    return node.orelse if isinstance(node.orelse, list) else [node.orelse]


def _name_of(call: ast.Call) -> str:
    return str(getattr(call.func, "attr", "") or getattr(call.func, "id", ""))


def _text(node: ast.AST | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
