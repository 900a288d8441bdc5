"""A round of a run: it is started, a fault is injected, and all that is reported and left is compared.

A case injects its fault at a moment that `chance` picks, and says how the run must end. A `RunRound` compares that with
the exit code, `status.json`, `ps` and `why`, and looks for processes and secrets that are left. A `FaultRound` is one
of ranks that print numbered lines: it also compares the output of each rank, the time at which the other ranks were
stopped, and the project's tree.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import re
import signal
import time
from abc import abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from agent_helpers import wait_until
from ipexctl.addons.lab.faults import break_host
from ipexctl.addons.lab.lab_record import LabHost
from lab_run_helpers import Running

from .fault_cases import FaultCase
from .judge import ExpectedResult, FoundResult, compare_why, judge
from .rounds import Round
from .stage import FaultLab, has_traceback, left_in_tree, send_signal

SCRIPT: Final = Path(__file__).with_name("scripts") / "lines.py"
HOME: Final = "/home/ipex/.ipexctl"
STOPPED_WITHIN: Final = 4.7
"""Seconds from the end of a run until all ranks have SIGTERM. mpirun gets it 5 seconds after the end: a rank that has
it later got it from mpirun and not from the supervisor."""
RESTART_LINE: Final = re.compile(rb"^\[ipexctl: restart (\d+) of \d+ after: .*\]\n", re.MULTILINE)
_numbers = itertools.count()


@dataclass
class RunRound(Round):
    stage: FaultLab
    case: Any
    chance: random.Random
    number: int = field(default_factory=lambda: next(_numbers))
    ppn: int = 2
    victim: int = 0
    died: float | None = None
    cut: set[str] = field(default_factory=set)
    """Hosts whose lines may end early, as they were out of reach."""
    wrecked: set[str] = field(default_factory=set)
    """Hosts on which processes of ipexctl were killed: nobody may be left there to remove a file."""
    client: Running = field(init=False)

    @property
    def world_size(self) -> int:
        return len(self.stage.hosts) * self.ppn

    def attach(self) -> None:
        self.client = self.stage.cluster.begin_call("attach", self.run, "--plain")

    @property
    def messages(self) -> str:
        return self.client.err.read_text(errors="replace")

    def call(self, *words: object, rc: int | None = None) -> str:
        done = self.stage.cluster.call(*words)
        assert rc is None or done.rc == rc, f"{words} ended with {done.rc}: {done.err}"
        return done.out

    def runs(self) -> set[str]:
        directory = self.stage.file("node1", f"{HOME}/runs")
        return {path.parent.name for path in directory.glob("*/status.json")}

    @property
    def status(self) -> dict[str, Any]:
        path = self.stage.file("node1", f"{HOME}/runs/{self.run}/status.json")
        said: dict[str, Any] = json.loads(path.read_text())
        return said

    @property
    def row(self) -> dict[str, Any]:
        said: dict[str, Any] = self.status["ranks"][self.victim]
        return said

    def host_of(self, rank: int) -> str:
        return f"node{rank // self.ppn + 1}"

    def pick_host(self, first: int = 0) -> LabHost:
        """One of the hosts from that number on, for the line of the round."""
        host: LabHost = self.chance.choice(self.stage.hosts[first:])
        self.notes.append(host.name)
        return host

    def cut_off(self, host: LabHost) -> None:
        """For good."""
        self.died = time.time()
        break_host(host, "link-down")
        self.cut.add(host.name)

    @property
    def host(self) -> str:
        return self.host_of(self.victim)

    def kept(self, rank: int, stream: str) -> bytes:
        """The output of a rank, as node0 has it."""
        return self.stage.file("node1", f"{HOME}/runs/{self.run}/ranks/{rank:04}.{stream}").read_bytes()

    def kill(self, host: str, pid: int, number: signal.Signals) -> None:
        outer = self.stage.outer(host, pid)
        self.died = time.time()
        os.kill(outer, number)

    def judge_run(self, expected: ExpectedResult) -> None:
        """Wait for the end of all processes and of the call, and compare all reports."""
        code = self._wait_for_end(expected)
        own = re.sub(r"^\[\d].*$", "", self.messages, flags=re.MULTILINE)
        assert not has_traceback(own), own
        if self.run or self.find_run():
            self.compare_run(self._compare(expected, code))
        else:
            self._compare_not_started(expected, code)
        self.stage.mend()
        self.check_remains()
        wait_until(lambda: not self._secrets(), 5, lambda: f"secrets are left: {self._secrets()}")
        assert not self.stage.left(), f"processes came back: {self.stage.left()}"

    def find_run(self) -> bool:
        return bool(self.run)

    @abstractmethod
    def compare_run(self, truth: ExpectedResult) -> None:
        """Compare what else is known of a run that was started."""

    def check_remains(self) -> None:
        """Look, on hosts without a fault, for what else is left."""

    def _wait_for_end(self, expected: ExpectedResult) -> int:
        began = self.died or time.time()
        patience = max(option.patience for option in (expected, *expected.or_else))
        until = time.monotonic() + patience
        gone, is_back = 0.0, False
        while not gone or (not is_back and not self.cut):
            if not gone and not self.stage.left():
                gone = time.time()
            is_back = is_back or self.client.process.poll() is not None
            if time.monotonic() > until + (20 if gone else 0):
                break
            time.sleep(0.05)
        assert gone, f"after {patience:g} s there are still {self.stage.left()}"
        self.notes.append(f"gone after {gone - began:.1f} s")
        if self.cut:
            self.stage.mend()
        return self.client.end()

    def _compare_not_started(self, expected: ExpectedResult, code: int) -> None:
        possible = (expected, *expected.or_else)
        codes = [option.code for option in possible if option.state in ("not started", "")]
        assert codes, f"the run was not started (exit code {code}): {self.messages}"
        assert code in codes or (None in codes and code != 0), f"the call ended with {code}, not {codes}"
        is_interrupted = code < 0 or code > 128
        assert is_interrupted or self.messages.strip(), f"the call ended with {code} and says nothing"

    def _compare(self, expected: ExpectedResult, code: int) -> ExpectedResult:
        """The expected result that is reported; raises an AssertionError if none is."""
        listed = next(row for row in json.loads(self.call("ps", "--json"))["runs"] if row["id"] == self.run)
        status = self.status
        state, first = status["state"], status["first_failure"] or {}
        recorded = 0 if state == "ok" else status["exit_code"] or 1
        truth = judge(expected, FoundResult(code, state, status["reason"], first, self.messages, recorded))
        said = f"{status['reason']!r} {first}"
        assert listed["state"] == state, f"ps lists {listed['state']}: {said}"
        assert state in ("ok", "failed", "stopped", "lost"), f"the run never ended: {said}"
        if truth.attempt is not None:
            earlier = [(entry["first_failure"]["kind"], entry["first_failure"]["rank"]) for entry in status["attempts"]]
            assert status["attempt"] == truth.attempt, f"restarted {status['attempt']} times: {earlier} {said}"
            assert earlier == [truth.earlier] * truth.attempt, f"{earlier}: {said}"
        if state in ("failed", "stopped") and self.died is not None:
            assert status["ended"] > self.died - 0.5, f"it had ended {self.died - status['ended']:.1f} s before: {said}"
        if state == "ok":
            assert {rank["exit_code"] for rank in status["ranks"]} == {0}, f"{status['ranks']}"
        return truth

    def why(self) -> dict[str, Any]:
        """What `why` says; it is compared with the record."""
        said: dict[str, Any] = json.loads(self.call("why", self.run, "--json", rc=0))
        compare_why(said, self.status)
        return said

    def _secrets(self) -> dict[str, list[Path]]:
        """Job files of the run that are left: they have its token, and secrets of the user."""
        return {host: paths for host, paths in self.stage.new_job_files().items() if host not in self.wrecked}

    def clear(self) -> None:
        self.stage.mend()
        if hasattr(self, "client"):
            self.client.process.kill()
            self.client.process.wait()
        if self.stage.left():
            for process in (each for found in self.stage.all_processes().values() for each in found):
                send_signal(process, signal.SIGCONT)
        if self.run and self.stage.left():
            self.stage.cluster.call("stop", self.run)
            with contextlib.suppress(AssertionError):
                wait_until(lambda: not self.stage.left(), 70)
        for host in self.stage.left():
            self.stage.kill_host(host)
        left = self.stage.new_job_files().values()
        self.stage.known_job_files.update(path for paths in left for path in paths)


@dataclass
class FaultRound(RunRound):
    case: FaultCase
    is_thorough: bool = False
    """Also compare `why`, and check that the project's tree is free again."""
    arguments: dict[str, object] = field(default_factory=dict)
    """Named arguments of the script."""

    def play(self) -> None:
        self.victim = self.chance.randrange(self.world_size)
        self._runs_before = self.runs()
        if not self.case.is_early:
            self.start()
            if self.case.script in ("none", "hang", "deaf"):
                self.wait_until_it_speaks()
                self.pause(2.0)
        self.judge_run(self.case.play(self))
        self.case.after(self)

    def start(self, *options: object, is_waited_for: bool = True) -> None:
        """Start the run; `is_waited_for`: until it has an id."""
        cluster, case = self.stage.cluster, self.case
        cluster.write("lines.py", SCRIPT.read_bytes())
        pace = self.chance.choice([0.01, 0.03, 0.06])
        if case.script not in ("none", "hang", "deaf"):
            earliest = 40 if case.script == "oom" else 0
            self.arguments.setdefault("at", self.chance.randrange(earliest, 100))
        arguments = [f"{name}={value}" for name, value in self.arguments.items()]
        self.notes += [f"ppn {self.ppn}", f"rank {self.victim}", f"pace {pace}", *map(str, options), *arguments]
        words = [case.script, self.victim, self.directory, case.count, pace, *arguments]
        options = (*case.options, *options)
        self.client = cluster.begin("--ppn", self.ppn, "--plain", *options, "lines.py", *words)
        if is_waited_for:
            self.run = self.client.id

    @property
    def directory(self) -> str:
        return f"/dev/shm/lines-{os.getpid()}-{self.number}"

    def find_run(self, seconds: float = 0.0) -> bool:
        """Whether node0 has a record of the run; waits while there are processes of it, or so long."""
        until = time.monotonic() + seconds
        while not self.run:
            self.run = next(iter(self.runs() - self._runs_before), "")
            if not self.run and time.monotonic() > until and not self.stage.left():
                self.run = next(iter(self.runs() - self._runs_before), "")
                break
            time.sleep(0.02)
        return bool(self.run)

    def events(self) -> list[dict[str, Any]]:
        """The events of the last attempt."""
        path = self.stage.file("node1", f"{HOME}/runs/{self.run}/events.jsonl")
        events: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
        starts = [number for number, event in enumerate(events) if event["event"] == "mpirun"]
        return events[starts[-1] :] if starts else events

    def wait_until_it_speaks(self) -> None:
        def has_begun() -> bool:
            assert self.client.process.poll() is None, f"it has ended: {self.messages}"
            enough = all(self.own(rank).count(b"\n") >= 5 for rank in range(self.world_size))
            return enough and self.status["state"] != "starting"

        wait_until(has_begun, 60, lambda: f"no word of some rank: {self.status} {self.messages}")

    def wait_for_death(self) -> None:
        path = self.stage.file(self.host, f"{self.directory}/died")
        wait_until(lambda: path.exists() and path.read_text(), 60, lambda: "the victim did not come to its fault")
        self.died = float(path.read_text())

    def own(self, rank: int, attempt: int = 0) -> bytes:
        """The lines that a rank has printed in an attempt, as its script noted them."""
        path = self.stage.file(self.host_of(rank), f"{self.directory}/{rank}.{attempt}.lines")
        return path.read_bytes() if path.exists() else b""

    def noted(self, rank: int, name: str) -> str:
        """A note of the script of that rank; empty if there is none."""
        path = self.stage.file(self.host_of(rank), f"{self.directory}/{name}")
        return path.read_text() if path.exists() else ""

    def compare_run(self, truth: ExpectedResult) -> None:
        self._compare_lines(truth)
        self._compare_stopping(truth)

    def check_remains(self) -> None:
        if self.is_thorough:
            if self.run:
                self.why()
            self._check_tree()

    def _compare_lines(self, truth: ExpectedResult) -> None:
        """Each printed line is in the file of its rank once and in its place, and what was shown last has all of it."""
        status = self.status
        is_all = truth.all_lines if truth.all_lines is not None else status["state"] == "ok"
        for rank in range(self.world_size):
            kept = self.kept(rank, "out")
            if truth.last_words and rank == truth.rank:
                words = self.kept(rank, "err")
                assert truth.last_words in words, f"the last words of rank {rank} are not in its log: {words!r}"
            lost = status["ranks"][rank]["lost"]
            assert not lost or truth.may_lose, f"rank {rank} lost {lost} bytes"
            if lost:
                told = b"bytes are missing here" in kept or "bytes of the output of rank" in self.messages
                assert told, f"rank {rank} lost {lost} bytes, and nobody says so"
                continue
            for attempt, text in self._by_attempt(kept, status["attempt"]).items():
                own = self.own(rank, attempt)
                self._compare_text(rank, own, text, is_all=is_all and self.host_of(rank) not in self.cut)
            output = self.client.out.read_text(errors="replace")
            shown = [line.partition(" ")[2] for line in output.splitlines() if line.startswith(f"[{rank}] ")]
            printed = [line for line in kept.decode().splitlines() if not line.startswith("[ipexctl: ")]
            if truth.is_shown:
                assert shown == printed, f"rank {rank}: {len(shown)} lines shown of {len(printed)}"

    @staticmethod
    def _by_attempt(kept: bytes, last: int) -> dict[int, bytes]:
        """The text of each attempt. A restart is noted only behind output: before the first note is one attempt's text,
        the one before that restart, as the rank printed nothing in earlier ones."""
        parts = RESTART_LINE.split(kept)
        found = {int(parts[1]) - 1 if len(parts) > 1 else last: parts[0]}
        found.update((int(number), text) for number, text in zip(parts[1::2], parts[2::2], strict=True))
        return {attempt: re.sub(rb"^\[ipexctl: .*\n", b"", text, flags=re.MULTILINE) for attempt, text in found.items()}

    @staticmethod
    def _compare_text(rank: int, own: bytes, kept: bytes, *, is_all: bool) -> None:
        own = own[: own.rfind(b"\n") + 1]
        if not is_all and own.startswith(kept):
            return
        assert kept.startswith(own), f"rank {rank}: {_difference(own, kept)}"
        # A rank that is killed between its two writes has noted one line less.
        assert kept[len(own) :].count(b"\n") <= 1, f"rank {rank}: {_difference(own, kept)}"

    def _compare_stopping(self, truth: ExpectedResult) -> None:
        """All ranks that ran at the end had SIGTERM soon: the supervisor stopped them, not mpirun."""
        events = self.events()
        ending = next((event for event in events if event["event"] == "ending"), None)
        if ending is None or not truth.is_stopped_by_us:
            return
        status = self.status
        exits = {event["rank"]: event for event in events if event["event"] == "exit"}
        for event in events:
            if event["event"] != "start" or event["rank"] == truth.rank or event["host"] in self.cut | self.wrecked:
                continue
            rank, end = event["rank"], exits.get(event["rank"])
            if end is not None and (end["at"] < ending["at"] or not end["signal"]):
                continue
            noted = self.noted(rank, f"{rank}.{status['attempt']}.term")
            told = float(noted) - ending["at"] if noted else None
            if told is None and end is not None and event["at"] > ending["at"] - 1.0:
                continue  # it had no handler of its own yet
            assert told is not None and told < STOPPED_WITHIN, f"rank {rank} had SIGTERM {told} s after the end: {end}"
            assert end is not None, f"the end of rank {rank} is not known: {status['ranks'][rank]}"

    def _check_tree(self) -> None:
        """The next sync updates the tree that this run used: no lease holds it any more."""
        text = f"after round {self.number} {os.getpid()}\n"
        self.stage.cluster.write("round.txt", text)
        for host, tree in self.synced().items():
            assert ".gen" not in tree.name, f"{host} has a second tree, as a run still uses the first: {tree}"
            assert (tree / "round.txt").read_text() == text, f"{host}: {tree} is not up to date"
            assert not left_in_tree(tree), f"{host} has {left_in_tree(tree)} in {tree}"

    def synced(self) -> dict[str, Path]:
        """Sync the project; host → its tree."""
        report = json.loads(self.call("sync", "-H", self.stage.cluster.lab.hostfile, "--json", rc=0))
        return {host["name"]: self.stage.file(host["name"], host["path"]) for host in report["hosts"]}


def _difference(own: bytes, kept: bytes) -> str:
    at = next((n for n, (a, b) in enumerate(zip(own, kept, strict=False)) if a != b), min(len(own), len(kept)))
    return f"{len(own)} bytes printed, {len(kept)} kept, alike up to {at}: {own[at : at + 60]!r} {kept[at : at + 60]!r}"
