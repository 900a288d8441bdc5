"""Rounds of runs that lose hosts and go on with the others, on four hosts, with an mpirun or without.

The ranks run `steps.py`, which writes checkpoints as a Trainer does. A case cuts hosts off, or kills all that runs
there, at a moment that `chance` picks, and returns a `LossResult`: the hosts of each attempt, and who is to blame for
its end. Compared are those, the exit code, that every attempt begins with the newest checkpoint that was whole, that no
step is left out, the seconds from the loss to the first step after it, and what is left on all hosts, also on a lost
one that is back.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from agent_helpers import wait_until
from ipexctl.addons.lab.faults import break_host, mend_host
from lab_run_helpers import lab_with_mpi

from .direct import OPTIONS
from .judge import ExpectedResult
from .play import HOME, RunRound
from .rounds import Case, Kind
from .stage import new_stage

SCRIPT: Final = "steps.py"
SCRIPTS: Final = Path(__file__).with_name("scripts")
TO_THE_NEXT_STEP: Final = 45.0
GONE: Final = 75.0
"""Seconds for what a lost host has left to be gone once it is back."""
NAMES: Final = ("node1", "node2", "node3", "node4")


@dataclass(frozen=True)
class LossResult:
    hosts: tuple[tuple[str, ...], ...]
    """Of each attempt."""
    blamed: tuple[str | tuple[str, ...] | None, ...]
    """The host of the first failure of each attempt but the last, or several that may be; None: there was none."""
    or_hosts: tuple[tuple[tuple[str, ...], ...], ...] = ()
    """Also right, if the moment decides."""


@dataclass(frozen=True)
class LossCase(Case):
    options: tuple[str, ...] = ("--min-hosts", "2")
    steps: int = 700
    by: str = ""
    """`direct` or `mpirun`; empty: either."""


@dataclass
class LossRound(RunRound):
    case: LossCase
    ppn: int = 1
    every: int = 10
    directory: str = ""
    lost_at: list[float] = field(default_factory=list)
    expected: LossResult = field(init=False)

    def play(self) -> None:
        cluster = self.stage.cluster
        cluster.write(SCRIPT, (SCRIPTS / SCRIPT).read_bytes())
        launcher = self.case.by or self.chance.choice(("direct", "mpirun"))
        self.every = self.chance.choice((10, 25))
        self.directory = f"/dev/shm/steps-{self.number}-{int(time.time())}"
        self.notes += [launcher, f"every {self.every}"]
        options = (*(OPTIONS if launcher == "direct" else ()), *self.case.options, "--ppn", "1", "--plain")
        words = (self.case.steps, 0.03, self.every, self.directory)
        kept = ("--max-restarts", "6", "--checkpoint", f"checkpoints-{self.number}")
        self.client = cluster.begin(*options, *kept, SCRIPT, *words, f"checkpoints-{self.number}")
        self.run = self.client.id
        self.wait_for_step(0, 5)
        self.expected = self.case.play(self)
        self.client.end(150)
        self.stage.mend()
        self.judge_run(ExpectedResult("ok", 0, within=GONE))

    # What happens

    def noted_by(self, rank: int, attempt: int) -> list[tuple[str, int, int, float]]:
        """Events of a rank, with step, world size and time."""
        for host in NAMES:
            path = self.stage.file(host, f"{self.directory}/{rank}.{attempt}")
            if path.exists():
                lines = [line.split() for line in path.read_text().splitlines()]
                return [(line[0], int(line[1]), int(line[2]), float(line[3])) for line in lines if len(line) == 4]
        return []

    def wait_for_step(self, attempt: int, count: int, seconds: float = 70) -> None:
        def has_steps() -> bool:
            assert self.client.process.poll() is None, f"it has ended: {self.messages}"
            return sum(row[0] == "step" for row in self.noted_by(0, attempt)) >= count

        wait_until(has_steps, seconds, lambda: f"no step in attempt {attempt}: {self.status['reason']} {self.messages}")

    def wait_for_event(self, name: str, attempt: int, seconds: float = 60) -> None:
        """Until the record has that event of the attempt."""
        path = self.stage.file("node1", f"{HOME}/runs/{self.run}/events.jsonl")

        def is_there() -> bool:
            rows = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
            last = 0
            for row in rows:
                last = row.get("attempt", last) if row["event"] == "restart" else last
                if (row["event"], last) == (name, attempt):
                    return True
            return False

        wait_until(is_there, seconds, lambda: f"no event {name} of attempt {attempt}: {self.messages}")

    def lose(self, *names: str) -> None:
        for name in names:
            break_host(self.stage.hosts[NAMES.index(name)], "link-down")
        self.lost_at.append(time.time())
        self.cut.update(names)
        self.notes.append(f"{', '.join(names)} cut off")

    def bring_back(self, name: str) -> None:
        mend_host(self.stage.hosts[NAMES.index(name)], "link-down")
        self.notes.append(f"{name} back")

    def pick(self, count: int = 1) -> list[str]:
        return self.chance.sample(NAMES[1:], count)

    # What came of it

    def compare_run(self, truth: ExpectedResult) -> None:
        status, expected = self.status, self.expected
        reasons = [*(entry["reason"] for entry in status["attempts"]), status["reason"]]
        hosts = (*(tuple(entry["hosts"]) for entry in status["attempts"]), tuple(status["hosts"]))
        assert hosts in (expected.hosts, *expected.or_hosts), f"attempts on {hosts}: {reasons}"
        if hosts == expected.hosts:
            blamed = tuple((entry["first_failure"] or {}).get("host") for entry in status["attempts"])
            for found, right in zip(blamed, expected.blamed, strict=True):
                assert found in (right if isinstance(right, tuple) else (right,)), f"{blamed} are blamed: {reasons}"
        assert status["world_size"] == len(status["hosts"]) == len(status["ranks"])
        self._compare_steps(hosts)
        self.why()

    def _compare_steps(self, hosts: tuple[tuple[str, ...], ...]) -> None:
        whole = 0
        for attempt, names in enumerate(hosts):
            rows = self.noted_by(0, attempt)
            if not rows:  # it was lost before its first rank began
                continue
            assert {row[2] for row in rows} == {len(names)}, f"attempt {attempt} has {rows[0][2]} ranks on {names}"
            began = next(row[1] for row in rows if row[0] == "began")
            assert began >= whole, f"attempt {attempt} begins with {began}, and {whole} was saved"
            steps = [row[1] for row in rows if row[0] == "step"]
            assert steps == list(range(began + 1, began + 1 + len(steps))), f"attempt {attempt}: {steps[:3]} …"
            whole = max([whole, *(row[1] for row in rows if row[0] == "saved")])
        assert steps[-1] == self.case.steps, f"the last step is {steps[-1]}"
        first_steps = [
            min((row[3] for row in self.noted_by(0, attempt) if row[0] == "step"), default=0.0)
            for attempt in range(1, len(hosts))
        ]
        limited = []
        for lost_at, next_loss in zip(self.lost_at, (*self.lost_at[1:], float("inf")), strict=True):
            after = [at for at in first_steps if at > lost_at][:1]
            for at in after:
                self.details.setdefault("to the next step", []).append(round(at - lost_at, 1))
                self.notes.append(f"next step after {at - lost_at:.1f} s")
            limited += [at - lost_at for at in after if at < next_loss]  # else a second loss came before that step
        assert max(limited, default=0.0) <= TO_THE_NEXT_STEP, f"{limited} s from losses to the next step"


def without(*names: str) -> tuple[str, ...]:
    return tuple(name for name in NAMES if name not in names)


def _in_a_step(context: LossRound) -> LossResult:
    context.pause(3.0)
    (host,) = context.pick()
    context.lose(host)
    return LossResult((NAMES, without(host)), (host,))


def _in_a_save(context: LossRound) -> LossResult:
    (host,) = context.pick()
    before = sum(row[0] == "saving" for row in context.noted_by(0, 0))
    wait_until(lambda: sum(row[0] == "saving" for row in context.noted_by(0, 0)) > before, 20)
    context.pause(0.05)
    context.lose(host)
    return LossResult((NAMES, without(host)), (host,))


def _two_at_once(context: LossRound) -> LossResult:
    context.pause(2.0)
    hosts = context.pick(2)
    context.lose(*hosts)
    return LossResult((NAMES, without(*hosts)), (tuple(hosts),))


def _after(event: str) -> Callable[[LossRound], LossResult]:
    """A second host is lost as the attempt after the first loss begins."""

    def play(context: LossRound) -> LossResult:
        first, second = context.pick(2)
        context.lose(first)
        context.wait_for_event(event, 1)
        context.pause(0.8)
        context.lose(second)
        both = (NAMES, without(first), without(first, second))
        return LossResult(both, (first, second), ((NAMES, without(first, second)),))

    return play


def _back_in_the_restart(context: LossRound) -> LossResult:
    (host,) = context.pick()
    context.lose(host)
    context.wait_for_event("ending", 0)
    context.pause(3.0)
    context.bring_back(host)
    return LossResult((NAMES, NAMES), (host,), ((NAMES, without(host)),))


def _back_at_the_next_restart(context: LossRound) -> LossResult:
    first, second = context.pick(2)
    context.lose(first)
    context.wait_for_step(1, 5)
    context.bring_back(first)
    time.sleep(7)  # a starter connects again, and is heard
    context.lose(second)
    return LossResult((NAMES, without(first), without(second)), (first, second))


def _reboots(context: LossRound) -> LossResult:
    """All that runs there is gone at once, and it answers."""
    context.pause(2.0)
    (host,) = context.pick()
    context.wrecked.add(host)
    context.lost_at.append(time.time())
    context.notes.append(f"{host} reboots")
    context.stage.kill_host(host)
    context.stage.known_job_files.update(context.stage.new_job_files().get(host, ()))
    after = without(host) if "direct" in context.notes else NAMES
    return LossResult((NAMES, after), (host,), ((NAMES, NAMES), (NAMES, without(host))))


def _node0_alone(context: LossRound) -> LossResult:
    """Node0 is cut off from all others, and from the control machine: its rank uses an address whose link is down."""
    context.pause(2.0)
    context.lose("node1")
    context.wait_for_step(1, 5)
    context.bring_back("node1")
    return LossResult((NAMES, NAMES[:1]), (None,))


CASES: Final = (
    LossCase("a host is lost in a step", _in_a_step),
    LossCase("a host is lost in a save", _in_a_save),
    LossCase("two hosts are lost at once", _two_at_once),
    LossCase("a second host is lost in the restart", _after("hosts")),
    LossCase("a second host is lost in the exchange", _after("connected")),
    LossCase("a lost host is back in the restart", _back_in_the_restart),
    LossCase("a lost host is back, and another is lost", _back_at_the_next_restart, steps=1500),
    LossCase("a host reboots", _reboots),
    LossCase("node0 is cut off, and goes on alone", _node0_alone, options=("--min-hosts", "1")),
)


KIND = Kind(
    "runs that lose hosts and go on with the others, on four hosts",
    CASES,
    lambda base: new_stage(base, lambda lab: lab_with_mpi(lab, base), hosts=4),
    LossRound,
)
