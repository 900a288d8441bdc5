"""Training speed on this machine of one script in one environment, started by ipexctl and by other launchers."""

from __future__ import annotations

import json
import math
import shlex
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ipexctl.text import format_count

from .figures import Interval, median, median_interval, ratios, turn_rates
from .frozen import Stopped, stopped_after
from .harness import Contender, Failed, good_end_of, in_turns, rotated, say, spend
from .report import Goal, Report
from .rig import CONTENDERS, HERE, Rig, ipexctl

OURS, BY_HAND = "ipexctl run", "the same ranks by hand"
MPIRUN, TORCHRUN, ACCELERATE = "mpirun (Intel MPI)", "torchrun", "accelerate launch (its mpirun)"
OTHERS: Final = (MPIRUN, TORCHRUN, ACCELERATE)
TORCHRUN_AGAIN: Final = "torchrun again"
"""The same program once more: what it differs from itself is no difference."""
NO_METER, FAST = "ipexctl run --no-meter", "ipexctl run --fast"
FP32_MATH, AUTOCAST = "ipexctl run --fp32-math bf16", "bf16 autocast in the script"
SHORT_SPIN: Final = "ipexctl run -x GOMP_SPINCOUNT=60000"
SMALL_PAGES, HUGE_PAGES = (f"ipexctl run -x GLIBC_TUNABLES=glibc.malloc.hugetlb={value}" for value in (0, 1))

OF_IPEXCTL: Final[Mapping[str, tuple[str, ...]]] = {
    OURS: (),
    NO_METER: ("--no-meter",),
    FAST: ("--fast",),
    FP32_MATH: ("--fp32-math", "bf16"),
    AUTOCAST: (),
    SHORT_SPIN: ("-x", "GOMP_SPINCOUNT=60000"),
    SMALL_PAGES: ("-x", "GLIBC_TUNABLES=glibc.malloc.hugetlb=0"),
    HUGE_PAGES: ("-x", "GLIBC_TUNABLES=glibc.malloc.hugetlb=1"),
}
"""Contender → its own options."""
RANKS: Final = 2
TORCH: Final = "2.13"
AIM, AIM_WATCHED = 1.02, 1.005
"""Beside the other launchers; beside the same line without our programs."""
AIM_SHARE: Final = AIM_WATCHED - 1
"""Of the time: had every rank to wait whenever our programs run, it would lose this much."""
UNDISTURBED: Final = 8.0
"""Seconds in which the processor time of our programs is measured, in each of the first rounds."""
SHARE_ROUNDS: Final = 7
FIRST_PORT = 29511
LAUNCHER: Final = "timed_script.py"
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
    """A script that trains for longer than any measurement takes, and prints its number of ranks if it knows it."""

    script: Path
    unit: str
    per_step: int
    """Units of a step, over all ranks."""
    warm_up: int
    """Steps before the first turn."""
    turn: float
    """Seconds for which one contender runs while the others are stopped: some steps."""
    options: tuple[str, ...]
    steady: float
    """Seconds of each contender in a round: few, because a start is one observation, however long it runs."""


TRAININGS: Final = CONTENDERS / "trainings.py"
FP32: Final = Workload(TRAININGS, "tokens", 8 * 128, 3, 4.0, ("blocks", "--dtype", "fp32"), 4.0)
BF16: Final = Workload(TRAININGS, "tokens", 8 * 128, 3, 4.0, ("blocks", "--dtype", "bf16"), 4.0)
DIGITS: Final = Workload(
    HERE.parents[1] / "examples" / "train_digits.py",
    "images",
    64,
    120,
    1.0,
    ("--fresh", "--log-every", "60", "--save-every", "1000000", "--dtype", "fp32", "--epochs", "100000"),
    2.0,
)


@dataclass(frozen=True, slots=True)
class Place:
    """One environment and one project for all launchers."""

    home: Path
    project: Path

    @property
    def bin(self) -> Path:
        return self.home / "envs" / "default" / "bin"


