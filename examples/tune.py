"""Compares settings of a run: each takes turns on the same hosts, some seconds at a time.

    python examples/tune.py -H hostfile train.py --epochs 100
    python examples/tune.py -H hostfile omp=1 bind=none,omp=2 KMP_BLOCKTIME=0 -- train.py --epochs 100

A setting is NAME=VALUE, NAME for an option without a value, or several with commas between them: a long option of
`ipexctl run`, or in capitals a variable of the ranks. Without settings, those that speed up an unchanged script are
tried. The plan without any takes turns, too. A setting is faster or slower only if all of its turns are.

Each turn has a copy of the project of its own, here and on the hosts: no turn goes on from another's checkpoint, and
none replaces yours. A script that writes to an absolute path still does.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import ipexctl

PLAN = "the plan"
PREFIX = "ipexctl-tune-"
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "__pycache__")
LOSS = re.compile(r"(?<![a-z])(?:(val|eval|test)\w*[ _/.-])?loss\b[\s:=]{0,3}([-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)", re.I)


class Turn(NamedTuple):
    steps_per_s: float
    samples_per_s: float | None
    ranks: int
    losses: list[float]
    """That rank 0 printed."""


def pairs_of(setting: str) -> list[tuple[str, str | bool]]:
    parts = [part.partition("=") for part in setting.split(",")] if setting != PLAN else []
    return [(name, value if equals else True) for name, equals, value in parts]


def keywords_of(setting: str) -> dict[str, Any]:
    pairs = pairs_of(setting)
    options = {name.replace("-", "_"): value for name, value in pairs if not name.isupper()}
    numbers = {name: int(value) for name, value in options.items() if isinstance(value, str) and value.isdigit()}
    return {**options, **numbers, "export": {name: value for name, value in pairs if name.isupper()}}


def words_of(setting: str) -> list[str]:
    words: list[str] = []
    for name, value in pairs_of(setting):
        words += (
            ["-x", f"{name}={value}"] if name.isupper() else [f"--{name}", *([] if value is True else [str(value)])]
        )
    return words


def usual_settings(plan: Any) -> list[str]:
    """What may speed up a script as it is: bf16, a fused optimizer, other numbers of ranks and threads."""
    host = plan.hosts[0]
    ranks, threads = len(host.ranks), host.ranks[0].omp
    settings = ["fast", "autocast=bf16", "fused-optimizer", "fp32-math=bf16"]
    settings += [f"ppn={count}" for count in dict.fromkeys([1, 2 * ranks]) if count != ranks and count <= host.cores]
    return [*settings, f"omp={threads // 2}"] if threads > 1 else settings


def link(file: str, copy: str) -> None:
    """A copy without bytes of its own, where the file system has that."""
    try:
        os.link(file, copy)
    except OSError:
        shutil.copy2(file, copy)


@contextlib.contextmanager
def copied(cluster: ipexctl.Cluster, plan: Any, words: list[str]) -> Iterator[list[str]]:
    """The script in a copy of the project, which is removed afterwards, also from the hosts."""
    root, here = Path(plan.project.root).resolve(), Path.cwd()
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name:
        copy = Path(name)
        shutil.copytree(root, copy, symlinks=True, ignore=LEFT_OUT, copy_function=link, dirs_exist_ok=True)
        if not (copy / ".ipexctlignore").exists():  # makes it a project
            (copy / ".ipexctlignore").touch()
        script = copy / os.path.relpath(Path(words[0]).resolve(), root)
        os.chdir(copy / here.relative_to(root) if here.is_relative_to(root) else here)
        try:
            yield [str(script), *words[1:]]
        finally:
            os.chdir(here)
            cluster.exec(f"rm -rf {shlex.quote(plan.home)}/code/{copy.name}*")


def take_turn(cluster: ipexctl.Cluster, words: list[str], setting: str, seconds: float) -> Turn:
    """Start a run, and stop it some seconds after its first steps were counted."""
    run = cluster.run(words[0], words[1:], exclusive=True, wait=600.0, **keywords_of(setting))
    until, has_stepped = time.monotonic() + 900.0, False  # models are loaded and compiled before the first step
    output = b""
    try:
        for event in run.events():
            if isinstance(event, ipexctl.RunEnded) and event.exit_code:
                sys.exit(f"{setting}: the run ended with exit code {event.exit_code}; see: ipexctl why {run.id}")
            if isinstance(event, ipexctl.Chunk) and event.rank == 0:
                output += event.data
            if isinstance(event, ipexctl.RunStatus) and event.throughput is not None and not has_stepped:
                until, has_stepped = time.monotonic() + seconds, True
            if time.monotonic() > until:
                break
    finally:
        run.stop()
    status = run.wait(60.0).status
    if status is None or status.throughput is None or not status.throughput.steps_per_s:
        sys.exit(f"{setting}: no step of a torch optimizer was counted in run {run.id}")
    losses = [float(found[2]) for found in LOSS.finditer(output.decode(errors="replace")) if not found[1]]
    return Turn(status.throughput.steps_per_s, status.throughput.samples_per_s, status.world_size, losses)


def compare(turns: list[Turn], base: list[Turn]) -> float | None:
    """How many times as fast; 0 if the turns overlap, None if steps of other numbers of ranks can't be compared."""
    samples = [[turn.samples_per_s for turn in each if turn.samples_per_s is not None] for each in (turns, base)]
    if all(len(found) == len(each) for found, each in zip(samples, (turns, base), strict=True)):
        found, usual = samples
    elif turns[0].ranks != base[0].ranks:
        return None
    else:
        found, usual = ([turn.steps_per_s for turn in each] for each in (turns, base))
    is_apart = min(found) > max(usual) or max(found) < min(usual)
    return statistics.median(found) / statistics.median(usual) if is_apart else 0.0


