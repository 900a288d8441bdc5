"""`python -m tests.slow_ranks --seed S --count N`: slows ranks and links of a training, and asks `ipexctl slow`.

Two hosts of a lab with a rank and a core each train over gloo. In each round a rank of the seed's choice is slowed, or
the link of its host; after four windows the verdict must name that rank or link, and a cause that fits. Between the
rounds the training recovers. `--healthy N` then trains without any of it for N windows, with two ranks and with four
ranks on two cores, and counts alarms; `--only` chooses the kinds. The windows are those of the product, 10 s, unless
`--window S` makes them shorter in a copy of the package, which is harder: a figure over a shorter time varies more. The
exit code is 1 if a goal is missed. It takes both cores of this machine, and a wheel of torch from pip's indexes; other
load is in its figures.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from clean_environment import package_environ
from ipexctl.lab import LabSpec, down, up
from ipexctl.lab.system import in_namespaces
from ipexctl.node.common.processes import read_stat

from .injections import INJECTIONS, Injection, Stage

REPOSITORY: Final = Path(__file__).parents[2]
TRAINING: Final = Path(__file__).with_name("training.py")
TORCH: Final = "2.13"
WINDOWS: Final = 5
"""Of an injection: the verdict needs three whole ones, an injection begins in one, and takes a moment."""
SLOWED: Final = 1.5
"""By which a judged window may take longer while a rank is slowed: it has 30 steps."""
RECOVERY: Final = 2
WARM_UP: Final = 4
RIGHT_PLACE, RIGHT_CAUSE = 19 / 20, 18 / 20
MOST_ALARMS: Final = 0.01
"""Of the healthy windows."""
MOST_OVERHEAD: Final = 0.005
"""Of the processors' time, for all programs of ipexctl together."""
OURS: Final = (b"agent.zip",)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


@dataclass(frozen=True)
class Round:
    kind: str
    is_place_right: bool
    is_cause_right: bool


class Calls:
    """Calls of ipexctl, of this checkout or of a copy with shorter windows."""

    def __init__(self, base: Path, window: float) -> None:
        self.window = self.pace = window
        self.env = {**package_environ(), "XDG_STATE_HOME": str(base / "state"), "PYTHONPATH": str(REPOSITORY)}
        if window != 10.0:
            package = base / "package"
            for name in ("ipexctl", "playbooks"):
                shutil.copytree(REPOSITORY / name, package / name, ignore=shutil.ignore_patterns("__pycache__"))
            path = package / "ipexctl/node/run/window_file.py"
            text = path.read_text()
            assert text.count("\nWINDOW = 10.0\n") == 1
            path.write_text(text.replace("\nWINDOW = 10.0\n", f"\nWINDOW = {window}\n"))
            self.env["PYTHONPATH"] = str(package)

    def argv(self, *words: object) -> list[str]:
        return [sys.executable, "-P", "-m", "ipexctl", *map(str, words)]

    def good(self, *words: object, timeout: float = 900) -> str:
        done = subprocess.run(
            self.argv(*words), env=self.env, capture_output=True, text=True, timeout=timeout, check=False, cwd="/"
        )
        if done.returncode:
            raise SystemExit(f"ipexctl {words[0]} ended with {done.returncode}:\n{done.stderr[-3000:]}")
        return done.stdout

    def slow(self) -> dict[str, Any]:
        done = subprocess.run(
            self.argv("slow", "last", "--json"), env=self.env, capture_output=True, text=True, timeout=60, check=False
        )
        try:
            answer: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            raise SystemExit(f"ipexctl slow ended with {done.returncode}:\n{done.stderr[-3000:]}") from None
        return answer


@contextmanager
def trained(calls: Calls, stage: Stage, base: Path) -> Iterator[None]:
    """The training, from its first judged windows on."""
    project = base / "project"
    project.mkdir(exist_ok=True)
    shutil.copy(TRAINING, project / "train.py")
    per_host = stage.ranks // len(stage.lab.hosts)
    calls.good(
        *("run", "-H", stage.lab.hostfile, "--ppn", per_host, "--backend", "gloo", "--bind", "none", "--omp", "1"),
        *("--detach", "--cwd", project, project / "train.py"),
    )
    try:
        for _ in range(40):
            time.sleep(max(5.0, calls.window))
            answer = calls.slow()
            if answer["windows"] >= WARM_UP:
                calls.pace = SLOWED * answer["seconds"] / answer["windows"]
                break
        else:
            raise SystemExit("the training does not begin:\n" + calls.good("logs", "last"))
        yield
    finally:
        subprocess.run(calls.argv("stop", "last"), env=calls.env, capture_output=True, timeout=90, check=False)


