"""Training speed on this machine of one script in one environment, started by ipexctl and by other launchers."""

from __future__ import annotations

import math
import re
import shutil
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from ipexctl.text import counted

from .figures import median, median_interval, ratios
from .harness import TOO_LONG, Contender, Failed, end_of, failure, in_turns, say, spend
from .report import Goal, Report
from .rig import CONTENDERS, HERE, ipexctl_argv

if TYPE_CHECKING:
    from pathlib import Path

    from .figures import Interval
    from .rig import Rig

OURS, BY_HAND = "ipexctl run", "the same line by hand (export shell)"
MPIRUN, TORCHRUN, ACCELERATE = "mpirun (Intel MPI)", "torchrun", "accelerate launch (its mpirun)"
OTHERS: Final = (MPIRUN, TORCHRUN, ACCELERATE)
RANKS: Final = (1, 2)
TORCH: Final = "2.13"
AIM, AIM_WATCHED = 0.98, 0.995
"""Beside the other launchers; beside the same line without our programs."""
PAUSE = 1.0
LAUNCHER: Final = "any_launcher.py"
SPEED: Final = re.compile(r"([\d.]+) (?:images|tokens)/s")
CONFIG: Final = """\
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_CPU
main_process_ip: 127.0.0.1
main_process_port: 29533
machine_rank: 0
mixed_precision: 'no'
mpirun_config:
  mpirun_hostfile: {hostfile}
num_machines: 1
num_processes: {ranks}
use_cpu: true
"""


@dataclass(frozen=True, slots=True)
class Workload:
    """A script that prints its ranks at the start and its speed at the end, by its own clock."""

    script: Path
    unit: str
    options: tuple[str, ...]
    per_second: float | None = None
    """About how many units a second, for a script that is given epochs and not seconds."""
    per_epoch: int = 1

    def argv(self, steady: float) -> tuple[str, ...]:
        if self.per_second is None:
            return (self.script.name, *self.options, "--seconds", str(steady))
        epochs = math.ceil(steady * self.per_second / self.per_epoch)
        return (self.script.name, *self.options, "--epochs", str(epochs))


_BLOCKS: Final = CONTENDERS / "blocks.py"
FP32: Final = Workload(_BLOCKS, "tokens", ("--dtype", "fp32"))
BF16: Final = Workload(_BLOCKS, "tokens", ("--dtype", "bf16"))
DIGITS: Final = Workload(
    HERE.parents[1] / "examples" / "train_digits.py",
    "images",
    ("--fresh", "--log-every", "60", "--save-every", "1000000", "--dtype", "fp32"),
    per_second=5500,
    per_epoch=3840,
)


@dataclass(frozen=True, slots=True)
class Place:
    """One environment and one project for all launchers."""

    home: Path
    project: Path

    @property
    def bin(self) -> Path:
        return self.home / "envs" / "default" / "bin"


def measure(workload: Workload, rig: Rig) -> Report:
    place = _prepare(rig)
    names = [OURS, BY_HAND, *OTHERS]
    figures: dict[int, dict[str, list[float]]] = {}
    for ranks in RANKS:
        words = workload.argv(rig.steady)
        say(f"train: {' '.join(words)}, {counted(ranks, 'rank')}")
        contenders = {name: _contender(rig, place, words, ranks, name) for name in names}
        trained = partial(_trained, rig, contenders, ranks)
        figures[ranks] = in_turns(names, rig.runs, trained, PAUSE)
    unit = f"{workload.unit}/s (ipexctl run is as fast: median, interval)"
    header = (unit, *(counted(ranks, "rank") for ranks in RANKS))
    rows = tuple((name, *(_cell(figures[ranks], name) for ranks in RANKS)) for name in names)
    goals = tuple(goal for ranks in RANKS for goal in _goals(figures[ranks], counted(ranks, "rank")))
    coverage = _beside(figures[RANKS[0]], BY_HAND).coverage
    note = f"The intervals cover the median of the ratios within the rounds with a probability of {coverage:.1%}."
    return Report(rig.runs, header, rows, goals, (note,))


