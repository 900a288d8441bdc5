"""What `ipexctl run` and `run --fast` bring to unchanged scripts, beside torchrun and accelerate: four models."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from typing import Final

from ipexctl.text import format_count

from .figures import NO_DIFFERENCE, compared
from .part_train import ACCELERATE, FAST, OURS, TORCHRUN, TORCHRUN_AGAIN, Workload, prepare_place, trained
from .report import Goal, Report
from .rig import CONTENDERS, Rig

MODELS: Final = {
    "gpt": "GPT, 30 million parameters",
    "resnet": "ResNet18-like",
    "mlp": "MLP",
    "bert": "BERT, Trainer",
}
RANKS: Final = (1, 2)
SCRIPT, OF_TRAINER = CONTENDERS / "unchanged.py", CONTENDERS / "unchanged_trainer.py"
LEAST, LEAST_OF_MLP = 0.98, 1.3
AIMS: Final = {"amx_bf16": 2.5, "avx512_bf16": 1.2}
"""Instructions → how many times as fast as torchrun --fast should be, in the geometric mean."""


def measure(rig: Rig) -> Report:
    place = prepare_place(rig, "transformers")
    rows: list[tuple[str, ...]] = []
    gains: dict[str, dict[str, float]] = {ACCELERATE: {}, OURS: {}, FAST: {}}
    for model, ranks in product(MODELS, RANKS):
        script, words = (OF_TRAINER, ()) if model == "bert" else (SCRIPT, (model,))
        work = Workload(script, "steps", 1, 3, 3.0, words, 3.0)
        speeds = trained(rig, place, work, ranks, rig.runs, (TORCHRUN, TORCHRUN_AGAIN, *gains), share_rounds=0)
        same = speeds.beside(TORCHRUN, TORCHRUN_AGAIN)
        title = f"{MODELS[model]}, {format_count(ranks, 'rank')}"
        cells = [f"{1000 / speeds.median(TORCHRUN):.0f}"]
        for name, found in gains.items():
            times = speeds.beside(TORCHRUN, name)
            cells.append(compared(times, same, is_gain=True))
            found[title] = 1.0 if cells[-1] == NO_DIFFERENCE else 1 / times.median
        rows.append((title, *cells))
    means = {name: math.prod(found.values()) ** (1 / len(found)) for name, found in gains.items()}
    header = ("times as fast as torchrun", f"{TORCHRUN}, ms a step", *gains)
    return Report(rig.runs, header, tuple(rows), tuple(_goals(gains, means)))


def _goals(gains: dict[str, dict[str, float]], means: dict[str, float]) -> list[Goal]:
    flags = Path("/proc/cpuinfo").read_text().split()
    least, least_fast = min(gains[OURS].values()), min(gains[FAST].values())
    of_mlp = min(gain for title, gain in gains[OURS].items() if title.startswith(MODELS["mlp"]))
    goals = [
        Goal(f"{OURS}: ≥ {LEAST}x torchrun everywhere", f"{least:.2f}x", least >= LEAST),
        Goal(f"{OURS}: ≥ {LEAST_OF_MLP}x on the MLP", f"{of_mlp:.2f}x", of_mlp >= LEAST_OF_MLP),
        Goal(f"{FAST}: ≥ 1x torchrun everywhere", f"{least_fast:.2f}x", least_fast >= 1),
    ]
    unit = next((name for name in AIMS if name in flags), None)
    if unit is not None:
        goals.append(Goal(f"{FAST}: ≥ {AIMS[unit]}x with {unit}", f"{means[FAST]:.2f}x", means[FAST] >= AIMS[unit]))
    return goals
