"""A round: ranks add gradients up, one of them is met by a fault, and all that is reported and left is compared.

A round's fault, ranks and moment follow from a seed and its number. A fault is a function of `FAULTS` or
`FAULTS_BETWEEN`, which injects it and returns how the run must end: with whose failure, of which kind, and within which
time. A round raises a WrongReport if the record, `why` or the exit code differs, or if a process, memory or a file is
left.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from agent_helpers import wait_until
from ipexctl.lab import break_host, mend_host
from ipexctl.node.common.processes import read_stat

from .place import Place, memories_of, processes_of, ranks_of, shared_files, users_of

WITHIN: Final = 15.0
"""Seconds from a fault until no process of the run is left, on a machine that does other work, too."""
FIRST: Final = 6
"""The first step at which a rank fails by itself; before it, DDP's ranks agree on its buckets over gloo."""
LAST: Final = 400
HANG_AFTER: Final = 8
BURNED: Final = 0.15
"""Seconds of processor time that a rank may take in each second in which it waits."""


class WrongReport(Exception):
    """The report differs from what happened."""


@dataclass(frozen=True)
class Expected:
    """How the run must end. `ranks`: one of these is the first failure's; empty: none."""

    state: str
    kind: str = ""
    ranks: tuple[int, ...] = ()
    code: int = 1
    """The exit code of the call."""
    more: tuple[tuple[str, object], ...] = ()
    """Of the first failure."""
    within: float = WITHIN
    words: str = ""
    """In the lines that why shows."""


