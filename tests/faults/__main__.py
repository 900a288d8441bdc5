"""`python -m tests.faults --seed S --count N`: random faults on three hosts of a lab, one round after the other.

Each round prints a line: its number, its case, the moment and the options, the result and its seconds. The seed and
the number decide a round, so `--seed S --round K` plays round K again; only the speed of the hosts may differ. The exit
code is 1 after the first round with a wrong report (`--keep-going`: after all).

`--break NAME` (or `all`) plays the cases that must notice a deliberate break of the agent (`breaks.py`). The exit code
is 1 if a break is not noticed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ipexctl.lab import LabSpec, down, up
from lab_run_helpers import Cluster, lab_with_mpi

from .breaks import BREAKS, Break, broken_package
from .rounds import Played, all_cases, choose, play_round, show
from .stage import FaultLab


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


@contextmanager
def new_stage(base: Path) -> Iterator[FaultLab]:
    """A lab of its own, which is removed at the end."""
    lab = up(LabSpec(hosts=3, name=f"faults-{os.getpid()}"))
    stage = None
    try:
        lab_with_mpi(lab, base)
        project = base / "project"
        project.mkdir()
        stage = FaultLab(Cluster(lab, project, base / "state"))
        stage.prepare()
        yield stage
    finally:
        down(lab.name)
        if stage is not None:
            stage.release()


def play(stage: FaultLab, asked: argparse.Namespace) -> list[Played]:
    cases = all_cases(asked.only, has_memory=bool(stage.groups))
    numbers = [asked.round] if asked.round else range(1, asked.count + 1)
    played = []
    for number in numbers:
        result = play_round(stage, choose(cases, asked.seed, number), asked.seed, number)
        say(result.line)
        played.append(result)
        if result.wrong:
            only = f" --only {asked.only!r}" if asked.only else ""
            say(f"    again: python -m tests.faults --seed {asked.seed} --round {number}{only}")
            if not asked.keep_going:
                break
    return played


def play_breaks(stage: FaultLab, chosen: list[Break], seed: int, base: Path) -> dict[str, str]:
    """Break → the wrong report that shows it; empty if none does."""
    noticed = {}
    for broken in chosen:
        package = broken_package(broken, base / broken.name)
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = str(package)
        noticed[broken.name] = ""
        try:
            for number, name in enumerate(broken.cases, start=1):
                case = next(case for case in all_cases("", has_memory=True) if case.name == name)
                result = play_round(stage, case, seed, number)
                say(result.line)
                if re.search(broken.report, result.wrong):
                    noticed[broken.name] = f"{case.name}: {result.wrong.splitlines()[0][:160]}"
                    break
        finally:
            del os.environ["PYTHONPATH"]
            if before is not None:
                os.environ["PYTHONPATH"] = before
        say(f"{broken.name}: {'noticed' if noticed[broken.name] else 'NOT NOTICED'}")
    return noticed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description="Play random faults on hosts of a lab.")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="decides all rounds (default: the time)")
    parser.add_argument("--count", type=int, default=30, help="the number of rounds (default: 30)")
    parser.add_argument("--round", type=int, help="only this one")
    parser.add_argument("--only", default="", help="cases whose name has this text")
    parser.add_argument("--keep-going", action="store_true", help="play all rounds, also after a wrong report")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results there")
    parser.add_argument("--list", action="store_true", help="print the names of cases and breaks")
    parser.add_argument("--break", dest="broken", metavar="NAME", help="a deliberate break of the agent, or all")
    asked = parser.parse_args()
    if asked.list:
        say("\n".join([*(case.name for case in all_cases("", has_memory=True)), "", *(each.name for each in BREAKS)]))
        return 0
    chosen = [each for each in BREAKS if asked.broken == "all" or (asked.broken and asked.broken in each.name)]
    if asked.broken and not chosen:
        parser.error(f"no break {asked.broken!r}: {', '.join(each.name for each in BREAKS)}")
    base = Path(tempfile.mkdtemp(prefix="faults-"))
    say(f"seed {asked.seed}; the calls' output is in {base}")
    report: dict[str, Any] = {"seed": asked.seed}
    with new_stage(base) as stage:
        if chosen:
            report["breaks"] = noticed = play_breaks(stage, chosen, asked.seed, base)
            say("\n" + "\n".join(f"{name:32} {how or 'NOT NOTICED'}" for name, how in noticed.items()))
            is_well = all(noticed.values())
        else:
            played = play(stage, asked)
            report["rounds"] = [each.to_json() for each in played]
            say(show(played))
            is_well = not any(each.wrong for each in played)
    if asked.json:
        asked.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
