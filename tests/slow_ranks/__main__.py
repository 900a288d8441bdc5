"""`python -m tests.slow_ranks --results FILE`: slows ranks and links of a training, and asks `ipexctl slow`.

Two hosts of a lab with a rank and a core each train over gloo. In each round a rank of the seed's choice is slowed, or
the link of its host; after some windows the verdict must name that rank or link, and a cause that fits. Between the
rounds the training recovers. `--one-host` has both ranks on one host, whose all-reduce in shared memory measures the
waiting. `--healthy N` trains without any of it for N windows, with `--ranks R`, and counts alarms; `--only` chooses the
kinds. The windows are those of the product, 10 s, unless `--window S` makes them shorter in a copy of the package,
and the steps in a judged window as many fewer, which is harder: a figure over a shorter time varies more.

It takes both cores of this machine. A round during which other programs took more than MOST_OTHER of them is disturbed:
it is played again, and counted apart. So it plays in batches. `--base DIR` keeps the
lab with its torch for the next call, until one with `--end`; `--minutes M` begins no round after M minutes. Each round
is a line of the results file, with the windows that it was judged by; each call ends with the table over the whole
file, and with exit code 1 if a goal is missed. `--table` only prints that.
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from clean_environment import package_environ
from ipexctl.jobs.windows import RunWindows, read_copied_windows
from ipexctl.lab import Lab, LabSpec, down, list_labs, up
from ipexctl.lab.system import in_namespaces, init_of
from ipexctl.node.common.files import read_json
from ipexctl.node.common.processes import read_stat
from ipexctl.node.common.records import read_status

from . import results
from .injections import INJECTIONS, Injection, Stage

REPOSITORY: Final = Path(__file__).parents[2]
TRAINING: Final = Path(__file__).with_name("training.py")
TORCH: Final = "2.13"
WINDOWS: Final = 5
"""Of an injection: the verdict needs three whole ones, an injection begins in one, and takes a moment."""
RECOVERY: Final = 1
WARM_UP: Final = 4
STRETCH: Final = 25
"""Healthy windows that are judged at once."""
MOST_OTHER: Final = 0.05
"""Of the processors' time, for programs outside of the lab: above it, a round is disturbed, and played again."""
KEPT_WINDOWS: Final = 30
"""In the results: the windows of a round, and some before."""
OURS: Final = (b"agent.zip",)
LAB_FILE: Final = "lab"


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Calls:
    """Calls of ipexctl, of this checkout or of a copy with shorter windows."""

    def __init__(self, base: Path, window: float) -> None:
        self.window = window
        self.env = {**package_environ(), "XDG_STATE_HOME": str(base / "state"), "PYTHONPATH": str(REPOSITORY)}
        if window != 10.0:
            package = base / "package"
            shutil.rmtree(package, ignore_errors=True)
            for name in ("ipexctl", "playbooks"):
                shutil.copytree(REPOSITORY / name, package / name, ignore=shutil.ignore_patterns("__pycache__"))
            _set(package / "ipexctl/node/run/window_file.py", "WINDOW = 10.0", f"WINDOW = {window}")
            steps = round(30 * window / 10)
            _set(package / "ipexctl/node/run/own_time.py", "MIN_STEPS = 30", f"MIN_STEPS = {steps}")
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


def _set(path: Path, line: str, other: str) -> None:
    text = path.read_text()
    assert text.count(f"\n{line}\n") == 1
    path.write_text(text.replace(f"\n{line}\n", f"\n{other}\n"))


@contextmanager
def trained(calls: Calls, stage: Stage, base: Path) -> Iterator[None]:
    """The training, from its first judged windows on."""
    project = base / "project"
    project.mkdir(exist_ok=True)
    shutil.copy(TRAINING, project / "train.py")
    per_host = stage.ranks // len(stage.hosts)
    calls.good(
        *("run", "-H", stage.lab.hostfile, "-l", ",".join(stage.hosts), "--ppn", per_host, "--backend", "gloo"),
        *("--bind", "none", "--omp", "1", "--detach", "--cwd", project, project / "train.py"),
    )
    try:
        for _ in range(40):
            time.sleep(max(4.0, calls.window))
            if calls.slow()["windows"] >= WARM_UP:
                break
        else:
            raise SystemExit("the training does not begin:\n" + calls.good("logs", "last"))
        yield
    finally:
        subprocess.run(calls.argv("stop", "last"), env=calls.env, capture_output=True, timeout=90, check=False)