def play(calls: Calls, stage: Stage, injection: Injection, rank: int) -> Round:
    manager: Any = injection.inject(stage, rank)
    with manager:
        # One call alone: each is a program on node0 for a second, which is a load on the core of its rank.
        time.sleep(WINDOWS * calls.pace)
        answer = calls.slow()
    ranks = [found for found in answer["findings"] if found["current"] and found["rank"] is not None]
    links = [link for link in answer["links"] if link["current"]]
    host = stage.host_of(rank)
    if injection.is_link:
        is_right = not ranks and bool(links)
        causes = [link["cause"] for link in links]
    else:
        is_right = [found["rank"] for found in ranks] == [rank]
        causes = [found["cause"] for found in ranks]
    has_cause = is_right and any(cause in injection.causes for cause in causes)
    named = [f"rank {found['rank']} {found['cause']} {found['percent']:.0f} %" for found in ranks]
    named += [f"{'+'.join(link['hosts'])} {link['cause']}" for link in links]
    mark = "right" if has_cause else "right place, WRONG cause" if is_right else "WRONG"
    say(f"  {injection.name}, rank {rank} on {host}: {'; '.join(named) or 'nothing'}: {mark}")
    if not is_right:
        say(f"    {json.dumps({name: answer[name] for name in ('windows', 'waiting', 'unjudged', 'look_error')})}")
    time.sleep(RECOVERY * calls.pace)
    return Round(injection.name, is_right, has_cause)


def our_seconds(stage: Stage) -> float:
    """Processor time of all programs of ipexctl on the hosts: supervisor, rank wrappers and what they start for it."""
    total = 0.0
    names = [host.netns for host in stage.lab.hosts]
    for pids in in_namespaces(names).values():
        for pid in pids:
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
                total += read_stat(pid).seconds if any(sign in line for sign in OURS) else 0.0
            except OSError:
                continue
    return total


def healthy(calls: Calls, stage: Stage, windows: int) -> tuple[int, int, float]:
    """Alarms, judged windows, and the part of the processors' time that our programs took."""
    before, used, begun = calls.slow(), our_seconds(stage), time.monotonic()
    time.sleep(windows * calls.window)
    overhead = (our_seconds(stage) - used) / (time.monotonic() - begun) / len(stage.cores)
    after = calls.slow()
    began = begun_at(before)
    alarms = [
        f"{found.get('rank', found.get('hosts'))} {found['cause']}"
        for found in (*after["findings"], *after["links"])
        if found["until"] > began
    ]
    for alarm in alarms:
        say(f"  alarm: {alarm}")
    return len(alarms), after["windows"] - before["windows"], overhead


def begun_at(answer: dict[str, Any]) -> float:
    """Findings of the warm-up do not count."""
    return max((found["until"] for found in (*answer["findings"], *answer["links"])), default=0.0)


def report(rounds: Sequence[Round]) -> bool:
    """A line for each kind; whether all goals are reached."""
    is_good = True
    for kind, count in Counter(round_.kind for round_ in rounds).items():
        of_kind = [round_ for round_ in rounds if round_.kind == kind]
        places, causes = (sum(getattr(each, name) for each in of_kind) for name in ("is_place_right", "is_cause_right"))
        reached = places >= RIGHT_PLACE * count and causes >= RIGHT_CAUSE * count
        is_good = is_good and reached
        say(f"{kind}: right place {places} of {count}, right cause {causes} of {count}{'' if reached else ': MISSED'}")
    return is_good


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.slow_ranks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20, help="injections of each kind")
    parser.add_argument("--only", default="", help="kinds whose name has this text")
    parser.add_argument("--healthy", type=int, default=100, help="windows without any injection, twice")
    parser.add_argument("--window", type=float, default=10.0, help="seconds of a window")
    asked = parser.parse_args()
    cores = tuple(sorted(os.sched_getaffinity(0)))[:2]
    kinds = [injection for injection in INJECTIONS if asked.only in injection.name]
    chance = random.Random(asked.seed)
    order = [injection for _ in range(asked.count) for injection in chance.sample(kinds, len(kinds))]
    say(
        f"load before: {os.getloadavg()[0]:.1f} on {len(cores)} cores; windows of {asked.window:g} s; seed {asked.seed}"
    )
    with tempfile.TemporaryDirectory() as directory:
        base = Path(directory)
        calls = Calls(base, asked.window)
        lab = up(LabSpec(hosts=2, name=f"slow-{os.getpid()}", temporary=True))
        stage = Stage(lab, 2, cores)
        try:
            stage.prepare()
            calls.good("trust", "-H", lab.hostfile)
            calls.good("install", "-H", lab.hostfile, "--stack", "torch", "--torch", TORCH)
            with trained(calls, stage, base):
                rounds = [play(calls, stage, injection, chance.randrange(2)) for injection in order]
                found = [("2 ranks on 2 cores", healthy(calls, stage, asked.healthy))] if asked.healthy else []
            if asked.healthy:
                crowded = Stage(lab, 4, cores, stage.groups)
                with trained(calls, crowded, base):
                    found.append(("4 ranks on 2 cores", healthy(calls, crowded, asked.healthy)))
        finally:
            down(lab.name)
            stage.release()
    is_good = report(rounds)
    for name, (alarms, windows, overhead) in found:
        reached = alarms <= MOST_ALARMS * max(100, windows)
        is_good = is_good and reached and overhead <= MOST_OVERHEAD
        say(
            f"healthy, {name}: {alarms} alarms in {windows} windows; our programs took {overhead:.2%} of the processors"
        )
    say(f"load after: {os.getloadavg()[0]:.1f}")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
