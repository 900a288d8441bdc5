"""A contender in a control group of its own, which stops and continues all its processes at once."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from .harness import Contender, Failed
from .processes import arguments

_V1: Final = Path("/sys/fs/cgroup/freezer")
_V2: Final = Path("/sys/fs/cgroup")
_STOP_WAIT = 10.0
_START_WAIT = 120.0
_SETTLE_TIME = 1.0
_PROCESS_CLOCK: Final = 2
"""CPUCLOCK_SCHED of the kernel: see clock_getcpuclockid(3)."""
_JOIN_AND_EXEC: Final = 'echo $$ >"$0" && exec "$@"'


class Group:
    """The processes of one contender, whatever sessions they have made for themselves."""

    def __init__(self, name: str) -> None:
        self._v1 = _V1.is_dir()
        self._path = (_V1 if self._v1 else _V2) / f"ipexctl-benchmark-{os.getpid()}-{name}"
        try:
            self._path.mkdir()
        except OSError as error:
            raise Failed(f"no control group to stop and continue processes: {error}") from error

    @property
    def members(self) -> Path:
        return self._path / "cgroup.procs"

    def beside(self, script: str) -> list[int]:
        """All processes but those of this script."""
        pids = map(int, self.members.read_text().split())
        return [pid for pid in pids if arguments(pid)[1:2] != [script.encode()]]

    def freeze(self) -> None:
        self._write("FROZEN" if self._v1 else "1")
        deadline = time.monotonic() + _STOP_WAIT
        while not self._is_frozen():
            if time.monotonic() > deadline:
                raise Failed(f"{self._path.name} could not be stopped")
            time.sleep(0.001)

    def thaw(self) -> None:
        self._write("THAWED" if self._v1 else "0")

    def _write(self, state: str) -> None:
        (self._path / ("freezer.state" if self._v1 else "cgroup.freeze")).write_text(state)

    def _is_frozen(self) -> bool:
        if self._v1:
            return (self._path / "freezer.state").read_text().strip() == "FROZEN"
        return "frozen 1" in (self._path / "cgroup.events").read_text()

    def end(self) -> None:
        """Kill what is left. A frozen process cannot start others meanwhile."""
        self.freeze()
        for pid in self.members.read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        self.thaw()
        deadline = time.monotonic() + _STOP_WAIT
        while self.members.read_text() and time.monotonic() < deadline:
            time.sleep(0.01)

    def remove(self) -> None:
        self._path.rmdir()


def processor_of(pids: list[int]) -> float:
    """Seconds of processor that these processes have used so far, by the clock of each, which has ended threads too."""
    try:
        return sum(time.clock_gettime(~pid << 3 | _PROCESS_CLOCK) for pid in pids)
    except OSError as error:
        raise Failed(f"a program of the launcher has ended: {error}") from error


class Stopped:
    """A launcher whose script writes the time of each step to a file; it runs only in its turns."""

    def __init__(
        self, contender: Contender, group: Group, process: subprocess.Popen[bytes], steps: Path, script: str
    ) -> None:
        self._contender, self._group, self._process, self._steps = contender, group, process, steps
        self._script = script
        self._output = steps.with_suffix(".output")
        self.turns: list[tuple[float, float]] = []

    def steps(self) -> list[float]:
        """When each step ended, by the monotonic clock. Without a line that is half written."""
        text = self._steps.read_text() if self._steps.exists() else ""
        return [float(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def start(self, steps: int) -> None:
        """The first turn: until this many steps are done."""
        deadline = time.monotonic() + _START_WAIT
        while len(self.steps()) < steps:
            self._check()
            if time.monotonic() > deadline:
                raise Failed(f"{self._contender.name} did not get to step {steps}:\n{self.output()[-3000:]}")
            time.sleep(0.05)
        self._group.freeze()
        self.turns.append((self.steps()[0] - 1.0, time.monotonic()))

    def run_for(self, seconds: float) -> None:
        begin = time.monotonic()
        self._group.thaw()
        time.sleep(seconds)
        self.turns.append((begin, time.monotonic()))
        self._group.freeze()
        self._check()

    def launcher_share(self, seconds: float) -> float:
        """Run for so long; returns the part that the launcher's own processes use of one processor meanwhile.

        It begins when they have made up for what they could not do while they were stopped.
        """
        launcher = self._group.beside(self._script)
        begin = time.monotonic()
        self._group.thaw()
        time.sleep(_SETTLE_TIME)
        used, began = processor_of(launcher), time.monotonic()
        time.sleep(seconds)
        share = (processor_of(launcher) - used) / (time.monotonic() - began)
        self.turns.append((begin, time.monotonic()))
        self._group.freeze()
        self._check()
        return share

    def _check(self) -> None:
        if self._process.poll() is not None:
            raise Failed(f"{self._contender.name} ended with {self._process.returncode}:\n{self.output()[-3000:]}")


@contextmanager
def stopped_after(
    contender: Contender, base: Mapping[str, str], steps: Path, warm_up: int, script: str
) -> Iterator[Stopped]:
    """The contender, stopped after this many steps. At the end all its processes are killed."""
    group = Group(steps.name)
    with steps.with_suffix(".output").open("wb") as output:
        process = subprocess.Popen(
            ("sh", "-c", _JOIN_AND_EXEC, str(group.members), *contender.argv),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**base, **contender.env},
            cwd=base["HOME"],
            start_new_session=True,
        )
    try:
        stopped = Stopped(contender, group, process, steps, script)
        stopped.start(warm_up)
        yield stopped
    finally:
        group.end()
        process.wait()
        group.remove()
