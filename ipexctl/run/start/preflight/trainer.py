"""Notes about the Trainer of the installed transformers: its loss over several ranks, and `--use_ipex`. Pure.
Since 4.54, TrainingArguments have average_tokens_across_devices=True (4.46 to 4.53: False): `Trainer.compute_loss`
multiplies each rank's loss by the number of ranks, because the model is expected to divide it by num_items_in_batch of
all ranks. A model that takes it, as one of its **kwargs, and ignores it gets too large a loss and gradients.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Final

from ipexctl.hugging_face import LAST_ACCELERATE, LAST_USE_IPEX, WITHOUT_USE_IPEX

_TRAINERS: Final = frozenset({"Trainer", "Seq2SeqTrainer"})
_FIRST: Final = "4.54"
SETTING: Final = "average_tokens_across_devices"
_OF_MODEL: Final = "accepts_loss_kwargs"


def has_trainer(tree: ast.Module) -> bool:
    return any(map(_is_trainer, ast.walk(tree)))


def uses_trainer(tree: ast.Module) -> bool:
    """True if it uses a Trainer of transformers and names neither the setting nor the model's part of it."""
    return has_trainer(tree) and not any({SETTING, _OF_MODEL} & _names(node) for node in ast.walk(tree))


def uses_accelerate(tree: ast.Module) -> bool:
    """True if its ranks meet by accelerate: it imports it, or a Trainer, which does."""
    return any(_is_trainer(node) or _imports_accelerate(node) for node in ast.walk(tree))


def _is_trainer(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
        of_transformers = node.module.partition(".")[0] == "transformers"
        return of_transformers and any(alias.name in _TRAINERS for alias in node.names)
    if isinstance(node, ast.Attribute):
        is_module = isinstance(node.value, ast.Name) and node.value.id == "transformers"
        return is_module and node.attr in _TRAINERS
    return False


def _imports_accelerate(node: ast.AST) -> bool:
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    if isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
        names = [node.module]
    return any(name.partition(".")[0] == "accelerate" for name in names)


def _names(node: ast.AST) -> set[object]:
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
    """Empty for one rank, another version, or a call that has the setting."""
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


def sets_use_ipex(argv: Sequence[str]) -> bool:
    """True if the arguments have the Trainer's flag, in either spelling, and not `False`."""
    for at, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name in ("--use_ipex", "--use-ipex"):
            text = value if equals else argv[at + 1] if at + 1 < len(argv) else ""
            return text.lower() not in ("false", "no", "0")
    return False


def use_ipex_note(packages: Mapping[str, str], versions: Mapping[str, str]) -> str:
    """A note if the script's `--use_ipex` fails or does nothing, with what replaces it; else empty.
    `versions`: package → the last version for the environment's stack that still has IPEX.
    """
    from ipexctl.launch.accelerate_env import IPEX, before, no_optimize  # slow to import, and few calls need it

    version = packages.get("transformers", "")
    if not version or before(version, WITHOUT_USE_IPEX):
        return no_optimize(packages, "--use_ipex")
    last = {"transformers": LAST_USE_IPEX, "accelerate": LAST_ACCELERATE, **versions}
    older = " ".join(f"--with {name}=={last[name]}" for name in ("transformers", "accelerate"))
    stack = "" if IPEX in packages else " --stack ipex"
    return (
        f"--use_ipex: transformers {version} has no such argument; leave it out and call ipex.optimize in the script, "
        f"or ipexctl install{stack} {older}"
    )
