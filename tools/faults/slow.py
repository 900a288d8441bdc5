"""Slows a rank or a link of a training, and compares the verdict of `ipexctl why` with what was done.

Two hosts with a rank and a core each train over gloo as long as the rounds are played. In each round a rank of the
seed's choice is slowed, or the link of its host; after some windows the verdict must name that rank or link, and a
cause that fits. `nothing` trains without any of it for 25 windows, and counts alarms.

The rule: it takes both cores of this machine, and a wrong verdict while other programs took more than MOST_OTHER of
them decides nothing.
"""

from __future__ import annotations

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
from ipexctl.addons.lab.faults import ssh_argv
from ipexctl.addons.lab.lab_record import LabHost
from ipexctl.addons.lab.lab_system import in_namespaces
from ipexctl.node.common.processes import read_stat
from ipexctl.node.run.meter.window_file import WINDOW

from .rounds import Case, Kind, Round
from .stage import FaultLab, broken, install_torch, new_stage

SCRIPT: Final = Path(__file__).with_name("scripts") / "slowed.py"
WINDOWS: Final = 5
"""Of an injection: the verdict needs three whole ones, an injection begins in one, and takes a moment."""
STRETCH: Final = 25
"""Of a training without any."""
WARM_UP: Final = 4
MOST_OTHER: Final = 0.05
"""Of the processors' time, for programs outside of the lab."""
PERIOD: Final = 100_000
HOG: Final = "exec timeout 120 taskset -c {core} sh -c 'while :; do :; done'"
CORES: Final = tuple(sorted(os.sched_getaffinity(0)))[:2]
"""Of this machine: rank R has core R of them."""


def _verdict(stage: FaultLab) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(stage.cluster.call("why", "last", "--json").out)["slow"]
    return answer


def _other_seconds(stage: FaultLab) -> float:
    """Processor time of programs outside of the lab until now."""
    lab = 0.0
    for pids in in_namespaces([host.netns for host in stage.hosts]).values():
        for pid in pids:
            with contextlib.suppress(OSError):
                lab += read_stat(pid).seconds
    # user, nice and system time: that of interrupts is the lab's network, mostly.
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:4]
    return sum(map(int, fields)) / os.sysconf("SC_CLK_TCK") - lab


Slowed = AbstractContextManager[object]


@dataclass(frozen=True)
class SlowCase(Case):
    """`play` returns a context manager that slows the victim, or the link of its host."""

    play: Callable[[SlowRound], Slowed]
    cause: str = ""
    """The right one; none: no alarm is right."""
    windows: int = WINDOWS


@dataclass
class SlowRound(Round):
    stage: FaultLab
    case: SlowCase
    chance: random.Random
    rank: int = 0

    @property
    def host(self) -> LabHost:
        return self.stage.hosts[self.rank]

    def play(self) -> None:
        self.rank = self.chance.randrange(len(CORES))
        before = _verdict(self.stage)
        with self.case.play(self):
            # One call alone: each is a program on node0 for a second, which is a load on the core of its rank.
            began, others = time.monotonic(), _other_seconds(self.stage)
            time.sleep(self.case.windows * WINDOW)
            other = (_other_seconds(self.stage) - others) / (time.monotonic() - began) / len(CORES)
            verdict = _verdict(self.stage)
        self.details = {"answer": verdict, "other": other}
        self.notes += [f"rank {self.rank} on {self.host.name}", f"others took {other:.0%} of the processors"]
        if other > MOST_OTHER:
            self.excuse = "disturbed"
        self._judge(before, verdict)

    def clear(self) -> None:
        """Let the training recover."""
        time.sleep(WINDOW)

    def _judge(self, before: dict[str, Any], verdict: dict[str, Any]) -> None:
        found = [*verdict["findings"], *verdict["links"]]
        if not self.case.cause:
            known = max((each["until"] for each in (*before["findings"], *before["links"])), default=0.0)
            alarms = [_named(each) for each in found if each["since"] >= known or each["current"]]
            assert not alarms, f"false alarms: {alarms}"
            return
        named = [_named(each) for each in found if each["current"]]
        self.notes.append("; ".join(map(str, named)) or "nothing named")
        victim = None if self.case.cause == "link" else self.rank
        unjudged = {name: verdict[name] for name in ("windows", "waiting", "unjudged", "look_error")}
        assert named == [(victim, self.case.cause)], f"wrong: {named}, not {self.case.cause} {unjudged}"


def _named(found: dict[str, Any]) -> tuple[int | None, str]:
    return found.get("rank"), found.get("cause", "link")


@contextmanager
def _hog(context: SlowRound) -> Iterator[None]:
    """A program of the same account, on the core of the rank."""
    program, *words = ssh_argv(context.host)
    # With a terminal, sshd ends the program when the connection does.
    argv = [program, "-tt", *words, HOG.format(core=CORES[context.rank])]
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
    quota = context.stage.groups[context.host.name] / "cpu.cfs_quota_us"
    quota.write_text(str(PERIOD * 8 // 10))
    try:
        yield
    finally:
        quota.write_text("-1")


def _ordered(**seconds: float) -> Callable[[SlowRound], Slowed]:
    @contextmanager
    def order(context: SlowRound) -> Iterator[None]:
        path = context.stage.file(context.host.name, f"/tmp/slow-{context.rank}")
        path.write_text(json.dumps(seconds))
        path.chmod(0o644)
        try:
            yield
        finally:
            path.unlink()

    return order


CASES: Final = (
    SlowCase("a CPU hog on its core", _hog, "other-programs"),
    SlowCase("80 % of a processor", _limit, "other-programs", needs="cpu"),
    SlowCase("extra work in one rank", _ordered(work=0.012), "more-work"),
    SlowCase("late data of one rank", _ordered(read=0.02), "data"),
    SlowCase("a slow link", lambda context: broken(context.host, "slow-link", "400mbit"), "link"),
    SlowCase("nothing", lambda _: nullcontext(), windows=STRETCH),
)


@contextmanager
def _stage(base: Path) -> Iterator[FaultLab]:
    """The training, from its first judged windows on."""
    with new_stage(base, install_torch, controller="cpu", hosts=len(CORES)) as stage:
        stage.cluster.write("train.py", SCRIPT.read_bytes())
        settings = ("--ppn", 1, "--backend", "gloo", "--bind", "none", "--omp", "1", "--detach", "train.py")
        stage.cluster.run(*settings)
        logs = ("logs", "last")
        wait_until(lambda: _verdict(stage)["windows"] >= WARM_UP, 40 * WINDOW, lambda: stage.cluster.call(*logs).out)
        yield stage


KIND = Kind(
    "what slows a rank or a link of a training; installs torch, and takes both cores of a quiet machine",
    CASES,
    _stage,
    SlowRound,
    goal=0.9,
)
