"""Slows a rank or a link of a training, and compares the verdict of `ipexctl slow` with what was done.

Two hosts with a rank and a core each train over gloo as long as the rounds are played. In each round a rank of the
seed's choice is slowed, or the link of its host; after some windows the verdict must name that rank or link, and a
cause that fits. `nothing` trains without any of it for 25 windows, and counts alarms and the processor time of our own
programs. The windows are those of the product, 10 s, unless `--window S` makes them shorter in a copy of the package,
and the steps in a judged window as many fewer, which is harder: a figure over a shorter time varies more.

The rule: it takes both cores of this machine, and a wrong verdict while other programs took more than MOST_OTHER of
them decides nothing. `--json` keeps the windows that a round was judged by.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from agent_helpers import wait_until
from ipexctl.extras.lab.labs import LabHost, ssh_argv
from ipexctl.extras.lab.system import in_namespaces
from ipexctl.node.common.processes import read_stat
from ipexctl.run.windows import read_copied_windows

from .breaks import Change, changed_package, package_of_calls
from .play import HOME
from .rounds import Case, Kind, Round
from .stage import FaultLab, broken, install_torch, new_stage

SCRIPT: Final = Path(__file__).with_name("scripts") / "slowed.py"
PRODUCT_WINDOW: Final = 10.0
WINDOWS: Final = 5
"""Of an injection: the verdict needs three whole ones, an injection begins in one, and takes a moment."""
STRETCH: Final = 25
"""Of a training without any."""
WARM_UP: Final = 4
MOST_OTHER: Final = 0.05
"""Of the processors' time, for programs outside of the lab."""
MOST_OVERHEAD: Final = 0.005
"""Of the processors' time, for all programs of ipexctl together: supervisor, rank wrappers and what they start."""
KEPT_WINDOWS: Final = 30
PERIOD: Final = 100_000
HOG: Final = "exec timeout 120 taskset -c {core} sh -c 'while :; do :; done'"


@dataclass
class Training:
    stage: FaultLab
    ranks: int
    hosts: tuple[LabHost, ...]
    window: float
    run: str = ""

    @property
    def cores(self) -> tuple[int, ...]:
        """Of this machine: rank R has core R of them, in turn."""
        return tuple(sorted(os.sched_getaffinity(0)))[:2]

    def host_of(self, rank: int) -> LabHost:
        return self.hosts[rank * len(self.hosts) // self.ranks]

    def verdict(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.stage.cluster.call("slow", "last", "--json").out)
        return answer

    def recorded(self) -> dict[str, Any]:
        """The last windows of each rank and host, read past ipexctl."""
        found = read_copied_windows(self.stage.file("node1", f"{HOME}/runs/{self.run}"))
        records = {str(key): record for each in (found.ranks, found.hosts) for key, record in each.items()}
        ends = {key: record.started + record.seconds * len(record.windows) for key, record in records.items()}
        return {key: {"end": ends[key], "windows": it.windows[-KEPT_WINDOWS:]} for key, it in records.items()}

    def seconds(self) -> tuple[float, float]:
        """Processor time until now: of programs outside of the lab, and of ours in it."""
        lab, ours = 0.0, 0.0
        for pids in in_namespaces([host.netns for host in self.stage.hosts]).values():
            for pid in pids:
                with contextlib.suppress(OSError):
                    seconds = read_stat(pid).seconds
                    lab += seconds
                    ours += seconds if b"agent.zip" in Path(f"/proc/{pid}/cmdline").read_bytes() else 0.0
        # user, nice and system time: that of interrupts is the lab's network, mostly.
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:4]
        return sum(map(int, fields)) / os.sysconf("SC_CLK_TCK") - lab, ours


Slowed = AbstractContextManager[object]


@dataclass(frozen=True)
class SlowCase(Case):
    """`play` returns a context manager that slows the victim, or the link of its host."""

    play: Callable[[SlowRound], Slowed]
    causes: tuple[str, ...] = ()
    """Those that are right; none: no alarm is right."""
    is_link: bool = False
    is_for_one_host: bool = False
    windows: int = WINDOWS


@dataclass
class SlowRound(Round):
    stage: Training
    case: SlowCase
    chance: random.Random
    rank: int = 0

    @property
    def host(self) -> LabHost:
        return self.stage.host_of(self.rank)

    def play(self) -> None:
        training, self.run = self.stage, self.stage.run
        self.rank = self.chance.randrange(training.ranks)
        before = training.verdict()
        with self.case.play(self):
            # One call alone: each is a program on node0 for a second, which is a load on the core of its rank.
            time.sleep(training.window)
            began, (others, ours) = time.monotonic(), training.seconds()
            time.sleep((self.case.windows - 1) * training.window)
            parts = [now - then for now, then in zip(training.seconds(), (others, ours), strict=True)]
            other, own = (part / (time.monotonic() - began) / len(training.cores) for part in parts)
            verdict = training.verdict()
            self.details = {"answer": verdict, "recorded": training.recorded(), "other": other, "overhead": own}
        self.notes += [
            f"rank {self.rank} on {self.host.name}",
            f"others took {other:.0%} of the processors, we {own:.2%}",
        ]
        if other > MOST_OTHER:
            self.excuse = "disturbed"
        self._judge(before, verdict, own)

    def clear(self) -> None:
        """Let the training recover."""
        time.sleep(self.stage.window)

    def _judge(self, before: dict[str, Any], verdict: dict[str, Any], overhead: float) -> None:
        found = [*verdict["findings"], *verdict["links"]]
        if not self.case.causes:
            known = max((each["until"] for each in (*before["findings"], *before["links"])), default=0.0)
            alarms = [_named(each) for each in found if each["since"] >= known or each["current"]]
            assert not alarms, f"false alarms: {alarms}"
            assert overhead <= MOST_OVERHEAD, f"our programs took {overhead:.2%} of the processors"
            return
        named = [each for each in found if each["current"] and each.get("rank", 0) is not None]
        texts = [_named(each) for each in named]
        self.notes.append("; ".join(texts) or "nothing named")
        ranks = [each["rank"] for each in named if "rank" in each]
        is_right = (not ranks and named) if self.case.is_link else ranks == [self.rank]
        unjudged = {name: verdict[name] for name in ("windows", "waiting", "unjudged", "look_error")}
        assert is_right, f"wrong rank or link: {texts} {unjudged}"
        causes = [each["cause"] for each in named if ("rank" in each) != self.case.is_link]
        assert {*causes} & {*self.case.causes}, f"wrong cause: {texts}, not {self.case.causes}"


