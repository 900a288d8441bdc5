"""One round: a run is started, something happens to it, and what is said of it is held against what is true."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cli_helpers import IPEXCTL

if TYPE_CHECKING:
    import random
    import signal

    from .happenings import Happening, Truth
    from .stage import Stage

SCRIPT: Final = Path(__file__).with_name("lines.py")
_numbers = itertools.count()


class Lie(Exception):
    """What is said isn't what was."""


@dataclass(frozen=True)
class Played:
    """Seconds from the fault to the last process gone, and to the prompt."""

    gone: float
    prompt: float


@dataclass
class Play:
    stage: Stage
    happening: Happening
    chance: random.Random
    number: int = field(default_factory=lambda: next(_numbers))
    victim: int = 0
    died: float | None = None
    run: str = ""
    cut: set[str] = field(default_factory=set)
    """Hosts whose lines may end early, as they were out of reach."""
    client: subprocess.Popen[bytes] = field(init=False)
    shown: Path = field(init=False)

    def play(self) -> Played:
        self.victim = self.chance.randrange(6)
        pace = self.chance.choice([0.01, 0.03, 0.06])
        try:
            self._start(pace)
            self._wait_until_it_speaks()
            time.sleep(self.chance.random() * 0.5)
            truth = self.happening.play(self)
            return self._judge(truth)
        except AssertionError as wrong:
            raise Lie(str(wrong)) from None
        finally:
            self._clear()

    def _start(self, pace: float) -> None:
        cluster, happening = self.stage.cluster, self.happening
        cluster.write("lines.py", SCRIPT.read_bytes())
        words = [happening.script, self.victim, self.directory, happening.count, pace]
        where = ["-H", cluster.lab.hostfile, "--ppn", "2", "--plain", *happening.options]
        self._watch("run", *where, "lines.py", *words)
        until = time.monotonic() + 60
        while not self.run:
            said = re.search(r"^(lines-\d{4}-\d{6}-[0-9a-f]{4}): ", self._said(".err"), re.MULTILINE)
            self.run = said[1] if said else ""
            assert time.monotonic() < until, f"it did not start: {self._said('.err')}"
            time.sleep(0.02)

    @property
    def directory(self) -> str:
        return f"/dev/shm/lines-{os.getpid()}-{self.number}"

    def _watch(self, *words: object) -> None:
        self.stage.cluster.state.mkdir(exist_ok=True)
        self.shown = self.stage.cluster.state / f"{self.number}-{words[0]}"
        out, err = self.shown.with_suffix(".out"), self.shown.with_suffix(".err")
        with out.open("wb") as stdout, err.open("wb") as stderr:
            self.client = subprocess.Popen(
                [*IPEXCTL, *map(str, words)],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                cwd=self.stage.cluster.project,
                env={**os.environ, **self.stage.cluster.env},
                start_new_session=True,
            )

    def watch_again(self, verb: str) -> None:
        self._watch(verb, self.run, "--plain")

    def _said(self, suffix: str) -> str:
        return self.shown.with_suffix(suffix).read_text(errors="replace")

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
        until = time.monotonic() + 60
        while any(self._own(rank).count(b"\n") < 5 for rank in range(6)) or self.status["state"] == "starting":
            assert time.monotonic() < until, f"no word of some rank: {self.status} {self._said('.err')}"
            assert self.client.poll() is None, f"it has ended: {self._said('.err')}"
            time.sleep(0.05)

    def wait_for_death(self) -> None:
        path = self.stage.file(self.host, f"{self.directory}/died")
        until = time.monotonic() + 60
        while not (path.exists() and path.read_text()):
            assert time.monotonic() < until, "the victim did not come to its fault"
            time.sleep(0.01)
        self.died = float(path.read_text())

    def kill(self, host: str, pid: int, number: signal.Signals) -> None:
        outer = self.stage.outer(host, pid)
        self.died = time.time()
        os.kill(outer, number)

    def _own(self, rank: int) -> bytes:
        path = self.stage.file(f"node{rank // 2 + 1}", f"{self.directory}/{rank}.lines")
        return path.read_bytes() if path.exists() else b""

    def _judge(self, truth: Truth) -> Played:
        is_ended = truth.state != "ok"
        died = self.died or time.time()
        patience = truth.within if is_ended else 120.0
        prompt = 0.0
        until = time.monotonic() + patience
        gone = None
        while gone is None or (not prompt and not self.cut):
            if gone is None and not self.stage.left():
                gone = time.time()
            if not prompt and self.client.poll() is not None:
                prompt = time.time()
            if time.monotonic() > until + (0 if gone is None else 20):
                break
            time.sleep(0.05)
        assert gone is not None, f"after {patience:g} s there are still {self.stage.left()}"
        if self.cut:
            self.stage.mend()
        code = self.client.wait(60)
        prompt = prompt or time.time()
        self._compare(truth, code)
        self._compare_lines(truth)
        assert not self.stage.left(), f"processes came back: {self.stage.left()}"
        return Played(gone - died, prompt - died)

    def _compare(self, truth: Truth, code: int) -> None:
        listed = next(row for row in json.loads(self.call("ps", "--json"))["runs"] if row["id"] == self.run)
        status = self.status
        said = f"{status['reason']!r} {status['first_failure']} {self._said('.err').splitlines()[-3:]}"
        assert (status["state"], listed["state"]) == (truth.state, truth.state), f"{listed['state']}: {said}"
        assert code == truth.code, f"the call ended with {code} and not {truth.code}: {said}"
        first = status["first_failure"] or {}
        found = (first.get("kind", ""), first.get("rank"), first.get("host"))
        assert found == (truth.kind, truth.rank, truth.host), f"{found}: {said}"
        assert truth.words in status["reason"], said
        for name, value in truth.more:
            assert first[name] == value, f"{name} is {first[name]}: {said}"
        assert "Traceback" not in re.sub(r"^\[\d\].*$", "", self._said(".err"), flags=re.MULTILINE), said

    def _compare_lines(self, truth: Truth) -> None:
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
                told = b"bytes are missing here" in kept or "bytes of the output of rank" in self._said(".err")
                assert told, f"rank {rank} lost {lost} bytes, and nobody says so"
                continue
            if truth.all_lines and f"node{rank // 2 + 1}" not in self.cut:
                assert kept.startswith(own), f"rank {rank}: {_difference(own, kept)}"
            else:
                assert kept.startswith(own) or own.startswith(kept), f"rank {rank}: {_difference(own, kept)}"
            shown = [line[4:] for line in self._said(".out").splitlines() if line.startswith(f"[{rank}] ")]
            assert shown == kept.decode().splitlines(), f"rank {rank}: {len(shown)} lines shown of {kept.count(10)}"

    def _kept(self, rank: int, stream: str) -> bytes:
        path = f"/home/ipex/.ipexctl/runs/{self.run}/ranks/{rank:04}.{stream}"
        return self.stage.file("node1", path).read_bytes()

    def _clear(self) -> None:
        self.stage.mend()
        if self.client.poll() is None:
            self.client.kill()
            self.client.wait()
        if self.run and self.stage.left():
            self.call("stop", self.run)
            self.stage.gone_by(time.monotonic() + 70)


def _difference(own: bytes, kept: bytes) -> str:
    at = next((n for n, (a, b) in enumerate(zip(own, kept, strict=False)) if a != b), min(len(own), len(kept)))
    return f"{len(own)} bytes printed, {len(kept)} kept, alike up to {at}: {own[at : at + 60]!r} {kept[at : at + 60]!r}"
