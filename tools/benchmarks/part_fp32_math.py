"""--fp32-math bf16 beside fp32 and bf16 autocast: the speed of a transformer, and what trainings learn.

What it brings depends on the processor, so the goal of the speed is for AMX alone.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Final

from .harness import printed, say, spend
from .part_train import AUTOCAST, FP32, FP32_MATH, OURS, TORCH, TRAININGS, prepare_place, trained
from .part_wire import SEEDS, WORKLOADS, report_of_accuracy
from .report import Goal, Report
from .rig import Rig, ipexctl

AIM: Final = 0.67
MODES: Final = ("fp32", "bf16")
PACKAGES: Final = ("scikit-learn", "transformers", "accelerate")


def measure_speed(rig: Rig) -> Report:
    cpu = Path("/proc/cpuinfo").read_text().split()
    units = next((name for name in ("amx_bf16", "avx512_bf16", "avx512bw", "avx2") if name in cpu), "none of AVX2")
    has_bf16 = units in ("amx_bf16", "avx512_bf16")
    names = (OURS, FP32_MATH, AUTOCAST) if has_bf16 else (OURS, FP32_MATH)
    found = trained(rig, prepare_place(rig), FP32, 1, rig.runs, names, share_rounds=0)
    gains = {name: found.beside(OURS, name) for name in names[1:]}
    rows = [("fp32", f"{found.median(OURS):.0f}", "")]
    rows += [(name, f"{found.median(name):.0f}", str(gain)) for name, gain in gains.items()]
    gain = gains[FP32_MATH]
    goals = (Goal(f"≤ {AIM}x fp32 with AMX", str(gain), gain.stays_below(AIM)),) if units == "amx_bf16" else ()
    notes = [f"This processor has {units}."]
    if not has_bf16:
        notes.append("bf16 autocast is left out: without bf16 instructions one step takes longer than a minute.")
    header = ("tokens/s", "1 rank", "time of a step / that in fp32")
    return Report(rig.runs, header, tuple(rows), goals, tuple(notes))


def measure_accuracy(rig: Rig) -> Report:
    """Whole trainings: their figures do not depend on what else the machine does."""
    home = rig.scratch / "math-home"
    where = ("--hosts", "localhost", "--home", home)
    say(f"fp32-math: installing torch {TORCH}")
    packages = [word for package in PACKAGES for word in ("--with", package)]
    spend(ipexctl("ipexctl install", "install", *where, "--stack", "torch", "--torch", TORCH, *packages), rig.env)
    found: dict[str, dict[str, list[Any]]] = {}
    for workload, mode, seed in product(WORKLOADS, MODES, range(1, SEEDS + 1)):
        say(f"fp32-math: accuracy of {workload}, {mode}, seed {seed}")
        options = ("-n", 1, "--omp", 1, "--no-sync", "--fp32-math", mode)
        call = ipexctl(mode, "run", "--plain", "--quiet", *where, *options, TRAININGS)
        made = printed(replace(call, argv=(*call.argv, "accuracy", workload, "--seed", str(seed))), rig.env, "trained")
        found.setdefault(workload, {}).setdefault(mode, []).extend(made)
    is_emulated = any(entry["emulated"] for by_mode in found.values() for entry in by_mode["bf16"])
    note = "This processor has no AVX-512: the trainings round the inputs of their products themselves."
    return report_of_accuracy(found, MODES[1:], *([note] if is_emulated else []))
