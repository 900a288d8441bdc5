"""Say whether a script ended because it found no GPU. `rank_hooks.py` asks when the script ends, and only if torch was
asked for a GPU and said no: by then the statement that ended the script is known, and its file is read.
"""

from __future__ import annotations

import ast
import linecache
import os
import re
from typing import Any, Iterator

from .gpu_state import is_project_file, refusals, states

OF_GPUS = re.compile(r"\b(?:gpus?|cuda|nccl|accelerators?)\b", re.IGNORECASE)
QUESTIONS = ("is_available", "device_count", "current_accelerator", "is_nccl_available")
OF_NUMBERS = (ZeroDivisionError, IndexError)
"""What `rank % torch.cuda.device_count()` and a list of no devices raise."""
LEAVING = ("exit", "quit", "_exit", "abort")


def note_of(error: Any, frame: Any) -> str:
    """Return `gpu-only WHAT` for an error about what GPUs alone have, `gpu-ended PLACE` for an end for want of a GPU,
    `gpu-asked PLACE` for a script that only asked for one, else nothing. `error`: the uncaught exception, or the status
    of an exit; `frame`: the innermost frame of the exception, or the one that exits."""
    if str(error) in refusals:
        return f"gpu-only {error}"
    gpu = states[0] if states else None
    if gpu is None or not gpu.asked:
        return ""
    if gpu.ended:
        return f"gpu-ended {gpu.ended}"
    while frame is not None and not is_project_file(frame[0]):
        frame = frame[2]
    if frame is not None and _is_for_want_of_gpu(error, frame[0], frame[1], gpu.asked):
        return f"gpu-ended {_place(frame[0], frame[1])}"
    name, line, _ = min(gpu.asked)
    return f"gpu-asked {_place(name, line)}"


def _place(name: str, line: int) -> str:
    return f"{os.path.basename(name)}, line {line}"


def frames_of(traceback: Any) -> Any:
    """Return the innermost frame of an exception, as file, line and the frame around it; None if there is none."""
    around: Any = None
    while traceback is not None:
        around = (traceback.tb_frame.f_code.co_filename, traceback.tb_lineno, around)
        traceback = traceback.tb_next
    return around


def frames_above(frame: Any) -> Any:
    """Return a frame as `frames_of` does: file, line and the frame around it; None for None."""
    return (frame.f_code.co_filename, frame.f_lineno, frames_above(frame.f_back)) if frame is not None else None


def _is_for_want_of_gpu(error: Any, name: str, line: int, asked: Any) -> bool:
    """True if the error is about GPUs, or if the statement that ended the script depends on an answer about GPUs."""
    if OF_GPUS.search(str(error)):
        return True
    try:
        tree = ast.parse("".join(linecache.getlines(name)))
    except (SyntaxError, ValueError, RecursionError):
        return False
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    words = {*QUESTIONS, *(function for _, _, function in asked if not function.startswith("<"))}
    for at in (number for file, number, _ in asked if file == name):
        for node in statements:
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and _is_at(node, at):
                words.update(_words(*(node.targets if isinstance(node, ast.Assign) else [node.target])))
    around = [node for node in statements if _is_at(node, line)]
    last = max(around, key=lambda node: node.lineno, default=None)
    if isinstance(last, ast.Assert) or (last is not None and isinstance(error, OF_NUMBERS)):
        return not words.isdisjoint(_words(last))
    leaves = isinstance(last, ast.Raise) or not {*LEAVING}.isdisjoint(_words(last))
    tests = [node.test for node in around if isinstance(node, (ast.If, ast.While))]
    return leaves and not words.isdisjoint(_words(*tests))


def _is_at(node: Any, line: int) -> bool:
    return bool(node.lineno <= line <= (node.end_lineno or node.lineno))


def _words(*nodes: Any) -> Iterator[str]:
    """Yield the names of variables, attributes and functions in these parts of a script."""
    for node in (part for given in nodes if given is not None for part in ast.walk(given)):
        if isinstance(node, (ast.Name, ast.Attribute)):
            yield node.id if isinstance(node, ast.Name) else node.attr
