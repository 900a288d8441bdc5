"""One round: a run is started, a fault is injected, and all that is reported and left is compared with what is known.

A case (`fault_cases.py`, `random_cases.py`) injects its fault at a moment that `chance` picks, and says how the run
must end. The round compares that with the exit code, `status.json`, `ps`, `why`, the output of each rank, the time at
which the other ranks were stopped, and with the processes and files that are left. It raises a WrongReport.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from agent_helpers import wait_until
from lab_run_helpers import Running

from .fault_cases import ExpectedResult, FaultCase
from .stage import FaultLab, has_traceback

SCRIPT: Final = Path(__file__).with_name("lines.py")
HOME: Final = "/home/ipex/.ipexctl"
STOPPED_WITHIN: Final = 4.7
"""Seconds from the end of a run until all ranks have SIGTERM. mpirun gets it 5 seconds after the end: a rank that has
it later got it from mpirun and not from the supervisor."""
RESTART_LINE: Final = re.compile(rb"^\[ipexctl: restart (\d+) of \d+ after: .*\]\n", re.MULTILINE)
_numbers = itertools.count()


class WrongReport(Exception):
    """The report differs from the expected result."""


@dataclass(frozen=True)
class RoundResult:
    """Seconds from the fault to the last process gone, and to the prompt."""

    gone: float
    prompt: float


@dataclass
class FaultRound:
    stage: FaultLab
    case: FaultCase
    chance: random.Random
    is_thorough: bool = False
    """Also compare `why`, and check that the project's tree is free again."""
    number: int = field(default_factory=lambda: next(_numbers))
    ppn: int = 2
    victim: int = 0
    died: float | None = None
    run: str = ""
    cut: set[str] = field(default_factory=set)
    """Hosts whose lines may end early, as they were out of reach."""
    wrecked: set[str] = field(default_factory=set)
    """Hosts on which processes of ipexctl were killed: nobody may be left there to remove a file."""
    notes: list[str] = field(default_factory=list)
    """The moment and the options of this round, for its line."""
    arguments: dict[str, object] = field(default_factory=dict)
    """Named arguments of the script."""
    client: Running = field(init=False)

    def play(self) -> RoundResult:
        self.victim = self.chance.randrange(self.world_size)
        self._runs_before = self._runs()
        try:
            if self.case.is_early:
                truth = self.case.play(self)
            else:
                self.start()
                if self.case.script in ("none", "hang", "deaf"):
                    self.wait_until_it_speaks()
                    self.pause(2.0)
                truth = self.case.play(self)
            result = self._judge(truth)
            self.case.after(self)
            return result
        except AssertionError as wrong:
            raise WrongReport(str(wrong)) from None
        finally:
            self._clear()

    @property
    def world_size(self) -> int:
        return 3 * self.ppn

    def pause(self, longest: float) -> None:
        """Wait for the moment of the fault."""
        seconds = self.chance.uniform(0, longest)
        self.notes.append(f"at +{seconds:.2f} s")
        time.sleep(seconds)

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

    def attach(self) -> None:
        self.client = self.stage.cluster.begin_call("attach", self.run, "--plain")

    @property
    def _messages(self) -> str:
        return self.client.err.read_text(errors="replace")

    def call(self, *words: object, rc: int | None = None) -> str:
        done = self.stage.cluster.call(*words)
        assert "Traceback" not in done.err, done.err
        assert rc is None or done.rc == rc, f"{words} ended with {done.rc}: {done.err}"
        return done.out

    def _runs(self) -> set[str]:
        directory = self.stage.file("node1", f"{HOME}/runs")
        return {path.parent.name for path in directory.glob("*/status.json")}

    def find_run(self, seconds: float = 0.0) -> bool:
        """Whether node0 has a record of the run; waits while there are processes of it, or so long."""
        until = time.monotonic() + seconds
        while not self.run:
            self.run = next(iter(self._runs() - self._runs_before), "")
            if not self.run and time.monotonic() > until and not self.stage.left():
                self.run = next(iter(self._runs() - self._runs_before), "")
                break
            time.sleep(0.02)
        return bool(self.run)

    @property
    def status(self) -> dict[str, Any]:
        path = self.stage.file("node1", f"{HOME}/runs/{self.run}/status.json")
        said: dict[str, Any] = json.loads(path.read_text())
        return said

    def events(self) -> list[dict[str, Any]]:
        """The events of the last attempt."""
        path = self.stage.file("node1", f"{HOME}/runs/{self.run}/events.jsonl")
        events: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
        starts = [number for number, event in enumerate(events) if event["event"] == "mpirun"]
        return events[starts[-1] :] if starts else events

    @property
    def row(self) -> dict[str, Any]:
        said: dict[str, Any] = self.status["ranks"][self.victim]
        return said

    def host_of(self, rank: int) -> str:
        return f"node{rank // self.ppn + 1}"

    @property
    def host(self) -> str:
        return self.host_of(self.victim)

    def wait_until_it_speaks(self) -> None:
        def has_begun() -> bool:
            assert self.client.process.poll() is None, f"it has ended: {self._messages}"
            enough = all(self.own(rank).count(b"\n") >= 5 for rank in range(self.world_size))
            return enough and self.status["state"] != "starting"

        wait_until(has_begun, 60, lambda: f"no word of some rank: {self.status} {self._messages}")

    def wait_for_death(self) -> None:
        path = self.stage.file(self.host, f"{self.directory}/died")
        wait_until(lambda: path.exists() and path.read_text(), 60, lambda: "the victim did not come to its fault")
        self.died = float(path.read_text())

    def kill(self, host: str, pid: int, number: signal.Signals) -> None:
        outer = self.stage.outer(host, pid)
        self.died = time.time()
        os.kill(outer, number)

    def own(self, rank: int, attempt: int = 0) -> bytes:
        """The lines that a rank has printed in an attempt, as its script noted them."""
        path = self.stage.file(self.host_of(rank), f"{self.directory}/{rank}.{attempt}.lines")
        return path.read_bytes() if path.exists() else b""

    def noted(self, rank: int, name: str) -> str:
        """A note of the script of that rank; empty if there is none."""
        path = self.stage.file(self.host_of(rank), f"{self.directory}/{name}")
        return path.read_text() if path.exists() else ""

    def _judge(self, truth: ExpectedResult) -> RoundResult:
        possible = (truth, *truth.or_else)
        died = self.died or time.time()
        patience = max(option.within if option.state not in ("ok", "") else 120.0 for option in possible)
        prompt = 0.0
        until = time.monotonic() + patience
        gone = None
        while gone is None or (not prompt and not self.cut):
            if gone is None and not self.stage.left():
                gone = time.time()
            if not prompt and self.client.process.poll() is not None:
                prompt = time.time()
            if time.monotonic() > until + (0 if gone is None else 20):
                break
            time.sleep(0.05)
        assert gone is not None, f"after {patience:g} s there are still {self.stage.left()}"
        if self.cut:
            self.stage.mend()
        code = self.client.end()
        prompt = prompt or time.time()
        self._check_messages()
        if self.run or self.find_run():
            truth = self._compare(possible, code)
            self._compare_lines(truth)
            self._compare_stopping(truth)
        else:
            self._compare_not_started(possible, code)
        if self.is_thorough:
            self.stage.mend()
            self._compare_why()
            self._check_tree()
        self._check_secrets()
        assert not self.stage.left(), f"processes came back: {self.stage.left()}"
        return RoundResult(gone - died, prompt - died)

    def _check_messages(self) -> None:
        own = re.sub(r"^\[\d\].*$", "", self._messages, flags=re.MULTILINE)
        assert not has_traceback(own), own

    def _compare_not_started(self, possible: tuple[ExpectedResult, ...], code: int) -> None:
        codes = [option.code for option in possible if option.state in ("not started", "")]
        assert codes, f"the run was not started (exit code {code}): {self._messages}"
        assert code in codes or (None in codes and code != 0), f"the call ended with {code}, not {codes}"
        is_interrupted = code < 0 or code > 128
        assert is_interrupted or self._messages.strip(), f"the call ended with {code} and says nothing"

    def _compare(self, possible: tuple[ExpectedResult, ...], code: int) -> ExpectedResult:
        """The expected result that is reported; raises an AssertionError if none is."""
        listed = next(row for row in json.loads(self.call("ps", "--json"))["runs"] if row["id"] == self.run)
        status = self.status
        first = status["first_failure"] or {}
        found = (status["state"], first.get("kind", ""), first.get("rank"), first.get("host"))
        said = f"{status['reason']!r} {status['first_failure']} {self._messages.splitlines()[-3:]}"
        truth = next((option for option in possible if option.fits(*found)), None)
        assert truth is not None, f"{found}: {said}"
        state = status["state"]
        assert listed["state"] == state, f"ps lists {listed['state']}: {said}"
        assert state in ("ok", "failed", "stopped", "lost"), f"the run never ended: {said}"
        expected = truth.code if truth.code is not None else 0 if state == "ok" else status["exit_code"] or 1
        assert code == expected, f"the call ended with {code} and not {expected}: {said}"
        assert truth.words in status["reason"], said
        for name, value in truth.more:
            actual = first[name]
            if isinstance(value, dict):  # other fields are figures, which no fault decides
                actual = {field: actual[field] for field in value}
            assert actual == value, f"{name} is {first[name]}: {said}"
        if truth.attempt is not None:
            earlier = [(entry["first_failure"]["kind"], entry["first_failure"]["rank"]) for entry in status["attempts"]]
            assert status["attempt"] == truth.attempt, f"restarted {status['attempt']} times: {earlier} {said}"
            assert earlier == [truth.earlier] * truth.attempt, f"{earlier}: {said}"
        if state in ("failed", "stopped") and self.died is not None:
            assert status["ended"] > self.died - 0.5, f"it had ended {self.died - status['ended']:.1f} s before: {said}"
        if state == "ok":
            assert {rank["exit_code"] for rank in status["ranks"]} == {0}, f"{status['ranks']}"
        return truth

    def _compare_lines(self, truth: ExpectedResult) -> None:
        """Each printed line is in the file of its rank once and in its place, and what was shown last has all of it."""
        status = self.status
        is_all = truth.all_lines if truth.all_lines is not None else status["state"] == "ok"
        for rank in range(self.world_size):
            kept = self._kept(rank, "out")
            if truth.last_words and rank == truth.rank:
                words = self._kept(rank, "err")
                assert truth.last_words in words, f"the last words of rank {rank} are not in its log: {words!r}"
            lost = status["ranks"][rank]["lost"]
            assert not lost or truth.may_lose, f"rank {rank} lost {lost} bytes"
            if lost:
                told = b"bytes are missing here" in kept or "bytes of the output of rank" in self._messages
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

    def _kept(self, rank: int, stream: str) -> bytes:
        return self.stage.file("node1", f"{HOME}/runs/{self.run}/ranks/{rank:04}.{stream}").read_bytes()

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

    def _check_secrets(self) -> None:
        """No job file of the run is left: it has its token, and secrets of the user."""

        def found() -> dict[str, list[Path]]:
            return {host: paths for host, paths in self.stage.new_job_files().items() if host not in self.wrecked}

        wait_until(lambda: not found(), 5, lambda: f"secrets are left: {found()}")

    def _compare_why(self) -> None:
        if not self.run:
            return
        status = self.status
        said = json.loads(self.call("why", self.run, "--json", rc=0))
        assert said["state"] == status["state"], f"why says {said['state']}: {status['state']}"
        first, cause = status["first_failure"] or {}, said["first_failure"] or {}
        for name in ("rank", "host"):
            assert cause.get(name) in (first.get(name), "" if first.get(name) is None else None), (
                f"why says {name} {cause.get(name)}: {first}"
            )
        if first.get("host"):
            assert first["host"] in said["headline"], said["headline"]

    def _check_tree(self) -> None:
        """The next sync updates the tree that this run used: no lease holds it any more."""
        text = f"after round {self.number} {os.getpid()}\n"
        self.stage.cluster.write("round.txt", text)
        for host, tree in self.synced().items():
            assert ".gen" not in tree.name, f"{host} has a second tree, as a run still uses the first: {tree}"
            assert (tree / "round.txt").read_text() == text, f"{host}: {tree} is not up to date"
            state = tree / ".ipexctl"
            left = [path.name for path in state.iterdir() if path.name not in ("state.json", "leases")]
            left += [path.name for path in (state / "leases").iterdir()]
            assert not left, f"{host} has {left} in {state}"

    def synced(self) -> dict[str, Path]:
        """Sync the project; host → its tree."""
        report = json.loads(self.call("sync", "-H", self.stage.cluster.lab.hostfile, "--json", rc=0))
        return {host["name"]: self.stage.file(host["name"], host["path"]) for host in report["hosts"]}

    def _clear(self) -> None:
        self.stage.mend()
        if hasattr(self, "client"):
            self.client.process.kill()
            self.client.process.wait()
        if self.stage.left():
            for process in (each for found in self.stage.all_processes().values() for each in found):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGCONT)
        if self.run and self.stage.left():
            self.call("stop", self.run)
            with contextlib.suppress(AssertionError):
                wait_until(lambda: not self.stage.left(), 70)
        for host in self.stage.left():
            self.stage.kill_host(host)
        left = self.stage.new_job_files().values()
        self.stage.known_job_files.update(path for paths in left for path in paths)


def _difference(own: bytes, kept: bytes) -> str:
    at = next((n for n, (a, b) in enumerate(zip(own, kept, strict=False)) if a != b), min(len(own), len(kept)))
    return f"{len(own)} bytes printed, {len(kept)} kept, alike up to {at}: {own[at : at + 60]!r} {kept[at : at + 60]!r}"
