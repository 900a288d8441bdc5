"""`python -m tools.faults KIND --seed S --count N`: random faults on hosts of a lab, one round after the other.

KIND is `run` (runs, syncs, installs), `files` (syncs, pushes, fetches, installs), `direct` (runs without an mpirun),
`mpi` (runs with Intel MPI and Open MPI), `lost_node` (runs that go on without lost hosts), `slurm` (runs over srun),
`allreduce` (ranks that add gradients up in shared memory) or `slow` (what slows a rank or a link). Each round prints a
line: its number, seconds and case, the moment and the options, and the result. The seed and the number decide a round,
so `--seed S --round K` plays round K again. The exit code is 1 if a report was wrong. A signal removes the lab first.

`run --break NAME` (or `all`) plays the cases that must notice a deliberate break of the agent (`breaks.py`). The exit
code is 1 if a break is not noticed.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import allreduce, direct, files, lost_node, mpi, run, slow, slurm
from .breaks import Break, broken_package, package_of_calls
from .rounds import Case, Kind, chance_of, choose, play_round, show

MODULES = (run, files, direct, mpi, lost_node, slurm, allreduce, slow)
KINDS: dict[str, Kind] = {module.__name__.rpartition(".")[2]: module.KIND for module in MODULES}


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def leave(number: int, _frame: object) -> None:
    """Remove the lab before the program ends."""
    sys.exit(128 + number)


def play(kind: Kind, stage: Any, cases: Sequence[Case], asked: argparse.Namespace) -> bool:
    played = []
    for number in [asked.round] if asked.round else range(1, asked.count + 1):
        case = choose(cases, asked.seed, number)
        played.append(play_round(kind.new_round(stage, case, chance_of(case, asked.seed, number)), number))
        say(played[-1].line)
        if asked.json:
            with asked.json.open("a") as file:
                file.write(json.dumps({"kind": asked.kind, "seed": asked.seed, **asdict(played[-1])}) + "\n")
    text, is_well = show(played, kind.goal)
    say(text)
    return is_well


def play_breaks(kind: Kind, stage: Any, breaks: Sequence[Break], seed: int, base: Path) -> bool:
    """Whether each break is noticed: one of its cases finds what shows it."""
    cases = {case.name: case for case in kind.cases}
    noticed = {}
    for broken in breaks:
        noticed[broken.name] = "NOT NOTICED"
        with package_of_calls(broken_package(broken, base / broken.name)):
            for number, case in enumerate((cases[name] for name in broken.cases), start=1):
                played = play_round(kind.new_round(stage, case, chance_of(case, seed, number)), number)
                say(played.line)
                if re.search(broken.report, played.wrong):
                    noticed[broken.name] = f"{case.name}: {played.wrong.splitlines()[0][:160]}"
                    break
        say(f"{broken.name}: {noticed[broken.name]}")
    say("\n" + "\n".join(f"{name:32} {how}" for name, how in noticed.items()))
    return "NOT NOTICED" not in noticed.values()


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.faults", description="Play random faults on hosts of a lab.")
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    for name, kind in KINDS.items():
        options = kinds.add_parser(name, help=kind.help, description=kind.help)
        options.add_argument("--seed", type=int, default=int(time.time()), help="of all rounds (default: the time)")
        options.add_argument("--count", type=int, default=20, help="the number of rounds (default: 20)")
        options.add_argument("--round", type=int, help="only this one")
        options.add_argument("--only", default="", help="cases whose name has this text")
        options.add_argument("--json", type=Path, metavar="FILE", help="append each result to this file, too")
        options.add_argument("--list", action="store_true", help="print the names of cases and breaks")
        if kind.breaks:
            options.add_argument("--break", dest="broken", metavar="NAME", help="a break of the agent, or all")
    asked = parser.parse_args(argv)
    asked.broken = getattr(asked, "broken", None)
    return asked


def main() -> int:
    asked = parse()
    kind = KINDS[asked.kind]
    cases = [case for case in kind.cases if asked.only in case.name]
    breaks = [each for each in kind.breaks if asked.broken == "all" or (asked.broken and asked.broken in each.name)]
    if asked.list:
        say("\n".join([*(case.name for case in cases), *(each.name for each in kind.breaks)]))
        return 0
    cases = [case for case in cases if case.is_possible]
    if not cases or (asked.broken and not breaks):
        say("no such case or break here: --list prints all")
        return 2
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
    base = Path(tempfile.mkdtemp(prefix=f"faults-{asked.kind}-"))
    say(f"seed {asked.seed}; the output of calls is in {base}")
    with kind.stage(base) as stage:
        is_well = play_breaks(kind, stage, breaks, asked.seed, base) if breaks else play(kind, stage, cases, asked)
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