@dataclass(frozen=True, slots=True)
class Speeds:
    """Units a second of each contender, by round and turn."""

    of: Mapping[str, Sequence[Sequence[float]]]
    share: float
    """The part of the time in which our own programs use a processor: the median over the rounds; 0: not measured."""

    def median(self, name: str) -> float:
        return median([median(turns) for turns in self.of[name]])

    def beside(self, name: str, ours: str = OURS) -> Interval:
        """Our time for a step by the other's in each round, of which each is the median of the ratios within its turns.

        Two starts of one program differ for as long as they run, so a round is one observation, however long it is.
        """
        rounds = zip(self.of[ours], self.of[name], strict=True)
        return median_interval([median(ratios(other, ours)) for ours, other in rounds])


def measure(workload: Workload, rig: Rig) -> Report:
    place = prepare_place(rig)
    speeds = trained(rig, place, workload, RANKS, rig.runs)
    unit = f"{workload.unit}/s (ipexctl's time of a step / this one's: median, interval)"
    ranks = format_count(RANKS, "rank")
    rows = tuple((name, _cell(speeds, name)) for name in (OURS, BY_HAND, *OTHERS))
    goals = _goals(speeds, ranks)
    return Report(rig.runs, (unit, ranks), rows, goals)


def _cell(speeds: Speeds, name: str) -> str:
    speed = f"{speeds.median(name):.0f}"
    return speed if name == OURS else f"{speed} ({speeds.beside(name)})"


def _goals(speeds: Speeds, ranks: str) -> tuple[Goal, ...]:
    """Of the other launchers, the one that comes off best counts."""
    best = max(OTHERS, key=lambda name: speeds.beside(name).median)
    fastest, by_hand = speeds.beside(best), speeds.beside(BY_HAND)
    return (
        Goal(f"{ranks}: ≤ {AIM}x the best launcher", f"{fastest} {best}", fastest.stays_below(AIM)),
        Goal(f"{ranks}: ≤ {AIM_WATCHED}x the same line by hand", str(by_hand), by_hand.stays_below(AIM_WATCHED)),
        Goal(
            f"{ranks}: our programs run in ≤ {AIM_SHARE:.1%} of the time",
            f"{speeds.share:.2%}",
            speeds.share <= AIM_SHARE,
        ),
    )


def prepare_place(rig: Rig, package: str = "accelerate") -> Place:
    """The environment with this package, and the scripts; another part of the same call may have made them."""
    place = Place(rig.scratch / f"{package}-home", rig.scratch / f"{package}-train")
    if place.project.exists():
        return place
    say(f"train: installing torch {TORCH}")
    packages = [word for name in dict.fromkeys(("accelerate", package)) for word in ("--with", name)]
    wanted = ("--stack", "torch", "--torch", TORCH, *packages)
    spend(ipexctl("ipexctl install", "install", "--hosts", "localhost", "--home", place.home, *wanted), rig.env)
    place.project.mkdir()
    for file in (DIGITS.script, *CONTENDERS.glob("*.py")):
        shutil.copy(file, place.project)
    hostfile = place.project / "hosts"
    hostfile.write_text("localhost\n")
    for ranks in range(1, RANKS + 1):
        (place.project / f"accelerate-{ranks}.yaml").write_text(CONFIG.format(hostfile=hostfile, ranks=ranks))
    return place


def contender_of(rig: Rig, place: Place, words: tuple[str, ...], ranks: int, name: str) -> Contender:
    where, count = str(place.project), str(ranks)
    options = ("--hosts", "localhost", "--home", str(place.home), "-n", count, "--cwd", where)
    script = (f"{where}/{words[0]}", *words[1:])
    if name in OF_IPEXCTL:
        return ipexctl(name, "run", "--plain", "--quiet", *OF_IPEXCTL[name], *options, *script)
    if name == BY_HAND:
        file = rig.scratch / f"by-hand-{ranks}.sh"
        plan = ipexctl("ipexctl run --dry-run", "run", "--dry-run", "--json", *options, *script)
        file.write_text(ranks_by_hand(json.loads(good_end_of(plan, rig.env)[1]), where, rig.env))
        return Contender(name, ("bash", str(file)))
    port = str(FIRST_PORT + (*OTHERS, TORCHRUN_AGAIN).index(name))
    env = {"PATH": f"{place.bin}:{rig.env['PATH']}", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "PWD": where}
    torchrun = ("torchrun", "--nproc-per-node", count, "--master-port", port, *words)
    argv = {
        MPIRUN: ("mpiexec.hydra", "-n", count, "python", *words),
        **dict.fromkeys((TORCHRUN, TORCHRUN_AGAIN), torchrun),
        ACCELERATE: ("accelerate", "launch", "--config_file", f"accelerate-{ranks}.yaml", *words),
    }
    return Contender(name, ("env", "-C", where, *argv[name]), env)


