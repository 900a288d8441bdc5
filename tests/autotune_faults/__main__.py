"""`python -m tests.autotune_faults --seed S --count N`: random faults of searches on three hosts of a lab.

Each round begins a search over a script without torch and ends it by Ctrl-C or SIGKILL, takes a host or its disk away,
or lets a candidate fail; then it compares the report and what is left. The seed and the number decide a round:
`--seed S --round K` plays round K again. The exit code is 1 if a round was wrong.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from faults.rounds import choose
from faults.stage import FaultLab
from ipexctl.lab import LabSpec, down, up
from lab_run_helpers import Cluster, lab_with_mpi

from .rounds import FAULTS, SCRIPT, play_round


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def leave(number: int, _frame: object) -> None:
    """Remove the lab before the program ends."""
    sys.exit(128 + number)


@contextmanager
def new_stage(base: Path) -> Iterator[FaultLab]:
    """A lab of its own, which is removed at the end."""
    lab = up(LabSpec(hosts=3, name=f"autotune-faults-{os.getpid()}"))
    stage = None
    try:
        lab_with_mpi(lab, base)
        project = base / "project"
        project.mkdir()
        shutil.copy(SCRIPT, project)
        stage = FaultLab(Cluster(lab, project, base / "state"))
        stage.prepare()
        os.environ["XDG_DATA_HOME"] = str(base / "state/data")
        yield stage
    finally:
        down(lab.name)
        if stage is not None:
            stage.release()


def main() -> int:
    description = "Interrupt and break searches for the fastest settings."
    parser = argparse.ArgumentParser(prog="python -m tests.autotune_faults", description=description)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="decides all rounds (default: the time)")
    parser.add_argument("--count", type=int, default=len(FAULTS), help="the number of rounds (default: %(default)s)")
    parser.add_argument("--round", type=int, help="only this one")
    parser.add_argument("--only", default="", help="faults whose name has this text")
    options = parser.parse_args()
    faults = [name for name in FAULTS if options.only in name]
    if not faults:
        parser.error(f"no fault {options.only!r}: {', '.join(FAULTS)}")
    for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(sign, leave)
    base = Path(tempfile.mkdtemp(prefix="autotune-faults-"))
    say(f"seed {options.seed}; the calls' output is in {base}")
    played = []
    with new_stage(base) as stage:
        for number in [options.round] if options.round else range(1, options.count + 1):
            played.append(play_round(stage, choose(faults, options.seed, number), options.seed, number))
            say(played[-1].line)
    wrong = [result.number for result in played if result.wrong]
    kinds = ", ".join(f"{name} {number}" for name, number in Counter(result.fault for result in played).items())
    say(f"\n{len(played)} rounds ({kinds})")
    say(f"wrong: rounds {wrong}" if wrong else "all right")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