def _named(found: dict[str, Any]) -> str:
    where = f"rank {found['rank']} {found['percent']:.0f} %" if "rank" in found else "+".join(found["hosts"])
    return f"{where} {found['cause']}"


@contextmanager
def _hog(context: SlowRound) -> Iterator[None]:
    """A program of the same account, on the core of the rank."""
    cores = context.stage.cores
    program, *words = ssh_argv(context.host)
    # With a terminal, sshd ends the program when the connection does.
    argv = [program, "-tt", *words, HOG.format(core=cores[context.rank % len(cores)])]
    null = subprocess.DEVNULL
    process = subprocess.Popen(argv, stdin=null, stdout=null, stderr=null)
    try:
        yield
    finally:
        process.terminate()
        process.wait(10)


@contextmanager
def _limit(context: SlowRound) -> Iterator[None]:
    """80 % of a processor, as `cpu.max` has it: the quota of the host's cgroup."""
    quota = context.stage.stage.groups[context.host.name] / "cpu.cfs_quota_us"
    quota.write_text(str(PERIOD * 8 // 10))
    try:
        yield
    finally:
        quota.write_text("-1")


def _ordered(**seconds: float) -> Callable[[SlowRound], Slowed]:
    @contextmanager
    def order(context: SlowRound) -> Iterator[None]:
        path = context.stage.stage.file(context.host.name, f"/tmp/slow-{context.rank}")
        path.write_text(json.dumps(seconds))
        path.chmod(0o644)
        try:
            yield
        finally:
            path.unlink()

    return order


def _fault(name: str, *arguments: str) -> Callable[[SlowRound], Slowed]:
    return lambda context: broken(context.host, name, *arguments)


CASES: Final = (
    SlowCase("a CPU hog on its core", _hog, ("other-process",), is_for_one_host=True),
    SlowCase("80 % of a processor", _limit, ("cgroup-limit",), needs="cpu"),
    SlowCase("extra work in one rank", _ordered(work=0.012), ("work-or-bandwidth",), is_for_one_host=True),
    SlowCase("late data of one rank", _ordered(read=0.02), ("data", "storage"), is_for_one_host=True),
    SlowCase("a slow link", _fault("slow-link", "400mbit"), ("slow-transfer", "lost-segments"), is_link=True),
    SlowCase("a lossy link", _fault("packet-loss", "2"), ("lost-segments",), is_link=True),
    SlowCase("nothing", lambda _: nullcontext(), is_for_one_host=True, windows=STRETCH),
)


@contextmanager
def _stage(base: Path, asked: argparse.Namespace) -> Iterator[Training]:
    """The training, from its first judged windows on."""
    window = asked.window
    with contextlib.ExitStack() as stack:
        if window != PRODUCT_WINDOW:
            steps = round(30 * window / PRODUCT_WINDOW)
            changes = (
                Change("run/window_file.py", "\nWINDOW = 10.0\n", f"\nWINDOW = {window}\n"),
                Change("run/own_time.py", "\nMIN_STEPS = 30\n", f"\nMIN_STEPS = {steps}\n"),
            )
            stack.enter_context(package_of_calls(changed_package(changes, base / "package")))
        stage = stack.enter_context(new_stage(base, install_torch, controller="cpu", hosts=2))
        training = Training(stage, asked.ranks, stage.hosts[: 1 if asked.one_host else 2], window)
        stage.cluster.write("train.py", SCRIPT.read_bytes())
        where = ("--limit", ",".join(host.name for host in training.hosts), "--ppn", asked.ranks // len(training.hosts))
        settings = ("--backend", "gloo", "--bind", "none", "--omp", "1", "--detach", "train.py")
        training.run = stage.cluster.run(*where, *settings).out.strip()
        logs = ("logs", "last")
        wait_until(lambda: training.verdict()["windows"] >= WARM_UP, 40 * window, lambda: stage.cluster.call(*logs).out)
        yield training


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=int, default=2, help="in total (default: 2)")
    parser.add_argument("--one-host", action="store_true", help="all ranks on one host, with its shared all-reduce")
    parser.add_argument("--window", type=float, default=PRODUCT_WINDOW, help="seconds of a window (default: 10)")


KIND = Kind(
    "what slows a rank or a link of a training; installs torch, and takes both cores of a quiet machine",
    lambda asked: [case for case in CASES if case.is_for_one_host or not asked.one_host],
    _stage,
    SlowRound,
    _add_options,
    goal=0.9,
)
