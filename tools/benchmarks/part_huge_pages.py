"""What huge pages bring, which ranks have by default if the processor has AMX: steps of three models, and an epoch with
forked workers."""

from __future__ import annotations

import json
from typing import Any, Final

from .figures import compared, median, median_interval, ratios
from .harness import good_end_of, in_turns, say
from .part_train import HUGE_PAGES, SMALL_PAGES, Workload, contender_of, prepare_place, trained
from .part_unchanged import MODELS, SCRIPT
from .report import Goal, Report
from .rig import Rig

EPOCH: Final = "epoch with four loader workers, s"
MEMORY: Final = "memory of its processes, MB"


def measure(rig: Rig) -> Report:
    place = prepare_place(rig, "transformers")
    rows, gains = [], []
    for model in ("gpt", "resnet", "mlp"):
        work = Workload(SCRIPT, "steps", 1, 3, 3.0, (model,), 3.0)
        speeds = trained(rig, place, work, 1, rig.runs, (HUGE_PAGES, SMALL_PAGES), share_rounds=0)
        share = speeds.beside(SMALL_PAGES, HUGE_PAGES)
        gains.append(share.median)
        rows.append((f"{MODELS[model]}, ms a step", f"{1000 / speeds.median(SMALL_PAGES):.0f}", compared(share)))

    def epoch(name: str) -> dict[str, float]:
        say(f"huge pages: {name}")
        said: Any = good_end_of(contender_of(rig, place, ("loader.py",), 1, name), rig.env)[1]
        found: dict[str, float] = json.loads(said[said.index("{") : said.index("}") + 1])
        return found

    measured = in_turns([SMALL_PAGES, HUGE_PAGES], rig.runs, epoch)
    for title, key in ((EPOCH, "seconds"), (MEMORY, "megabytes")):
        small, huge = ([each[key] for each in measured[name]] for name in (SMALL_PAGES, HUGE_PAGES))
        of_rounds = median_interval(ratios(huge, small))
        rows.append((title, f"{median(small):.4g}", compared(of_rounds)))
    header = ("one rank", "small pages", "huge / small")
    goal = Goal("huge pages: ≤ 1x the same with small pages", f"{max(gains):.2f}x", max(gains) <= 1)
    return Report(rig.runs, header, tuple(rows), (goal,))
