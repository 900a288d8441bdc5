"""Compares settings of a run: each takes turns on the same hosts, some seconds at a time.

    python examples/tune.py -H hostfile omp=1 bind=none,omp=2 KMP_BLOCKTIME=0 -- train.py --epochs 100

A setting is NAME=VALUE, or several with commas between them: a long option of `ipexctl run`, or in capitals a variable
of the ranks. The plan without any takes turns, too. A setting is faster or slower only if all of its turns are.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

import ipexctl

PLAN = "the plan"


def keywords_of(setting: str) -> dict[str, Any]:
    pairs = [part.partition("=")[::2] for part in setting.split(",")] if setting != PLAN else []
    options = {name.replace("-", "_"): value for name, value in pairs if not name.isupper()}
    numbers = {name: int(value) for name, value in options.items() if value.isdigit()}
    return {**options, **numbers, "export": {name: value for name, value in pairs if name.isupper()}}


def steps_per_s(cluster: ipexctl.Cluster, words: list[str], setting: str, seconds: float) -> float:
    """Start a run, and stop it some seconds after its first steps were counted."""
    run = cluster.run(words[0], words[1:], exclusive=True, wait=600.0, **keywords_of(setting))
    until, has_stepped = time.monotonic() + 900.0, False  # models are loaded and compiled before the first step
    try:
        for event in run.events():
            if isinstance(event, ipexctl.RunEnded) and event.exit_code:
                sys.exit(f"{setting}: the run ended with exit code {event.exit_code}; see: ipexctl why {run.id}")
            if isinstance(event, ipexctl.RunStatus) and event.throughput is not None and not has_stepped:
                until, has_stepped = time.monotonic() + seconds, True
            if time.monotonic() > until:
                break
    finally:
        run.stop()
    status = run.wait(60.0).status
    if status is None or status.throughput is None or not status.throughput.steps_per_s:
        sys.exit(f"{setting}: no step of a torch optimizer was counted in run {run.id}")
    return status.throughput.steps_per_s


def show(rates: dict[str, list[float]]) -> None:
    width, base = max(map(len, rates)), rates[PLAN]
    print(f"{'setting':{width}}  steps/s (lowest to highest)")
    for setting, found in rates.items():
        median, is_apart = statistics.median(found), min(found) > max(base) or max(found) < min(base)
        verdict = f"{median / statistics.median(base):.2f} of {PLAN}" if is_apart else "no difference"
        line = f"{setting:{width}}  {median:.4g} ({min(found):.4g} to {max(found):.4g})"
        print(line if setting == PLAN else f"{line}  {verdict}")


def main() -> None:
    parser = argparse.ArgumentParser(usage="tune.py [options] NAME=VALUE[,NAME=VALUE] ... -- SCRIPT.py [ARGS]")
    parser.add_argument("-H", dest="hostfile", help="the hosts (default: this machine)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each turn, once it trains (default: 30)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each setting (default: 3)")
    parser.add_argument("settings", nargs="+", metavar="NAME=VALUE")
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    asked, words = parser.parse_args(sys.argv[1:at]), sys.argv[at + 1 :] or parser.error("name the script after --")
    rates: dict[str, list[float]] = {setting: [] for setting in (PLAN, *asked.settings)}
    try:
        cluster = ipexctl.Cluster.from_hostfile(asked.hostfile) if asked.hostfile else ipexctl.Cluster()
        for setting in rates:  # a wrong one is refused before the first turn
            cluster.plan(words[0], words[1:], **keywords_of(setting))
        for setting in list(rates) * asked.rounds:
            rates[setting].append(steps_per_s(cluster, words, setting, asked.seconds))
    except ipexctl.IpexctlError as error:
        sys.exit(f"{error.message}\n  fix: {error.fix}")
    show(rates)


if __name__ == "__main__":
    main()