@dataclass(frozen=True)
class Played:
    number: int
    fault: str
    notes: str
    wrong: str
    ended: float
    """Seconds from the fault to the end that the record has."""
    gone: float
    """Seconds from the fault until no process was left."""

    @property
    def line(self) -> str:
        result = f"WRONG\n    {self.wrong}" if self.wrong else "right"
        times = f"ended {self.ended:5.1f} s, gone {self.gone:5.1f} s"
        return f"{self.number:3}  {times}  {self.fault} ({self.notes}): {result}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Round:
    place: Place
    chance: random.Random
    fault: str
    ranks: int
    """In total."""
    options: tuple[object, ...] = ()
    run: str = ""
    victim: int = 0
    met: float = 0.0
    """When the fault was injected."""
    pids: dict[int, int] = field(default_factory=dict)
    memories: set[int] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    ended: float = 0.0
    gone: float = 0.0

    def play(self) -> None:
        self.victim = self.chance.randrange(self.ranks)
        last = self.chance.randrange(FIRST, LAST)
        self.notes.append(f"rank {self.victim} of {self.ranks}")
        before = shared_files(self.place)
        self.directory = self.place.new_directory()
        more = ("--hang-after", HANG_AFTER, "--on-hang", "stop") if self.fault == "stop, hang" else ()
        count_of = ("--ppn", self.ranks // 2) if self.place.hosts else ("-n", self.ranks)
        words = (*count_of, *more, "exchange.py", self.directory, self.fault, self.victim, last)
        self.client = self.place.begin(*words)
        try:
            self.run = self.client.id
            self.wait_for_steps()
            expected = {**FAULTS, **FAULTS_BETWEEN}[self.fault](self)
            self.compare(expected, before)
        except AssertionError as wrong:
            raise WrongReport(str(wrong)) from None
        finally:
            self.clear()

    def wait_for_steps(self) -> None:
        paths = [self.place.rundir(self.run) / f"ranks/{rank:04}.out" for rank in range(self.ranks)]

        def are_ready() -> bool:
            assert self.client.process.poll() is None, self.client.said()
            return all(path.exists() and b"step" in path.read_bytes() for path in paths)

        wait_until(are_ready, 90, self.client.said)
        self.pids = ranks_of(self.run)
        if not self.fault.startswith(("raise", "exit")):
            assert sorted(self.pids) == list(range(self.ranks)), f"{self.pids}: {processes_of(self.run)}"
        for pid in self.pids.values():
            self.memories |= memories_of(pid)
        assert len(self.memories) == self.ranks or len(self.pids) < self.ranks, f"not shared: {self.client.said()}"

    def pause(self, longest: float = 0.6) -> None:
        seconds = self.chance.uniform(0, longest)
        self.notes.append(f"+{seconds:.3f} s")
        time.sleep(seconds)

    def send(self, number: signal.Signals, rank: int | None = None) -> None:
        """Send the victim a signal, or another rank."""
        self.met = self.met or time.time()
        os.kill(self.pids[self.victim if rank is None else rank], number)

    @property
    def others(self) -> dict[int, int]:
        return {rank: pid for rank, pid in self.pids.items() if rank != self.victim}

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.place.rundir(self.run) / "status.json").read_text())
        return found

    def check_idle(self) -> None:
        """The others wait for the victim without taking processor time."""
        time.sleep(0.3)
        before = {rank: read_stat(pid).seconds for rank, pid in self.others.items()}
        time.sleep(1.0)
        burned = {rank: read_stat(pid).seconds - before[rank] for rank, pid in self.others.items()}
        assert max(burned.values()) <= BURNED, f"ranks that wait took processor time: {burned}"

    def check_dump(self) -> None:
        """A dump says for whom the others on the victim's host wait."""
        found = json.loads(self.place.call("dump", self.run, "--json").out)
        waits = {row["rank"]: row["processes"][0]["waits_for"] for row in found["ranks"] if row["processes"]}
        near = [rank for rank in self.others if not self.place.hosts or rank // 2 == self.victim // 2]
        assert [waits.get(rank) for rank in near] == [self.victim] * len(near), f"{waits}, not {self.victim}"
        text = self.place.call("dump", self.run).out
        # Ranks at the same place share one line: on another host, they may wait for one that waits over gloo.
        assert re.search(rf"waits for ranks? [0-9,-]*\b{self.victim}\b[0-9,-]* in all-reduce", text), text

    def compare(self, expected: Expected, before: set[str]) -> None:
        self.met = self.met or time.time()
        until = self.met + expected.within
        while left := processes_of(self.run):
            assert time.time() < until, f"after {time.time() - self.met:.1f} s there are still {left}"
            time.sleep(0.05)
        self.gone = time.time() - self.met
        code = self.client.end(30)
        status = self.status
        first = status["first_failure"] or {}
        self.ended = status["ended"] - self.met
        said = f"{status['reason']!r} {first}"
        found = status["state"], first.get("kind", ""), code
        assert found == (expected.state, expected.kind, expected.code), f"{found}, not {expected}: {said}"
        assert first.get("rank") in (expected.ranks or (None,)), f"the rank is not of {expected.ranks}: {said}"
        for name, value in expected.more:
            assert first[name] == value, f"{name} is {first[name]}, not {value}: {said}"
        self.compare_why(first, expected)
        users = users_of(self.memories)
        assert not users, f"processes {users} still have the memory of the run"
        pids = [str(pid) for pid in self.pids.values()]
        new = [name for name in shared_files(self.place) - before if "ipexctl" in name or any(p in name for p in pids)]
        assert not new, f"left in /dev/shm: {new}"

    def compare_why(self, first: dict[str, Any], expected: Expected) -> None:
        said = json.loads(self.place.call("why", self.run, "--json").out)
        cause = said["first_failure"] or {}
        for name in ("rank", "kind", "signal", "exit_code", "host"):
            value = None if cause.get(name) == "" else cause.get(name)
            assert value == first.get(name), f"why says {name} {value}: {first}"
        assert said["state"] == expected.state, f"why says {said['state']}"
        assert expected.words in json.dumps(said["lines"]), f"why does not show {expected.words!r}: {said['lines']}"
        if self.fault == "stop, hang":
            ranks = [rank for place in said["hang"]["causes"] for rank in place["ranks"]] if said["hang"] else None
            assert ranks == [self.victim], f"the hang is {said['hang']}"

    def clear(self) -> None:
        """End what a wrong round has left."""
        for host in self.place.hosts:
            mend_host(host)
        for pid in processes_of(self.run) if self.run else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.client.process.kill()
        self.client.process.wait()


def _signalled(round_: Round, number: signal.Signals, *ranks: int) -> Expected:
    code = 128 + number
    return Expected("failed", "signal", ranks or (round_.victim,), code, (("signal", int(number)),))


def _sent(number: signal.Signals) -> Callable[[Round], Expected]:
    def play(round_: Round) -> Expected:
        round_.pause()
        round_.send(number)
        return _signalled(round_, number)

    return play


def _two_killed(round_: Round) -> Expected:
    """At the same time: one of the two is the first."""
    round_.pause()
    second = (round_.victim + 1) % round_.ranks
    round_.send(signal.SIGKILL)
    round_.send(signal.SIGKILL, second)
    return _signalled(round_, signal.SIGKILL, round_.victim, second)


def _killed_and_told_late(round_: Round) -> Expected:
    """The wrapper of the victim stands still: the others find its end, and raise an error, before it is reported."""
    wrapper = read_stat(round_.pids[round_.victim]).parent
    round_.pause()
    os.kill(wrapper, signal.SIGSTOP)
    try:
        round_.send(signal.SIGKILL)
        time.sleep(round_.chance.uniform(0.0, 2.5))
    finally:
        os.kill(wrapper, signal.SIGCONT)
    return _signalled(round_, signal.SIGKILL)


def _stopped_and_continued(round_: Round) -> Expected:
    round_.pause()
    round_.send(signal.SIGSTOP)
    round_.check_idle()
    round_.check_dump()
    round_.send(signal.SIGCONT)
    time.sleep(0.3)
    round_.place.end_training(round_.directory)
    round_.met = time.time()
    return Expected("ok", code=0)


def _stopped_and_hung(round_: Round) -> Expected:
    """The supervisor sees that no rank prints anything, and ends the run."""
    round_.pause()
    round_.send(signal.SIGSTOP)
    return Expected("failed", "hang", within=WITHIN + HANG_AFTER + 10.0)


def _stopped_and_killed(round_: Round) -> Expected:
    round_.pause()
    round_.send(signal.SIGSTOP)
    time.sleep(round_.chance.uniform(0.0, 2.0))
    round_.met = 0.0
    round_.send(signal.SIGKILL)
    return _signalled(round_, signal.SIGKILL)


def _of_itself(code: int, words: str) -> Callable[[Round], Expected]:
    def play(round_: Round) -> Expected:
        pid = round_.pids.get(round_.victim)
        wait_until(lambda: pid is None or not _is_alive(pid), 60)
        return Expected("failed", "exit", (round_.victim,), code, (("exit_code", code),), words=words)

    return play


def _is_alive(pid: int) -> bool:
    try:
        return read_stat(pid).is_alive
    except OSError:
        return False


def _cable_pulled(round_: Round) -> Expected:
    """Of the second host; its ranks are lost, and end there by themselves."""
    round_.pause()
    round_.met = time.time()
    break_host(round_.place.hosts[1], "link-down")
    half = round_.ranks // 2
    return Expected("failed", "lost", tuple(range(half, round_.ranks)), within=75.0)


def _sshd_killed(round_: Round) -> Expected:
    """Of the second host, but for the sessions that exist: the run needs no new one."""
    round_.pause()
    round_.met = time.time()
    break_host(round_.place.hosts[1], "sshd-dead")
    time.sleep(2.0)
    round_.place.end_training(round_.directory)
    return Expected("ok", code=0)


FAULTS: Final[dict[str, Callable[[Round], Expected]]] = {
    "SIGKILL": _sent(signal.SIGKILL),
    "SIGTERM": _sent(signal.SIGTERM),
    "SIGSEGV": _sent(signal.SIGSEGV),
    "two killed": _two_killed,
    "killed, told late": _killed_and_told_late,
    "stop, continue": _stopped_and_continued,
    "stop, hang": _stopped_and_hung,
    "stop, kill": _stopped_and_killed,
    "raise-forward": _of_itself(1, "raised in the forward pass"),
    "raise-backward": _of_itself(1, "raised in the backward pass"),
    "exit": _of_itself(3, ""),
}
FAULTS_BETWEEN: Final[dict[str, Callable[[Round], Expected]]] = {
    "cable pulled": _cable_pulled,
    "sshd killed": _sshd_killed,
}
"""Of hosts, in a lab alone."""


def play_round(place: Place, fault: str, seed: int, number: int) -> Played:
    chance = random.Random(f"{seed}/{number}/{fault}")
    ranks = 4 if place.hosts else chance.choice([2, 2, 3, 4])
    played = Round(place, chance, fault, ranks)
    wrong = ""
    try:
        played.play()
    except WrongReport as error:
        wrong = f"{played.run}: {error}"
    return Played(number, fault, ", ".join(played.notes), wrong, round(played.ended, 1), round(played.gone, 1))