def ranks_by_hand(plan: Mapping[str, Any], directory: str, environ: Mapping[str, str]) -> str:
    """Lines for bash that start the ranks of a plan in this directory, with its variables and cores, without ours."""
    lines = [f"cd {shlex.quote(directory)}", f"export MASTER_PORT={FIRST_PORT - 1}"]
    (host,) = plan["hosts"]
    for rank in host["ranks"]:
        settings = [each for each in plan["settings"] if each["rank"] in (None, rank["rank"])]
        unset = [word for each in settings if each["value"] is None for word in ("-u", each["name"])]
        values = [
            f"{each['name']}={each['value'].replace(plan['cwd'], directory)}"
            + (f":{environ.get(each['name'], '')}" if each["prepend"] else "")
            for each in settings
            if each["value"] is not None
        ]
        cores = ",".join(map(str, sorted({*rank["cores"], *rank["ccl_cores"]})))
        bound = ["taskset", "-c", cores] if cores else []
        turns = ["chrt", "-b", "0"] if rank["batch"] else []
        lines.append(f"{shlex.join(['env', *unset, *values, *bound, *turns, *plan['command']])} &")
    return "\n".join((*lines, *("wait -n || exit $?" for _ in host["ranks"]), ""))


def trained(
    rig: Rig,
    place: Place,
    workload: Workload,
    ranks: int,
    rounds: int,
    names: Sequence[str] = (OURS, BY_HAND, *OTHERS),
    share_rounds: int = SHARE_ROUNDS,
) -> Speeds:
    """In each round every contender is started anew."""
    speeds: dict[str, list[list[float]]] = {name: [] for name in names}
    shares: list[float] = []
    for number in range(rounds):
        say(f"train: {workload.script.name}, {format_count(ranks, 'rank')}, round {number + 1} of {rounds}")
        turns_of, share = _round(rig, place, workload, ranks, rotated(names, number), share=number < share_rounds)
        for name, turns in turns_of.items():
            speeds[name].append(turns)
            say(f"  {name}: {median(turns):.1f} {workload.unit}/s")
        shares += share
    return Speeds(speeds, median(shares) if shares else 0.0)


def _round(
    rig: Rig, place: Place, workload: Workload, ranks: int, names: list[str], *, share: bool
) -> tuple[dict[str, list[float]], list[float]]:
    """Units a second of each contender in each of its turns; if wanted, the part of the time our programs run."""
    turns = math.ceil((rig.steady or workload.steady) / workload.turn)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=rig.scratch)))
        trainings: dict[str, Stopped] = {}
        for number, name in enumerate(names):
            steps = directory / f"steps-{number}"
            options = BF16.options if name == AUTOCAST else workload.options
            words = (LAUNCHER, str(steps), workload.script.name, *options)
            contender = contender_of(rig, place, words, ranks, name)
            trainings[name] = stack.enter_context(stopped_after(contender, rig.env, steps, workload.warm_up, LAUNCHER))
        in_turns(names, turns, lambda name: trainings[name].run_for(workload.turn))
        shares = [trainings[OURS].launcher_share(UNDISTURBED)] if share else []
        speeds: dict[str, list[float]] = {}
        for name, training in trainings.items():
            if f"ranks: {ranks}," not in training.output():
                raise Failed(f"{name} did not train with {ranks} ranks:\n{training.output()}")
            _, *rates = turn_rates(training.steps(), training.turns)  # the first is the start and the warm-up
            speeds[name] = [workload.per_step * rate for rate in rates[:turns]]
        return speeds, shares