def show(turns: dict[str, list[Turn]]) -> str:
    """Print a table; returns the fastest setting."""
    width = max(map(len, turns))
    printed = min(len(turn.losses) for each in turns.values() for turn in each)
    print(f"{'setting':{width}}  steps/s (lowest to highest)" + (f"  loss no. {printed}" if printed else ""))
    ratios = {}
    for setting, found in turns.items():
        rates = [turn.steps_per_s for turn in found]
        line = f"{setting:{width}}  {statistics.median(rates):.4g} ({min(rates):.4g} to {max(rates):.4g})"
        if printed:
            line += f"  {found[0].losses[printed - 1]:.6g}"
        ratio = compare(found, turns[PLAN])
        verdict = f"{ratio:.2f} of {PLAN}" if ratio else "no difference"
        if ratio is None:
            verdict = f"{found[0].ranks} ranks, and its samples were not counted"
        print(line if setting == PLAN else f"{line}  {verdict}")
        ratios[setting] = ratio or 1.0
    return max(ratios, key=lambda setting: (ratios[setting], setting == PLAN))


def main() -> None:
    usage = "tune.py [options] [NAME=VALUE[,NAME=VALUE] ... --] SCRIPT.py [ARGS]"
    parser = argparse.ArgumentParser(usage=usage)
    parser.add_argument("-H", dest="hostfile", help="the hosts (default: this machine)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each turn, once it trains (default: 30)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each setting (default: 3)")
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    has_settings = at < len(sys.argv)
    parser.add_argument("words", nargs="*" if has_settings else argparse.REMAINDER, metavar="NAME=VALUE")
    asked = parser.parse_args(sys.argv[1:at])
    settings, words = (asked.words, sys.argv[at + 1 :]) if has_settings else ([], asked.words)
    if not words or "=" in words[0]:
        parser.error("name the script after --" if has_settings or words else "name the script")
    try:
        cluster = ipexctl.Cluster.from_hostfile(asked.hostfile) if asked.hostfile else ipexctl.Cluster()
        turns = take_turns(cluster, words, settings, asked.rounds, asked.seconds)
    except ipexctl.IpexctlError as error:
        sys.exit(f"{error.message}\n  fix: {error.fix}")
    best = show(turns)
    hosts = ["-H", asked.hostfile] if asked.hostfile else []
    line = shlex.join(["ipexctl", "run", *hosts, *words_of(best), *words])
    print(f"\n{'nothing is faster than the plan' if best == PLAN else 'the fastest'}: {line}")


def take_turns(
    cluster: ipexctl.Cluster, words: list[str], settings: list[str], rounds: int, seconds: float
) -> dict[str, list[Turn]]:
    """A named setting that is refused or fails ends the comparison; a usual one is left out."""
    plan = cluster.plan(words[0], words[1:], **keywords_of(PLAN))
    turns: dict[str, list[Turn]] = {setting: [] for setting in (PLAN, *(settings or usual_settings(plan)))}
    may_fail = set(turns) - {PLAN, *settings}
    for setting in list(turns)[1:]:  # a wrong one is refused before the first turn
        try:
            cluster.plan(words[0], words[1:], **keywords_of(setting))
        except ipexctl.IpexctlError as error:
            if setting not in may_fail:
                own = shlex.join([*words, setting])
                sys.exit(
                    f"{setting}: {error.message}\n  fix: {error.fix}; if it is an argument of the script: -- {own}"
                )
            print(f"{setting} is left out: {error.message}", file=sys.stderr)
            del turns[setting]
    for setting in list(turns) * rounds:
        if setting in turns:
            try:
                with copied(cluster, plan, words) as own:
                    turns[setting].append(take_turn(cluster, own, setting, seconds))
            except SystemExit as failed:
                if setting not in may_fail:
                    raise
                print(f"left out: {failed}", file=sys.stderr)
                del turns[setting]
    return turns


if __name__ == "__main__":
    main()