def record_of(stage: Stage, run: str) -> Path:
    """The record on node0, read past ipexctl."""
    home = stage.lab.hosts[0].home
    return Path(f"/proc/{init_of(stage.lab.hosts[0].netns)}/root{home}/.ipexctl/runs/{run}")


def last_windows(windows: RunWindows) -> dict[str, Any]:
    """As JSON: what each rank and host did in the last windows, and when."""
    return {
        name: {
            str(key): {
                "end": record.started + record.seconds * len(record.windows),
                "windows": [None if each is None else list(each) for each in record.windows[-KEPT_WINDOWS:]],
            }
            for key, record in found.items()
        }
        for name, found in (("ranks", windows.ranks), ("hosts", windows.hosts))
    }


def play(calls: Calls, stage: Stage, injection: Injection, rank: int) -> dict[str, Any]:
    begun = time.time()
    manager: Any = injection.inject(stage, rank)
    with manager:
        load = OtherLoad(stage)
        # One call alone: each is a program on node0 for a second, which is a load on the core of its rank.
        time.sleep(WINDOWS * calls.window)
        other = load.part()
        asked = time.time()
        answer = calls.slow()
        directory = record_of(stage, answer["run"]["id"])
        windows = last_windows(read_copied_windows(directory))
        watched = read_status(read_json(directory / "status.json")).slow
    ranks = [found for found in answer["findings"] if found["current"] and found["rank"] is not None]
    links = [link for link in answer["links"] if link["current"]]
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
    found = "; ".join(named) or "nothing"
    say(f"  {injection.name}, rank {rank} on {stage.host_of(rank)}: {found}: {mark}; other load {other:.0%}")
    if not is_right:
        say(f"    {json.dumps({name: answer[name] for name in ('windows', 'waiting', 'unjudged', 'look_error')})}")
    time.sleep(RECOVERY * calls.window)
    return {
        "kind": injection.name,
        "rank": rank,
        "is_place_right": is_right,
        "is_cause_right": has_cause,
        "named": named,
        "begun": begun,
        "asked": asked,
        "other": other,
        "is_disturbed": other > MOST_OTHER,
        "answer": answer,
        "in_ps": watched and watched.rank,
        "recorded": windows,
    }


class OtherLoad:
    """What programs of this machine that are not in the lab take of its processors from now on."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._at, self._seconds = time.monotonic(), self._others()

    def part(self) -> float:
        return (self._others() - self._seconds) / (time.monotonic() - self._at) / len(self._stage.cores)

    def _others(self) -> float:
        lab = 0.0
        for pids in in_namespaces([host.netns for host in self._stage.lab.hosts]).values():
            for pid in pids:
                with suppress(OSError):
                    lab += read_stat(pid).seconds
        # user, nice and system time: that of interrupts is the lab's network, mostly.
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:4]
        return sum(map(int, fields)) / os.sysconf("SC_CLK_TCK") - lab


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


def healthy(calls: Calls, stage: Stage, windows: int) -> dict[str, Any]:
    """Alarms, judged windows, and the part of the processors' time that our programs took."""
    before = calls.slow()
    time.sleep(calls.window)  # the call is over, and its load is not counted
    load, used, begun = OtherLoad(stage), our_seconds(stage), time.monotonic()
    time.sleep(windows * calls.window)
    other = load.part()
    seconds = time.monotonic() - begun
    overhead = (our_seconds(stage) - used) / seconds / len(stage.cores)
    after = calls.slow()
    # Findings of the warm-up do not count.
    warm = max((found["until"] for found in (*before["findings"], *before["links"])), default=0.0)
    alarms = [
        f"{found.get('rank', found.get('hosts'))} {found['cause']}"
        for found in (*after["findings"], *after["links"])
        if found["until"] > warm
    ]
    say(f"  healthy: {'; '.join(alarms) or 'no alarm'}; other load {other:.0%}")
    return {
        "kind": results.HEALTHY,
        "alarms": len(alarms),
        "named": alarms,
        "windows": after["windows"] - before["windows"],
        "seconds": seconds,
        "overhead": overhead,
        "other": other,
        "is_disturbed": other > MOST_OTHER,
        "answer": after,
        "recorded": last_windows(read_copied_windows(record_of(stage, after["run"]["id"]))),
    }


@dataclass(frozen=True)
class Asked:
    seed: int
    count: int
    only: str
    healthy: int
    ranks: int
    one_host: bool
    window: float
    minutes: float
    results: Path

    @property
    def setting(self) -> str:
        hosts = "one host" if self.one_host else "two hosts"
        return f"{self.ranks} ranks on {hosts}, windows of {self.window:g} s"


