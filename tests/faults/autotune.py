"""Rounds of searches for the fastest settings, on three hosts, over a script without torch.

A case interrupts or kills a search, takes a host or its disk away, or lets a candidate fail. The rules that hold after
each: the project has the same bytes, no program of a trial runs, no tree and no record of one is on a host or on the
control machine, and the same call with --resume, or the next call, ends well.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from agent_helpers import wait_until
from cli_helpers import processes_with
from lab_run_helpers import Running, lab_with_mpi

from .rounds import Case, Kind, Round
from .stage import SCARCE, FaultLab, broken, has_traceback, is_before_start, new_stage

SCRIPT: Final = Path(__file__).with_name("scripts") / "search.py"
WHOLE: Final = 7.0
"""Seconds of a search without a fault, about."""
GONE: Final = 20.0
"""Seconds until nothing is left of a search that was ended."""
UNWATCHED: Final = 75.0
"""The same of the trial of a call that was killed, without another call."""


@dataclass
class SearchRound(Round):
    stage: FaultLab
    case: Case
    chance: random.Random
    call: Running | None = None

    def play(self) -> None:
        before = _content(self.stage.cluster.project)
        self.case.play(self)
        self.wait_for_remains(GONE)
        assert _content(self.stage.cluster.project) == before, "the project has changed"

    def clear(self) -> None:
        self.stage.mend()
        if self.call is not None:
            self.call.process.kill()
            self.call.process.wait()

    @property
    def mark(self) -> str:
        return f"mark-{self.stage.cluster.state.parent.name}"

    def words(self, fault: str, *more: str) -> tuple[object, ...]:
        cluster = self.stage.cluster
        search = ("--ppn", "1", "--omp", "2", "--only", "omp", "--budget", "1", *more)
        return ("autotune", "-H", cluster.lab.hostfile, *search, "--json", "train.py", fault, self.mark)

    def begin(self) -> Running:
        """A search, until the moment of the fault; one in two goes on with that of the round before, if it can."""
        self.call = self.stage.cluster.begin_call(*self.words("none", *self.resume()))
        self.pause(WHOLE)
        return self.call

    def resume(self) -> list[str]:
        """--resume, one time in two, if there is a search of the same call."""
        files = (self.stage.cluster.state / "data/ipexctl/autotune").glob("*/trials.jsonl")
        if self.chance.random() < 0.5 or not any('"train.py none ' in path.read_text() for path in files):
            return []
        self.notes.append("--resume")
        return ["--resume"]

    def finish(self, *more: str, fault: str = "none") -> dict[str, Any]:
        """The document of a call that ends well."""
        ran = self.stage.cluster.call(*self.words(fault, *more))
        assert ran.rc == 0, f"the next call ended with {ran.rc}: {ran.err[-800:]}"
        document: dict[str, Any] = json.loads(ran.out)
        return document

    def check_call(self, call: Running, *codes: int) -> None:
        """A call that the fault has ended, with one of these codes if any are given."""
        code, said = call.end(200), call.said()
        self.notes.append(f"exit code {code}")
        if not is_before_start(code, signal.SIGINT, said):
            assert not has_traceback(said), said[-800:]
            assert not codes or code in codes, f"the call ended with {code} and not {codes}: {said[-400:]}"

    def remains(self, *, with_records: bool) -> list[str]:
        """What is left of trials: programs, trees, records."""
        found = processes_with(self.stage.cluster.lab, self.mark)
        if with_records:
            found += map(str, self.stage.cluster.state.glob("ipexctl/runs/train-*"))
            homes = [root / "home/ipex/.ipexctl" for root in self.stage.roots.values()]
            places = ("code/*.trial-*", "runs/train-*", "results/train-*")
            found += [str(path) for home in homes for place in places for path in home.glob(place)]
        return found

    def wait_for_remains(self, seconds: float, *, with_records: bool = True) -> None:
        def found() -> list[str]:
            return self.remains(with_records=with_records)

        wait_until(lambda: not found(), seconds, lambda: f"left: {found()}")


def _content(project: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(project.rglob("*")):
        digest.update(f"{path.relative_to(project)} {path.lstat().st_mtime_ns} {path.lstat().st_mode}".encode())
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()


def _ctrl_c(context: SearchRound) -> None:
    call = context.begin()
    call.process.send_signal(signal.SIGINT)
    context.check_call(call, 0, 130)  # 0: it was over


def _killed(context: SearchRound) -> None:
    call = context.begin()
    call.process.kill()
    call.process.wait(10)
    if context.chance.random() < 0.25:
        context.notes.append("unwatched")
        context.wait_for_remains(UNWATCHED, with_records=False)
    context.finish(*context.resume())


def _host_lacks(fault: str) -> Callable[[SearchRound], None]:
    def play(context: SearchRound) -> None:
        victim = context.chance.choice(context.stage.hosts)
        context.notes.append(victim.name)
        call = context.begin()
        with broken(victim, fault):
            call.end(200)
        context.check_call(call)
        context.wait_for_remains(90, with_records=False)
        context.finish()

    return play


def _candidate_fails(fault: str, reason: str) -> Callable[[SearchRound], None]:
    def play(context: SearchRound) -> None:
        for host in context.stage.groups if fault == "memory" else ():
            context.stage.limit(host, SCARCE)
        document = context.finish(fault=fault)
        (candidate,) = document["candidates"]
        ending = (candidate["state"], document["ending"])
        assert ending == ("failed", "no-better-candidate"), f"{ending}: {candidate['reason']!r}"
        assert reason in candidate["reason"], f"the reason is {candidate['reason']!r}, without {reason!r}"
        context.notes.append(candidate["reason"])

    return play


CASES: Final = (
    Case("Ctrl-C", _ctrl_c),
    Case("the call is killed", _killed),
    Case("a host is lost", _host_lacks("link-down")),
    Case("a disk is full", _host_lacks("full-disk")),
    Case("a candidate raises", _candidate_fails("raise", "no such kernel")),
    Case("a candidate hangs", _candidate_fails("hang", "hangs")),
    Case("a candidate has no memory", _candidate_fails("memory", "memory"), needs="memory"),
    Case("a candidate finds its disk full", _candidate_fails("disk", "a disk is full")),
)


@contextmanager
def _stage(base: Path, _: object) -> Iterator[FaultLab]:
    os.environ["XDG_DATA_HOME"] = str(base / "state/data")
    with new_stage(base, lambda lab: lab_with_mpi(lab, base), hosts=3) as stage:
        stage.cluster.write("train.py", SCRIPT.read_bytes())
        yield stage


KIND = Kind("searches of autotune", lambda _: CASES, _stage, SearchRound)
