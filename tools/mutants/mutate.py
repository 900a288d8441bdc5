"""Finds the places of a source file where one small change makes a mutant, and makes it. Pure.

In comes the text of a module; out come mutants, each with the whole changed text. A mutant changes one expression,
which is written anew from its syntax tree, and keeps every other character. Places whose change nobody could observe
are left out: annotations, blocks for type checkers, and the texts of messages.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

Kind = Literal["threshold", "comparison", "and-or", "guard", "if-else", "precedence"]
KINDS: Final[tuple[Kind, ...]] = ("threshold", "comparison", "and-or", "guard", "if-else", "precedence")
_NEAR: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
_LEAVES: Final = (ast.Return, ast.Raise, ast.Continue, ast.Break)


class Mutant(NamedTuple):
    """One changed expression."""

    kind: Kind
    line: int
    before: str
    after: str
    text: str
    """The whole module with the change."""


def mutants_of(text: str) -> list[Mutant]:
    """All mutants of a module, in the order of its lines."""
    starts = _line_starts(text)
    found = []
    for kind, node, changed in _changes(ast.parse(text)):
        start, end = (
            starts[line - 1] + column
            for line, column in (
                (node.lineno, node.col_offset),
                (node.end_lineno or node.lineno, node.end_col_offset or 0),
            )
        )
        data = text.encode()
        after = ast.unparse(changed)
        whole = data[:start] + (after if isinstance(changed, ast.Constant) else f"({after})").encode() + data[end:]
        found.append(Mutant(kind, node.lineno, ast.unparse(node), after, whole.decode()))
    return sorted(found, key=lambda mutant: (mutant.line, mutant.kind, mutant.after))


def is_in_function(text: str, line: int) -> bool:
    """Whether a line of a module is part of a function or method: the rest counts when the module is imported."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    return any(
        node.lineno <= line <= (node.end_lineno or node.lineno)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, functions)
    )


def _line_starts(text: str) -> list[int]:
    """The offset in bytes of each line, as columns of a syntax tree count bytes."""
    starts = [0]
    for line in text.encode().split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    return starts


def _changes(tree: ast.AST) -> Iterator[tuple[Kind, ast.expr, ast.expr]]:
    """An expression, and the one that takes its place."""
    tested = (node for node in ast.walk(tree) if isinstance(node, (ast.If, ast.IfExp, ast.While, ast.Assert)))
    conditions = {id(node.test) for node in tested}
    for node in _code_of(tree):
        if isinstance(node, ast.Compare):
            yield from _comparisons(node)
        elif isinstance(node, ast.BoolOp):
            other = copy.copy(node)
            other.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield "and-or", node, other
            if (
                isinstance(node.op, ast.Or)
                and id(node) not in conditions
                and not any(map(_is_true_or_false, node.values))
            ):
                other = copy.copy(node)
                other.values = node.values[::-1]
                yield "precedence", node, other
        elif isinstance(node, ast.IfExp):
            yield "if-else", node, ast.IfExp(node.test, node.orelse, node.body)
        elif isinstance(node, ast.If) and node.orelse:
            yield "if-else", node.test, ast.UnaryOp(ast.Not(), node.test)
        elif isinstance(node, ast.If) and isinstance(node.body[-1], _LEAVES):
            yield "guard", node.test, ast.Constant(False)
        elif isinstance(node, ast.Dict) and node.keys.count(None) > 1:
            other_dict = copy.copy(node)
            other_dict.keys, other_dict.values = node.keys[::-1], node.values[::-1]
            yield "precedence", node, other_dict
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield from _numbers(node.value)  # a constant with a name, or a default of a class


def _is_true_or_false(node: ast.expr) -> bool:
    """Among such values the order of an `or` decides nothing."""
    return isinstance(node, (ast.Compare, ast.BoolOp)) or (
        isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    )


def _comparisons(node: ast.Compare) -> Iterator[tuple[Kind, ast.expr, ast.expr]]:
    if len(node.ops) == 1 and type(node.ops[0]) in _NEAR:
        other = copy.copy(node)
        other.ops = [_NEAR[type(node.ops[0])]()]
        yield "comparison", node, other
    for value in (node.left, *node.comparators):
        yield from _numbers(value)


def _numbers(node: ast.expr) -> Iterator[tuple[Kind, ast.expr, ast.expr]]:
    """A number that stands alone, one more and one less."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        value = node.value
        assert isinstance(value, (int, float))
        yield "threshold", node, ast.Constant(value + 1)
        yield "threshold", node, ast.Constant(value - 1)


def _code_of(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node whose change can be observed."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        if isinstance(child, (ast.JoinedStr, ast.arg)):
            continue
        yield child
        if isinstance(child, ast.AnnAssign):
            if child.value is not None:
                yield child.value
                yield from _code_of(child.value)
            continue
        yield from _code_of(child)
