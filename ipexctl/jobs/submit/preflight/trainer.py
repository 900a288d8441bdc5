"""Notes that the installed transformers multiplies the loss of a Trainer by the number of ranks. Pure.

Since 4.54, TrainingArguments have average_tokens_across_devices=True: `Trainer.compute_loss` then multiplies the loss
of each rank by the number of ranks, because the model is expected to divide it by num_items_in_batch of all ranks. A
model that takes it, as one of its **kwargs, and ignores it gets a loss and gradients that are too large. 4.46 to 4.53
have the same lines with False as the default. Comes in: the source of the script, its arguments, the packages of the
environment. Goes out: a note, or an empty text, also for a script that names the setting.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_TRAINERS: Final = frozenset({"Trainer", "Seq2SeqTrainer"})
_FIRST: Final = "4.54"
SETTING: Final = "average_tokens_across_devices"
_OF_MODEL: Final = "accepts_loss_kwargs"


def uses_trainer(tree: ast.Module) -> bool:
    """Whether it uses a Trainer of transformers and names neither the setting nor what the model has for it."""
    has_trainer = False
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            of_transformers = node.module.partition(".")[0] == "transformers"
            has_trainer |= of_transformers and any(alias.name in _TRAINERS for alias in node.names)
        elif isinstance(node, ast.Attribute):
            is_module = isinstance(node.value, ast.Name) and node.value.id == "transformers"
            has_trainer |= is_module and node.attr in _TRAINERS
        if {SETTING, _OF_MODEL} & _names(node):
            return False
    return has_trainer


def _names(node: ast.AST) -> set[object]:
    """Names that the node sets or has as a text, such as those of a dictionary of arguments."""
    if isinstance(node, ast.keyword):
        return {node.arg}
    if isinstance(node, ast.Attribute):
        return {node.attr}
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return {node.value, node.value.removeprefix("--")}
    return set()


def trainer_note(*, uses_it: bool, argv: Sequence[str], packages: Mapping[str, str], ranks: int) -> str:
    """The note; empty for one rank, another version, or a call that has the setting."""
    if not uses_it or ranks < 2 or any(SETTING in word for word in argv):
        return ""
    from ipexctl.launch.accelerate_env import before  # slow to import, and few scripts use a Trainer

    version = packages.get("transformers", "")
    if not version or before(version, _FIRST):
        return ""
    return (
        f"transformers {version} multiplies loss and gradients by the number of ranks ({ranks}) if the model's forward "
        f"takes **kwargs and ignores num_items_in_batch; TrainingArguments({SETTING}=False) prevents that"
    )
