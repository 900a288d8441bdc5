"""The cost of the meter: in the script's process for each step, at the import of torch, and in our own programs."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Final

import ipexctl as package
from ipexctl.node.run.meter.meter_reader import MeterReader

from .figures import median
from .frozen import stopped_after
from .harness import Contender, Failed, good_end_of, in_turns, say, spend
from .part_train import DIGITS, LAUNCHER, NO_METER, OURS, Place, contender_of, prepare_place
from .report import Goal, Report
from .rig import CONTENDERS, Rig

AIM_US: Final = 20.0
AIM_STEPS, AIM_ALL, AIM_EVIDENCE = 0.003, 0.005, 0.01
"""Parts of the time."""
WITHOUT, SHARED, EACH = "without the meter", "records of 20 ms", "a record for each step"
INTERVALS: Final = {WITHOUT: 0, SHARED: 20_000_000, EACH: 0}
RANKS: Final = 2
UNDISTURBED: Final = 30.0
"""Seconds in which the processor time of our programs is measured: three windows."""
IMPORT: Final = "import torch"
SOURCE: Final = Path(package.__file__).parent


def measure(rig: Rig) -> Report:
    place = prepare_place(rig)
    shim = _shim(rig.scratch / "meter-shim")
    steps = in_turns(list(INTERVALS), rig.runs, lambda name: _step(rig, place, shim, name))
    imports = in_turns((WITHOUT, SHARED), rig.runs, lambda name: _import(rig, place, shim, name))
    evidence = median([_evidence(rig, place, shim) for _ in range(rig.runs)])
    of_run = in_turns((NO_METER, OURS), max(1, rig.runs // 2), lambda name: _training(rig, place, name))
    shares = {name: median([share for share, _ in found]) for name, found in of_run.items()}
    rate = median([speed for _, speed in of_run[OURS]])
    costs = {name: median(times) - median(steps[WITHOUT]) for name, times in steps.items()}
    loads = {name: median(times) for name, times in imports.items()}
    # The steps of the digits take less than 20 ms: they share records.
    in_steps = costs[SHARED] * 1e-6 * rate
    in_programs = max(0.0, shares[OURS] - shares[NO_METER]) / RANKS
    rows = (
        ("a step with a batch, CPU µs", *(f"{median(steps[name]):.1f}" for name in INTERVALS)),
        ("the meter's part of it, µs", "", f"{costs[SHARED]:.1f}", f"{costs[EACH]:.1f}"),
        (f"`{IMPORT}`, CPU ms", f"{loads[WITHOUT] * 1e3:.0f}", f"{loads[SHARED] * 1e3:.0f}", ""),
        (
            f"our programs, {RANKS} ranks, of one processor",
            f"{shares[NO_METER]:.2%}",
            f"{shares[OURS]:.2%}",
            "",
        ),
    )
    goals = (
        Goal(f"≤ {AIM_EVIDENCE:.1%} of a small step for evidence", f"{evidence:.2%}", evidence <= AIM_EVIDENCE),
        Goal(f"a step and a batch in ≤ {AIM_US:g} µs, with a record", f"{costs[EACH]:.1f} µs", costs[EACH] <= AIM_US),
        Goal(
            f"≤ {AIM_STEPS:.1%} of the time of train_digits.py ({rate:.0f} steps/s)",
            f"{in_steps:.3%}",
            in_steps <= AIM_STEPS,
        ),
        Goal(
            f"≤ {AIM_ALL:.1%} of a rank's time with what our programs take more",
            f"{in_steps + in_programs:.3%}",
            in_steps + in_programs <= AIM_ALL,
        ),
    )
    return Report(rig.runs, ("", WITHOUT, SHARED, EACH), rows, goals)


def _shim(directory: Path) -> Path:
    """The directory that a run puts on the PYTHONPATH of its ranks."""
    if not directory.exists():
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(SOURCE / "inrank", directory / "ipexctl_inrank", ignore=ignored)
        shutil.copy(SOURCE / "node/run/rank/sitecustomize.py", directory)
        shutil.copy(SOURCE / "node/run/rank/rank_hooks.py", directory / "ipexctl_hooks.py")
    return directory


def _contender(place: Place, shim: Path, name: str, ring: MeterReader, *words: str) -> Contender:
    variables = {} if name == WITHOUT else {"IPEXCTL_METER": ring.path}
    env = {"PYTHONPATH": str(shim), "OMP_NUM_THREADS": "1", **variables}
    return Contender(f"{words[0]}, {name}", (str(place.bin / "python"), *words), env)


def _ring() -> MeterReader:
    ring = MeterReader.create()
    if ring is None:
        raise Failed("no memory for the ring of the step meter")
    return ring


def _step(rig: Rig, place: Place, shim: Path, name: str) -> float:
    """Microseconds of processor."""
    ring = _ring()
    try:
        script = str(CONTENDERS / "metered_steps.py")
        contender = _contender(place, shim, name, ring, script, str(INTERVALS[name]))
        _, output = good_end_of(contender, rig.env)
        if (name != WITHOUT) != bool(ring.read()):
            raise Failed(f"{name}: the ring has records, or none, against what is measured")
    finally:
        ring.close()
    return float(output)


def _evidence(rig: Rig, place: Place, shim: Path) -> float:
    """Part of a small step."""
    ring = _ring()
    try:
        contender = _contender(place, shim, SHARED, ring, str(CONTENDERS / "evidence_steps.py"))
        return float(good_end_of(contender, rig.env)[1]) / 100
    finally:
        ring.close()


def _import(rig: Rig, place: Place, shim: Path, name: str) -> float:
    """Seconds of processor of a process."""
    ring = _ring()
    try:
        return spend(_contender(place, shim, name, ring, "-c", IMPORT), rig.env).cpu
    finally:
        ring.close()


def _training(rig: Rig, place: Place, name: str) -> tuple[float, float]:
    """The part of one processor that our programs use during a training, and its steps a second."""
    say(f"meter: {name}")
    with tempfile.TemporaryDirectory(dir=rig.scratch) as directory:
        times = Path(directory) / "steps"
        words = (LAUNCHER, str(times), DIGITS.script.name, *DIGITS.options)
        contender = contender_of(rig, place, words, RANKS, name)
        with stopped_after(contender, rig.env, times, DIGITS.warm_up, LAUNCHER) as training:
            share = training.launcher_share(UNDISTURBED)
            begin, end = training.turns[-1]
            count = sum(begin < at <= end for at in training.steps())
    return share, count / (end - begin)
