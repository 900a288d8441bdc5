"""How many steps a training will make, from its frames: scripts that call `step` where an optimizer would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
    ("script", "planned"),
    [
        ("for _ in range(20): \n    step()", 20),
        ("for _ in range(args.steps):\n    step()", 20),
        ("for epoch in range(args.epochs):\n    for i, x in enumerate(loader):\n        step()", 12),
        ("def epoch():\n    for x in loader:\n        step()\nfor _ in range(1, 4):\n    epoch()", 12),
        ("max_steps = 40\nwhile made < 10:\n    step()", 40),
        ("class T:\n    pass\ndef train(self):\n    step()\nt = T()\nt.max_steps = 9\ntrain(t)", 9),
        (f"{LIGHTNING}loop.trainer = Trainer(3, 10, 4, -1)\nadvance(loop)", 9),
        (f"{LIGHTNING}loop.trainer = Trainer(3, 10, 4, 5)\nadvance(loop)", 5),
        (f"{LIGHTNING}loop.trainer = Trainer(-1, 10, 4, 5)\nloop.max_steps = 5\nadvance(loop)", 5),
        (f"{TRAINER}t.state = argparse.Namespace(max_steps=120, global_step=0)\ntrain(t)", 120),
        (f"{TRAINER}t.state = argparse.Namespace(max_steps=120, global_step=50)\ntrain(t)", 70),
        ("while made < 10:\n    step()", 0),
        ("for x in iter(loader):\n    step()", 0),
        ("for x in (y for y in loader):\n    step()", 0),
        ("accumulate = 4\nfor x in range(20):\n    step()", 0),
        ("for x in range(len(loader)):\n    step()", 0),
        ("max_steps = 2\nfor _ in range(5):\n    step()", 5),
        ("step()", 0),
    ],
)
def test_steps_are_planned_where_the_code_says_so(tmp_path: Path, script: str, planned: int) -> None:
    (tmp_path / "train.py").write_text(f"{BEFORE}{script}\nprint(found[-1])\n")
    argv = [sys.executable, str(tmp_path / "train.py")]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})
    assert int(done.stdout) == planned