@contextmanager
def kept_lab(base: Path, *, is_kept: bool) -> Iterator[Lab]:
    """The lab of `base`, as an earlier call left it, or a new one."""
    name = (base / LAB_FILE).read_text() if (base / LAB_FILE).exists() else f"slow-{os.getpid()}"
    lab = next((lab for lab in list_labs() if lab.name == name), None)
    if lab is None:
        lab = up(LabSpec(hosts=2, name=name, temporary=not is_kept))
        (base / LAB_FILE).write_text(name)
    try:
        yield lab
    finally:
        if not is_kept:
            remove_lab(base)


def remove_lab(base: Path) -> None:
    path = base / LAB_FILE
    if path.exists():
        name = path.read_text()
        lab = next((lab for lab in list_labs() if lab.name == name), None)
        down(name)
        if lab is not None:
            Stage.of(lab, 2, (0,)).release()
        path.unlink()


def play_all(asked: Asked, base: Path, lab: Lab) -> None:
    deadline = time.monotonic() + 60 * asked.minutes
    cores = tuple(sorted(os.sched_getaffinity(0)))[:2]
    hosts = tuple(host.name for host in lab.hosts)[: 1 if asked.one_host else 2]
    stage = Stage.of(lab, asked.ranks, cores, hosts)
    kinds = [each for each in INJECTIONS if asked.only in each.name and (not asked.one_host or each.is_for_one_host)]
    chance = random.Random(asked.seed)
    rounds = [injection for _ in range(asked.count) for injection in chance.sample(kinds, len(kinds))]
    calls = Calls(base, asked.window)
    stage.prepare()
    if not (base / "installed").exists():
        calls.good("trust", "-H", lab.hostfile)
        calls.good("install", "-H", lab.hostfile, "--stack", "torch", "--torch", TORCH)
        (base / "installed").touch()
    if not rounds and not asked.healthy:
        return
    common = {"setting": asked.setting, "seed": asked.seed, "load": os.getloadavg()[0]}
    say(f"load before: {os.getloadavg()[0]:.1f} on {len(cores)} cores; {asked.setting}; seed {asked.seed}")
    with trained(calls, stage, base):
        while rounds and time.monotonic() < deadline:
            injection = rounds.pop(0)
            line = play(calls, stage, injection, chance.randrange(asked.ranks))
            results.append(asked.results, {**common, **line})
            if line["is_disturbed"]:
                rounds.append(injection)
        for _ in range(0, asked.healthy, STRETCH):
            if time.monotonic() > deadline:
                break
            results.append(asked.results, {**common, **healthy(calls, stage, min(STRETCH, asked.healthy))})
    say(f"load after: {os.getloadavg()[0]:.1f}")


def print_table(path: Path) -> bool:
    rows = list(results.table(results.read(path)))
    for row, _ in rows:
        say(row)
    return all(is_good for _, is_good in rows)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.slow_ranks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20, help="injections of each kind")
    parser.add_argument("--only", default="", help="kinds whose name has this text")
    parser.add_argument("--healthy", type=int, default=0, help="windows without any injection, after the rounds")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--one-host", action="store_true", help="all ranks on one host, with its shared all-reduce")
    parser.add_argument("--window", type=float, default=10.0, help="seconds of a window")
    parser.add_argument("--minutes", type=float, default=600.0, help="after which no round begins")
    parser.add_argument("--results", type=Path, default=Path("slow-ranks.jsonl"))
    parser.add_argument("--base", type=Path, help="directory in which the lab is kept for the next call")
    parser.add_argument("--end", action="store_true", help="remove the lab of --base")
    parser.add_argument("--table", action="store_true", help="only print the table over the results")
    return parser.parse_args(argv)


def main() -> int:
    words = vars(parse())
    base, is_end, is_table = (words.pop(name) for name in ("base", "end", "table"))
    asked = Asked(**words)
    if is_end:
        remove_lab(base)
        shutil.rmtree(base)
        return 0
    if not is_table:
        with tempfile.TemporaryDirectory() as directory:
            there = base.resolve() if base is not None else Path(directory)
            there.mkdir(exist_ok=True)
            with kept_lab(there, is_kept=base is not None) as lab:
                play_all(asked, there, lab)
    return 0 if print_table(asked.results) else 1


if __name__ == "__main__":
    sys.exit(main())
