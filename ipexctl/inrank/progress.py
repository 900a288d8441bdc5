"""How many optimizer steps a training will make, where its own code says so: a number such as `max_steps` of a loop's
frame, or enclosing `for` loops of known lengths. Nothing of the script is called but `len()` of lists and loaders.
"""

from __future__ import annotations

import ast
import functools
import linecache
import sys
from typing import Any

NAMES = ("max_steps", "max_train_steps", "max_iters", "num_training_steps", "total_steps", "num_steps")
HOLDERS = ("args", "config", "cfg", "state", "self", "hparams", "opt")
"""Variables whose attributes may have such a number."""
DEEPEST = 60
ACCUMULATES = ("accum", "no_sync")


def planned_steps(done: int) -> int:
    """Called from an optimizer's step; 0 if unknown."""
    loops, place = 1, ""
    frame: Any = sys._getframe(1)
    for _ in range(DEEPEST):
        if frame is None:
            break
        if steps := named_steps(frame.f_locals, done):
            return steps
        file = frame.f_code.co_filename
        if "site-packages" not in file and "/inrank/" not in file and file[:1] != "<":
            found = loops_of(frame)
            if found is None:
                return 0
            loops, place = loops * found, place or file
        frame = frame.f_back
    return loops if place and loops >= max(done, 2) else 0


def named_steps(variables: dict[str, Any], done: int) -> int:
    holders = [vars(variables[name]) for name in HOLDERS if hasattr(variables.get(name), "__dict__")]
    states = [vars(each["state"]) for each in holders if hasattr(each.get("state"), "__dict__")]
    for state in states:  # of a Trainer; a resumed one has made steps in an earlier process
        if type(most := state.get("max_steps")) is int and most >= done and type(state.get("global_step")) is int:
            return max(done, most - max(0, int(state["global_step"]) + 1 - done))
    found = (each.get(name) for each in (variables, *holders, *states) for name in NAMES)
    trainers = [each["trainer"] for each in holders if type(each.get("trainer")).__name__ == "Trainer"]
    for trainer in trainers:  # of Lightning
        epochs, batches = getattr(trainer, "max_epochs", None), getattr(trainer, "num_training_batches", None)
        if type(epochs) is int and type(batches) is int and epochs > 0:
            planned = epochs * -(-batches // max(1, int(getattr(trainer, "accumulate_grad_batches", 1))))
            return min(planned, limit) if (limit := int(getattr(trainer, "max_steps", 0))) > 0 else planned
    return next((each for each in found if type(each) is int and each >= done), 0)


def loops_of(frame: Any) -> int | None:
    """Product of the lengths of the loops around the frame's line; None if one is unknown."""
    product = 1
    for source, loop in _loops(frame.f_code.co_filename):
        if not loop.lineno < frame.f_lineno <= (loop.end_lineno or 0) or frame.f_code.co_firstlineno > loop.lineno:
            continue
        length = length_of(loop.iter, frame) if isinstance(loop, ast.For) else None
        if not length or any(word in source for word in ACCUMULATES):
            return None
        product *= length
    return product


@functools.lru_cache(maxsize=32)
def _loops(file: str) -> list[tuple[str, Any]]:
    source = "".join(linecache.getlines(file))
    try:
        return [(source, node) for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.For, ast.While))]
    except SyntaxError:
        return []


def length_of(node: Any, frame: Any) -> int | None:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id in ("range", "trange"):
            numbers = [value_of(each, frame) for each in node.args]
            return len(range(*numbers)) if numbers and all(type(each) is int for each in numbers) else None
        if node.func.id in ("enumerate", "tqdm") and node.args:
            return length_of(node.args[0], frame)
    value = value_of(node, frame)
    is_known = isinstance(value, (list, tuple, range)) or type(value).__name__ == "DataLoader"
    return len(value) if is_known else None


def value_of(node: Any, frame: Any) -> Any:
    """The value of a constant, a variable or an attribute that no code computes; else None."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Attribute):
        return getattr(value_of(node.value, frame), "__dict__", {}).get(node.attr)
    return None
