"""How many optimizer steps a training will make, where its own code says so: a number such as `max_steps` of a loop's
frame, or enclosing `for` loops of known lengths; and how many of them an earlier process made, if this one resumes.
Nothing of the script is called but `len()` of lists and loaders.
"""

from __future__ import annotations

import ast
import functools
import linecache
import os
import sys
from typing import Any

NAMES = ("max_steps", "max_train_steps", "max_iters", "num_training_steps", "total_steps", "num_steps")
COUNTERS = ("global_step", "completed_steps", "iter_num")
"""Of the steps so far, also of those before a checkpoint."""
HOLDERS = ("args", "config", "cfg", "state", "self", "hparams", "opt")
"""Variables whose attributes may have such a number."""
DEEPEST = 60
ACCUMULATES = ("accum", "no_sync")
DIRECTORY = os.path.join(os.path.dirname(__file__), "")


def planned_steps(done: int) -> tuple[int, int]:
    """Return the steps of the whole training, and those before this process; (0, 0) if unknown. An optimizer's step
    calls it."""
    total, before, script = 1, 0, ""
    frame: Any = sys._getframe(1)
    for _ in range(DEEPEST):
        if frame is None:
            break
        if (steps := named_steps(frame.f_locals, done))[0]:
            return steps
        file = frame.f_code.co_filename
        if "site-packages" not in file and not file.startswith(DIRECTORY) and file[:1] != "<":
            loops = loops_of(frame)
            if loops is None:
                return 0, 0
            for length, skipped in loops:
                before += skipped * total
                total *= length + skipped
            script = script or (file if loops else "")
        frame = frame.f_back
    return (total, before) if script and total - before >= max(done, 2) else (0, 0)


def first_step(optimizer: Any) -> tuple[int, bool]:
    """Return the number of the process's first step, and whether a Trainer says so; (0, False) if unknown. An
    optimizer's step calls it.

    Without a Trainer, the optimizer's state tells, which a script may have left out of its checkpoint.
    """
    frame: Any = sys._getframe(1)
    for _ in range(DEEPEST):
        if frame is None:
            break
        state: Any = getattr(frame.f_locals.get("self"), "__dict__", {}).get("state")
        step = getattr(state, "global_step", None)  # Lightning's TrainerState has none
        if type(state).__name__ == "TrainerState" and type(step) is int:
            return step + 1, True
        frame = frame.f_back
    steps = (kept["step"] for kept in getattr(optimizer, "state", {}).values() if "step" in kept)
    return int(next(steps, 0)), False


def named_steps(variables: dict[str, Any], done: int) -> tuple[int, int]:
    """Return the steps of the whole training, and those before this process, by names in a frame such as `max_steps`;
    the first is 0 if no name tells. `done`: steps of this process so far."""
    holders = [vars(variables[name]) for name in HOLDERS if hasattr(variables.get(name), "__dict__")]
    states = [vars(each["state"]) for each in holders if hasattr(each.get("state"), "__dict__")]
    counts = (each.get(name) for each in (*states, variables, *holders) for name in COUNTERS)
    counted = next((each for each in counts if type(each) is int), 0)
    found = (each.get(name) for each in (*states, variables, *holders) for name in NAMES)
    planned = next((each for each in found if type(each) is int and each >= done), 0)
    trainers = [each["trainer"] for each in holders if type(each.get("trainer")).__name__ == "Trainer"]
    for trainer in trainers[:1]:  # of Lightning
        epochs, batches = getattr(trainer, "max_epochs", None), getattr(trainer, "num_training_batches", None)
        if type(epochs) is int and type(batches) is int and epochs > 0:
            planned = epochs * -(-batches // max(1, int(getattr(trainer, "accumulate_grad_batches", 1))))
            planned = min(planned, limit) if (limit := int(getattr(trainer, "max_steps", 0))) > 0 else planned
            loop = getattr(getattr(trainer, "fit_loop", None), "epoch_loop", None)
            counted = int(getattr(loop, "_batches_that_stepped", 0))
    before = max(0, min(counted + 1, planned) - done)
    return planned, before if before > 1 else 0  # a script may count before the step


def loops_of(frame: Any) -> list[tuple[int, int]] | None:
    """Return the lengths of the loops around the frame's line, the innermost first, each with what a resumed script
    leaves out. None if one is unknown."""
    lengths = []
    for source, loop in _loops(frame.f_code.co_filename):
        if not loop.lineno < frame.f_lineno <= (loop.end_lineno or 0) or frame.f_code.co_firstlineno > loop.lineno:
            continue
        length = length_of(loop.iter, frame) if isinstance(loop, ast.For) else None
        if not length or not length[0] or any(word in source for word in ACCUMULATES):
            return None
        lengths.append(length)
    return lengths[::-1]


@functools.lru_cache(maxsize=32)
def _loops(file: str) -> list[tuple[str, Any]]:
    """Return the loops of a file, each with the file's text; empty if it can't be parsed."""
    source = "".join(linecache.getlines(file))
    try:
        return [(source, node) for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.For, ast.While))]
    except SyntaxError:
        return []


def length_of(node: Any, frame: Any) -> tuple[int, int] | None:
    """Return the rounds of a loop over this expression, and the rounds before them that a resumed script leaves out;
    None if unknown."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id in ("range", "trange"):
            numbers = [value_of(argument, frame) for argument in node.args]
            if not numbers or not all(type(argument) is int for argument in numbers):
                return None
            # range(begin, all) or range(begin + 1, all + 1)
            first = numbers[0] - isinstance(node.args[1], ast.BinOp) if len(numbers) == 2 else 0
            return len(range(*numbers)), first if first > 1 else 0
        if node.func.id in ("enumerate", "tqdm") and node.args:
            return length_of(node.args[0], frame)
    value = value_of(node, frame)
    is_known = isinstance(value, (list, tuple, range)) or type(value).__name__ == "DataLoader"
    return (len(value), 0) if is_known else None


def value_of(node: Any, frame: Any) -> Any:
    """Return the value of a constant, a variable or an attribute that no code computes, or of that plus 1; else
    None."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and getattr(node.right, "value", None) == 1:
        value = value_of(node.left, frame)
        return value + 1 if type(value) is int else None
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Attribute):
        return getattr(value_of(node.value, frame), "__dict__", {}).get(node.attr)
    return None
