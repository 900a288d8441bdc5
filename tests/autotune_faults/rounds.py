"""A round: a search in a lab is met by a fault, and what it reports and leaves is compared with what has happened.

The fault and its moment follow from a seed and the round's number. The rules that hold after every fault: the project
has the same bytes, no program of a trial runs, no tree and no record of one is on a host or on the control machine, and
the same call with --resume, or the next call, ends well. A round raises a WrongReport if one does not hold.
"""

from __future__ import annotations

import hashlib
import json
import random
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from agent_helpers import wait_until
from cli_helpers import processes_with
from faults.stage import SCARCE, FaultLab, has_traceback, is_before_start
from ipexctl.lab import break_host, mend_host
from lab_run_helpers import Running

SCRIPT: Final = Path(__file__).with_name("train.py")
WHOLE: Final = 7.0
"""Seconds of a search without a fault, about."""
GONE: Final = 20.0
"""Seconds until nothing is left of a search that was ended."""
UNWATCHED: Final = 75.0
"""The same of the trial of a call that was killed, without another call."""
UNREADABLE: Final = (OSError, LookupError, ValueError, AssertionError, subprocess.SubprocessError)


class WrongReport(Exception):
    """The report differs from what happened."""


@dataclass
class Round:
    stage: FaultLab
    chance: random.Random
    notes: list[str] = field(default_factory=list)

    @property
    def mark(self) -> str:
        return f"mark-{self.stage.cluster.state.parent.name}"

    def options(self, fault: str = "none", *more: str) -> tuple[object, ...]:
        cluster = self.stage.cluster
        search = ("--ppn", "1", "--omp", "2", "--only", "omp", "--budget", "1", *more)
        return ("autotune", "-H", cluster.lab.hostfile, *search, "--json", "train.py", fault, self.mark)

    def begin(self) -> Running:
        """A search; one in two goes on with that of the round before, if it can."""
        return self.stage.cluster.begin_call(*self.options("none", *self.resume()))

    def resume(self) -> list[str]:
        """--resume, one time in two, if there is a search of the same call."""
        files = (self.stage.cluster.state / "data/ipexctl/autotune").glob("*/trials.jsonl")
        if self.chance.random() < 0.5 or not any('"train.py none ' in path.read_text() for path in files):
            return []
        self.notes.append("--resume")
        return ["--resume"]

    def wait(self, most: float) -> None:
        seconds = round(self.chance.uniform(0, most), 2)
        self.notes.append(f"after {seconds} s")
        time.sleep(seconds)

    def check(self, what: object, expected: object) -> None:
        if what != expected:
            raise WrongReport(f"{what!r}, not {expected!r}")

    def finish(self, *more: str, fault: str = "none") -> dict[str, Any]:
        """The document of a call that ends well."""
        ran = self.stage.cluster.call(*self.options(fault, *more))
        self.check((ran.rc, has_traceback(ran.err)), (0, False))
        document: dict[str, Any] = json.loads(ran.out)
        return document


