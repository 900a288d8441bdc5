"""How many steps a training will make, from its frames: scripts that call `step` where an optimizer would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ipexctl.inrank import progress

ROOT = Path(__file__).parents[3]
BEFORE = """\
import argparse, sys
from ipexctl.inrank.progress import planned_steps
made, found = 0, []
def step():
    global made
    made += 1
    found.append(planned_steps(made))
class DataLoader(list):
    pass
args = argparse.Namespace(epochs=3, steps=20)
loader = DataLoader([1, 2, 3, 4])
"""
LIGHTNING = """\
class Trainer:
    def __init__(self, *values):
        self.max_epochs, self.num_training_batches, self.accumulate_grad_batches, self.max_steps = values
def advance(self):
    step()
loop = argparse.Namespace()
"""
TRAINER = """\
def train(self):
    for _ in range(5):
        step()
        self.state.global_step += 1
t = argparse.Namespace()
"""


@pytest.mark.parametrize(
    ("script", "planned", "before"),
    [
        ("for _ in range(20): \n    step()", 20, 0),
        ("for _ in range(args.steps):\n    step()", 20, 0),
        ("for epoch in range(args.epochs):\n    for i, x in enumerate(loader):\n        step()", 12, 0),
        ("def epoch():\n    for x in loader:\n        step()\nfor _ in range(1, 4):\n    epoch()", 12, 0),
        ("max_steps = 40\nwhile made < 10:\n    step()", 40, 0),
        ("class T:\n    pass\ndef train(self):\n    step()\nt = T()\nt.max_steps = 9\ntrain(t)", 9, 0),
        (f"{LIGHTNING}loop.trainer = Trainer(3, 10, 4, -1)\nadvance(loop)", 9, 0),
        (f"{LIGHTNING}loop.trainer = Trainer(3, 10, 4, 5)\nadvance(loop)", 5, 0),
        (f"{LIGHTNING}loop.trainer = Trainer(-1, 10, 4, 5)\nloop.max_steps = 5\nadvance(loop)", 5, 0),
        (f"{TRAINER}t.state = argparse.Namespace(max_steps=120, global_step=0)\ntrain(t)", 120, 0),
        (f"{TRAINER}t.state = argparse.Namespace(max_steps=120, global_step=50)\ntrain(t)", 120, 50),
        ("while made < 10:\n    step()", 0, 0),
        ("for x in iter(loader):\n    step()", 0, 0),
        ("for x in (y for y in loader):\n    step()", 0, 0),
        ("accumulate = 4\nfor x in range(20):\n    step()", 0, 0),
        ("for x in range(len(loader)):\n    step()", 0, 0),
        ("max_steps = 2\nfor _ in range(5):\n    step()", 5, 0),
        ("step()", 0, 0),
        ("start = 15\nfor _ in range(start, 20):\n    step()", 20, 15),
        ("start = 15\nfor _ in range(start + 1, args.steps + 1):\n    step()", 20, 15),
        ("for _ in range(1, args.steps + 1):\n    step()", 20, 0),
        ("first = 2\nfor epoch in range(first, args.epochs):\n    for x in loader:\n        step()", 12, 8),
        ("max_steps = 40\niter_num = 30\nwhile made < 5:\n    step()\n    iter_num += 1", 40, 30),
        ("max_steps = 40\niter_num = 0\nwhile made < 5:\n    iter_num += 1\n    step()", 40, 0),
    ],
)
def test_steps_are_planned_where_the_code_says_so(tmp_path: Path, script: str, planned: int, before: int) -> None:
    (tmp_path / "train.py").write_text(f"{BEFORE}{script}\nprint(found[-1])\n")
    argv = [sys.executable, str(tmp_path / "train.py")]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})
    assert done.stdout == f"({planned}, {before})\n"


STATE = """\
import argparse
from ipexctl.inrank.progress import first_step
class TrainerState:
    def __init__(self, step):
        self.global_step = step
class Trainer:
    def __init__(self, state):
        self.state = state
    def train(self, optimizer):
        return first_step(optimizer)
def optimizer(*steps):
    return argparse.Namespace(state={name: {"step": step} for name, step in enumerate(steps)})
"""


@pytest.mark.parametrize(
    ("call", "first"),
    [
        ("Trainer(TrainerState(0)).train(optimizer(1, 1))", (1, True)),
        ("Trainer(TrainerState(12)).train(optimizer(1))", (13, True)),
        ("Trainer(argparse.Namespace(global_step=4)).train(optimizer(7.0))", (7, False)),  # of Lightning
        ("first_step(optimizer(1))", (1, False)),
        ("first_step(optimizer(21))", (21, False)),
        ("first_step(optimizer())", (0, False)),
        ("first_step(object())", (0, False)),
    ],
)
def test_a_trainer_says_which_step_is_its_first_else_the_optimizers_state(
    tmp_path: Path, call: str, first: tuple[int, bool]
) -> None:
    (tmp_path / "train.py").write_text(f"{STATE}print({call})\n")
    argv = [sys.executable, str(tmp_path / "train.py")]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})
    assert done.stdout == f"{first}\n"


def test_the_files_of_the_meter_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def loops(file: str) -> list[tuple[str, object]]:
        read.append(file)
        return []

    monkeypatch.setattr(progress, "_loops", loops)
    exec(compile("progress.planned_steps(3)", f"{progress.DIRECTORY}meter.py", "exec"), {"progress": progress})
    assert read
    assert not [file for file in read if file.startswith(progress.DIRECTORY)]
