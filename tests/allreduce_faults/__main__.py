"""`python -m tests.allreduce_faults --python PYTHON --seed S --count N`: random faults of ranks in all-reduce.

Each round starts a run of 2 to 4 ranks on this machine with `--allreduce shared`, kills, stops or fails one of them
while they exchange gradients, and compares the record, `why`, the exit code and what is left with what has happened.
`--lab` plays on two hosts of a lab with two ranks each instead, where cables are pulled, too. The seed and the number
decide a round: `--seed S --round K` plays round K again. The exit code is 1 if a report was wrong.

PYTHON has torch 2.1 or later and Intel MPI: `pip install torch impi-rt`.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from faults.rounds import choose

from .place import on_lab, on_this_machine
from .rounds import FAULTS, FAULTS_BETWEEN, play_round


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def leave(number: int, _frame: object) -> None:
    """End the round's processes and the lab before the program ends."""
    sys.exit(128 + number)


def main() -> int:
    description = "Kill, stop and fail ranks that add gradients up in shared memory."
    parser = argparse.ArgumentParser(prog="python -m tests.allreduce_faults", description=description)
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="Python with torch and Intel MPI")
    parser.add_argument("--lab", metavar="TORCH", help="play on two hosts of a lab, with this version of torch")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="decides all rounds (default: the time)")
    parser.add_argument("--count", type=int, default=22, help="the number of rounds (default: 22)")
    parser.add_argument("--round", type=int, help="only this one")
    parser.add_argument("--only", default="", help="faults whose name has this text")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results there")
    options = parser.parse_args()
    faults = [name for name in (*FAULTS, *(FAULTS_BETWEEN if options.lab else ())) if options.only in name]
    if not faults:
        parser.error(f"no fault {options.only!r}: {', '.join((*FAULTS, *FAULTS_BETWEEN))}")
    for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(sign, leave)
    base = Path(tempfile.mkdtemp(prefix="allreduce-faults-"))
    say(f"seed {options.seed}; the calls' output is in {base}")
    numbers = [options.round] if options.round else range(1, options.count + 1)
    played = []
    with on_lab(base, options.lab) if options.lab else on_this_machine(base, options.python) as place:
        for number in numbers:
            played.append(play_round(place, choose(faults, options.seed, number), options.seed, number))
            say(played[-1].line)
    wrong = [result.number for result in played if result.wrong]
    slowest = max(played, key=lambda result: result.gone)
    kinds = ", ".join(f"{name} {number}" for name, number in Counter(result.fault for result in played).items())
    say(f"\n{len(played)} rounds ({kinds})\nslowest: round {slowest.number}, {slowest.gone} s until all was gone")
    say(f"wrong: rounds {wrong}" if wrong else "all right")
    if options.json:
        options.json.write_text(json.dumps([result.to_json() for result in played], indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
