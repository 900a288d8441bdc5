"""One round: a run is started, a fault is injected, and the report is compared with the expected result."""

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
from .stage import FaultLab

SCRIPT: Final = Path(__file__).with_name("lines.py")
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
    happening: FaultCase
    chance: random.Random
    number: int = field(default_factory=lambda: next(_numbers))
    victim: int = 0
    died: float | None = None
    run: str = ""
    cut: set[str] = field(default_factory=set)
    """Hosts whose lines may end early, as they were out of reach."""
    client: Running = field(init=False)

    def play(self) -> RoundResult:
        self.victim = self.chance.randrange(6)
        pace = self.chance.choice([0.01, 0.03, 0.06])
        try:
            self._start(pace)
            self._wait_until_it_speaks()
            time.sleep(self.chance.random() * 0.5)
            truth = self.happening.play(self)
            return self._judge(truth)
        except AssertionError as wrong:
            raise WrongReport(str(wrong)) from None
        finally:
            self._clear()

    def _start(self, pace: float) -> None:
        cluster, happening = self.stage.cluster, self.happening
        cluster.write("lines.py", SCRIPT.read_bytes())
        words = [happening.script, self.victim, self.directory, happening.count, pace]
        self.client = cluster.begin("--ppn", "2", "--plain", *happening.options, "lines.py", *words)
        self.run = self.client.id

    @property
    def directory(self) -> str:
        return f"/dev/shm/lines-{os.getpid()}-{self.number}"

    def attach(self) -> None:
        self.client = self.stage.cluster.begin_call("attach", self.run, "--plain")

    @property
    def _messages(self) -> str:
        return self.client.err.read_text(errors="replace")

    def call(self, *words: object) -> str:
        done = self.stage.cluster.call(*words)
        assert "Traceback" not in done.err, done.err
        return done.out

    @property
    def status(self) -> dict[str, Any]:
        path = self.stage.file("node1", f"/home/ipex/.ipexctl/runs/{self.run}/status.json")
        said: dict[str, Any] = json.loads(path.read_text())
        return said

    @property
    def row(self) -> dict[str, Any]:
        said: dict[str, Any] = self.status["ranks"][self.victim]
        return said

    @property
    def host(self) -> str:
        return f"node{self.victim // 2 + 1}"

    def _wait_until_it_speaks(self) -> None:
        def has_begun() -> bool:
            assert self.client.process.poll() is None, f"it has ended: {self._messages}"
            enough = all(self._own(rank).count(b"\n") >= 5 for rank in range(6))
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

    def _own(self, rank: int) -> bytes:
        path = self.stage.file(f"node{rank // 2 + 1}", f"{self.directory}/{rank}.lines")
        return path.read_bytes() if path.exists() else b""

    def _judge(self, truth: ExpectedResult) -> RoundResult:
        is_ended = truth.state != "ok"
        died = self.died or time.time()
        patience = truth.within if is_ended else 120.0
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
        self._compare(truth, code)
        self._compare_lines(truth)
        assert not self.stage.left(), f"processes came back: {self.stage.left()}"
        return RoundResult(gone - died, prompt - died)

    def _compare(self, truth: ExpectedResult, code: int) -> None:
        listed = next(row for row in json.loads(self.call("ps", "--json"))["runs"] if row["id"] == self.run)
        status = self.status
        said = f"{status['reason']!r} {status['first_failure']} {self._messages.splitlines()[-3:]}"
        assert (status["state"], listed["state"]) == (truth.state, truth.state), f"{listed['state']}: {said}"
        assert code == truth.code, f"the call ended with {code} and not {truth.code}: {said}"
        first = status["first_failure"] or {}
        found = (first.get("kind", ""), first.get("rank"), first.get("host"))
        assert found == (truth.kind, truth.rank, truth.host), f"{found}: {said}"
        assert truth.words in status["reason"], said
        for name, value in truth.more:
            assert first[name] == value, f"{name} is {first[name]}: {said}"
        assert "Traceback" not in re.sub(r"^\[\d\].*$", "", self._messages, flags=re.MULTILINE), said

    def _compare_lines(self, truth: ExpectedResult) -> None:
        """Each printed line is in the file of its rank once and in its place, and what was shown last has all of it."""
        for rank in range(6):
            own = self._own(rank)
            own = own[: own.rfind(b"\n") + 1]
            kept = self._kept(rank, "out")
            if truth.last_words and rank == truth.rank:
                words = self._kept(rank, "err")
                assert truth.last_words in words, f"the last words of rank {rank} are not in its log: {words!r}"
            lost = self.status["ranks"][rank]["lost"]
            if lost:
                told = b"bytes are missing here" in kept or "bytes of the output of rank" in self._messages
                assert told, f"rank {rank} lost {lost} bytes, and nobody says so"
                continue
            if truth.all_lines and f"node{rank // 2 + 1}" not in self.cut:
                assert kept.startswith(own), f"rank {rank}: {_difference(own, kept)}"
            else:
                assert kept.startswith(own) or own.startswith(kept), f"rank {rank}: {_difference(own, kept)}"
            output = self.client.out.read_text(errors="replace")
            shown = [line[4:] for line in output.splitlines() if line.startswith(f"[{rank}] ")]
            assert shown == kept.decode().splitlines(), f"rank {rank}: {len(shown)} lines shown of {kept.count(10)}"

    def _kept(self, rank: int, stream: str) -> bytes:
        path = f"/home/ipex/.ipexctl/runs/{self.run}/ranks/{rank:04}.{stream}"
        return self.stage.file("node1", path).read_bytes()

    def _clear(self) -> None:
        self.stage.mend()
        self.client.process.kill()
        self.client.process.wait()
        if self.run and self.stage.left():
            self.call("stop", self.run)
            with contextlib.suppress(AssertionError):
                wait_until(lambda: not self.stage.left(), 70)


def _difference(own: bytes, kept: bytes) -> str:
    at = next((n for n, (a, b) in enumerate(zip(own, kept, strict=False)) if a != b), min(len(own), len(kept)))
    return f"{len(own)} bytes printed, {len(kept)} kept, alike up to {at}: {own[at : at + 60]!r} {kept[at : at + 60]!r}"