def content(project: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(project.rglob("*")):
        digest.update(f"{path.relative_to(project)} {path.lstat().st_mtime_ns} {path.lstat().st_mode}".encode())
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()


def remains(stage: FaultLab, mark: str, *, with_records: bool = True) -> list[str]:
    """What is left of trials: programs, trees, records."""
    found = [str(path) for path in stage.cluster.state.glob("ipexctl/runs/train-*")] if with_records else []
    for root in stage.roots.values():
        home = root / "home/ipex/.ipexctl"
        places = ("code/*.trial-*", "runs/train-*", "results/train-*") if with_records else ()
        found += [str(path) for place in places for path in home.glob(place)]
    return found + processes_with(stage.cluster.lab, mark)


def _ended(played: Round, call: Running, code: int) -> None:
    """A call that a signal has ended. It may have been over, or not have begun."""
    got, said = call.process.wait(60), call.said()
    if has_traceback(said) and not is_before_start(got, signal.SIGINT, said):
        raise WrongReport(f"a traceback: {said[-800:]}")
    if got not in (0, code) and not is_before_start(got, signal.SIGINT, said):
        raise WrongReport(f"the call ended with {got} and not {code}: {said[-400:]}")
    played.notes.append(f"exit code {got}")


def _ctrl_c(played: Round) -> None:
    call = played.begin()
    played.wait(WHOLE)
    call.process.send_signal(signal.SIGINT)
    _ended(played, call, 130)


def _killed(played: Round) -> None:
    call = played.begin()
    played.wait(WHOLE)
    call.process.kill()
    call.process.wait(10)
    if played.chance.random() < 0.25:
        played.notes.append("unwatched")
        wait_until(
            lambda: not remains(played.stage, played.mark, with_records=False),
            UNWATCHED,
            lambda: remains(played.stage, played.mark, with_records=False),
        )
    played.finish(*played.resume())


def _host_is_lost(played: Round) -> None:
    victim = played.chance.choice(played.stage.cluster.lab.hosts)
    call = played.begin()
    played.wait(WHOLE)
    break_host(victim, "link-down")
    played.notes.append(victim.name)
    call.process.wait(200)
    mend_host(victim)
    played.check(has_traceback(call.said()), False)
    played.notes.append(f"exit code {call.process.returncode}")
    wait_until(lambda: not processes_with(played.stage.cluster.lab, played.mark), 90, call.said)
    played.finish()


def _disk_is_full(played: Round) -> None:
    victim = played.chance.choice(played.stage.cluster.lab.hosts)
    call = played.begin()
    played.wait(WHOLE)
    break_host(victim, "full-disk")
    played.notes.append(victim.name)
    call.process.wait(120)
    mend_host(victim)
    played.check(has_traceback(call.said()), False)
    played.notes.append(f"exit code {call.process.returncode}")
    played.finish()


def _candidate_fails(fault: str, reason: str) -> Callable[[Round], None]:
    def play(played: Round) -> None:
        if fault == "memory" and not played.stage.groups:
            played.notes.append("left out: no memory cgroup of version 1 here")
            return
        for host in played.stage.groups if fault == "memory" else ():
            played.stage.limit(host, SCARCE)
        try:
            document = played.finish(fault=fault)
        finally:
            played.stage.mend()
        (candidate,) = document["candidates"]
        played.check((candidate["state"], document["ending"]), ("failed", "no-better-candidate"))
        if reason not in candidate["reason"]:
            raise WrongReport(f"the reason is {candidate['reason']!r}, without {reason!r}")
        played.notes.append(candidate["reason"])

    return play


FAULTS: Final[dict[str, Callable[[Round], None]]] = {
    "Ctrl-C": _ctrl_c,
    "the call is killed": _killed,
    "a host is lost": _host_is_lost,
    "a disk is full": _disk_is_full,
    "a candidate raises": _candidate_fails("raise", "no such kernel"),
    "a candidate hangs": _candidate_fails("hang", "hangs"),
    "a candidate has no memory": _candidate_fails("memory", "memory"),
    "a candidate finds its disk full": _candidate_fails("disk", "a disk is full"),
}


@dataclass(frozen=True)
class Played:
    number: int
    fault: str
    notes: str
    wrong: str
    seconds: float

    @property
    def line(self) -> str:
        result = f"WRONG\n    {self.wrong}" if self.wrong else "right"
        return f"{self.number:3} {self.seconds:6.1f} s  {self.fault} ({self.notes}): {result}"


def play_round(stage: FaultLab, fault: str, seed: int, number: int) -> Played:
    played = Round(stage, random.Random(f"{seed}/{number}/{fault}"))
    began, wrong, before = time.monotonic(), "", content(stage.cluster.project)
    try:
        FAULTS[fault](played)
        wait_until(lambda: not remains(stage, played.mark), GONE, lambda: remains(stage, played.mark))
        played.check(content(stage.cluster.project), before)
    except (WrongReport, *UNREADABLE) as error:
        wrong = f"{type(error).__name__}: {error}"
        stage.mend()
    return Played(number, fault, "; ".join(played.notes), wrong, round(time.monotonic() - began, 1))
