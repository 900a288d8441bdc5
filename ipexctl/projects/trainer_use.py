"""Tell by its syntax tree whether a script trains with a Trainer or with accelerate, and resumes by itself."""

from __future__ import annotations

import ast
from typing import Final

from ipexctl.projects.modules import modules_imported_by, names_imported_by
from ipexctl.projects.script_file import ResumeFlag

_TRAINERS: Final = frozenset({"Trainer", "Seq2SeqTrainer"})
SETTING: Final = "average_tokens_across_devices"
_OF_MODEL: Final = "accepts_loss_kwargs"


def uses_trainer(tree: ast.Module) -> bool:
    """Return True if the script uses a Trainer of transformers and names neither the setting nor the model's part of
    it."""
    has_trainer = any(map(_is_trainer, ast.walk(tree)))
    return has_trainer and not any({SETTING, _OF_MODEL} & _names(node) for node in ast.walk(tree))


def uses_accelerate(tree: ast.Module) -> bool:
    """Return True if the script's ranks meet by accelerate: it imports accelerate, or a Trainer, which does."""
    return any(_is_trainer(node) or "accelerate" in modules_imported_by(node) for node in ast.walk(tree))


def _is_trainer(node: ast.AST) -> bool:
    """Return True for `transformers.Trainer` and for an import of a Trainer."""
    if isinstance(node, ast.Attribute):
        is_module = isinstance(node.value, ast.Name) and node.value.id == "transformers"
        return is_module and node.attr in _TRAINERS
    is_transformers = "transformers" in modules_imported_by(node)
    return is_transformers and any(not _TRAINERS.isdisjoint(name.names) for name in names_imported_by(node))


def _names(node: ast.AST) -> set[object]:
    """Return the names and the text of a node; none for other kinds of nodes. A text counts with and without leading
    `--`."""
    if isinstance(node, ast.keyword):
        return {node.arg}
    if isinstance(node, ast.Attribute):
        return {node.attr}
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return {node.value, node.value.removeprefix("--")}
    return set()


_LAST_CHECKPOINT: Final = "get_last_checkpoint"


def find_resume_call(tree: ast.Module) -> ResumeFlag | None:
    """Return how a script resumes that uses `get_last_checkpoint` of transformers; None if it does not, or if it mends
    the Trainer's resume itself."""
    names = {name for node in ast.walk(tree) for name in _names(node)}
    return ResumeFlag(_LAST_CHECKPOINT) if _LAST_CHECKPOINT in names and "register_package" not in names else None