def _beside(figures: dict[str, list[float]], name: str) -> Interval:
    return median_interval(ratios(figures[OURS], figures[name]))


def _cell(figures: dict[str, list[float]], name: str) -> str:
    speed = f"{median(figures[name]):.0f}"
    return speed if name == OURS else f"{speed} ({_beside(figures, name)})"


def _goals(figures: dict[str, list[float]], ranks: str) -> tuple[Goal, Goal]:
    """Of the other launchers, the one that comes off best counts."""
    best = min(OTHERS, key=lambda name: _beside(figures, name).median)
    fastest, by_hand = _beside(figures, best), _beside(figures, BY_HAND)
    return (
        Goal(f"{ranks}: ≥ {AIM}x the best launcher", f"{fastest} {best}", fastest.reaches(AIM)),
        Goal(f"{ranks}: ≥ {AIM_WATCHED}x the same line by hand", str(by_hand), by_hand.reaches(AIM_WATCHED)),
    )


def _prepare(rig: Rig) -> Place:
    """The environment and the scripts; another part of the same call may have made them."""
    place = Place(rig.scratch / "train-home", rig.scratch / "train")
    if place.project.exists():
        return place
    say(f"train: installing torch {TORCH}")
    wanted = ("--stack", "torch", "--torch", TORCH, "--with", "accelerate")
    install = (*ipexctl_argv(), "install", "--hosts", "localhost", "--home", str(place.home), *wanted)
    spend(Contender("ipexctl install", install), rig.env)
    place.project.mkdir()
    for file in (DIGITS.script, _BLOCKS, CONTENDERS / LAUNCHER):
        shutil.copy(file, place.project)
    hostfile = place.project / "hosts"
    hostfile.write_text("localhost\n")
    for ranks in RANKS:
        (place.project / f"accelerate-{ranks}.yaml").write_text(CONFIG.format(hostfile=hostfile, ranks=ranks))
    return place


def _contender(rig: Rig, place: Place, words: tuple[str, ...], ranks: int, name: str) -> Contender:
    where, count = str(place.project), str(ranks)
    options = ("--hosts", "localhost", "--home", str(place.home), "-n", count, "--cwd", where)
    script = (f"{where}/{words[0]}", *words[1:])
    if name == OURS:
        return Contender(
            name, (*ipexctl_argv(), "run", "--plain", "--quiet", "--time-limit", str(int(TOO_LONG)), *options, *script)
        )
    if name == BY_HAND:
        file = rig.scratch / f"by-hand-{ranks}.sh"
        export = Contender("ipexctl export shell", (*ipexctl_argv(), "export", "shell", *options, *script))
        end, text = end_of(export, rig.env)
        if end.code != 0:
            raise failure(export, end, text)
        file.write_text(text)
        return Contender(name, ("sh", str(file)))
    env = {"PATH": f"{place.bin}:{rig.env['PATH']}", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "PWD": where}
    argv = {
        MPIRUN: ("mpiexec.hydra", "-n", count, "python", LAUNCHER, *words),
        TORCHRUN: ("torchrun", "--nproc-per-node", count, "--master-port", "29512", *words),
        ACCELERATE: ("accelerate", "launch", "--config_file", f"accelerate-{ranks}.yaml", LAUNCHER, *words),
    }
    return Contender(name, ("env", "-C", where, *argv[name]), env)


def _trained(rig: Rig, contenders: dict[str, Contender], ranks: int, name: str) -> float:
    """Units a second."""
    end, output = end_of(contenders[name], rig.env)
    speed = SPEED.search(output)
    if end.code != 0 or speed is None:
        raise failure(contenders[name], end, output)
    if f"ranks: {ranks}," not in output:
        raise Failed(f"{name} did not train with {ranks} ranks:\n{output}")
    say(f"  {name}: {speed[0]}, the whole call {end.spent.wall:.1f} s, {end.spent.cpu:.1f} s of CPU")
    return float(speed[1])
