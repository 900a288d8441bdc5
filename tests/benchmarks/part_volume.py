"""The cost of watching: 64 ranks that print 20,000 lines a second in all, and a large log read at once.

Processor time and memory of the supervisor, of the wrapper of a rank, and of the client are read from /proc while the
run goes on; on this machine alone, so that nothing but them is between a rank and its file.
"""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ipexctl.node.common.processes import all_processes

from .harness import Exit, Failed, failure, say, started
from .processes import arguments, is_detached, is_over
from .report import Goal, Report
from .rig import Rig, ipexctl
from .wheelhouse import install_mpi

RANKS: Final = 64
RATE: Final = 20_000
SECONDS: Final = 20
LINES: Final = int(os.environ.get("IPEXCTL_BENCH_LINES", "5000000"))
"""Of the day's log. 100 million are 24 hours of 1,200 lines a second; they take a while, and 6 GB twice."""
GROWTH: Final = 10.0
"""MB more at the end than when a tenth had been printed."""
KINDS: Final = {"run.supervisor": "supervisor", "run.rank": "wrapper of a rank", "ipexctl": "client"}
PROJECT: Final = "volume"
_MANY: Final = """\
import os, sys, time
rank, total, rate = int(os.environ["RANK"]), int(sys.argv[1]), float(sys.argv[2])
began = time.monotonic()
for number in range(total):
    print(f"epoch 1 step {number} of rank {rank} loss {1 / (1 + number):.4f}", flush=True)
    time.sleep(max(0.0, began + (number + 1) / rate - time.monotonic()))
"""
_MUCH: Final = """\
import sys
block = "".join(f"epoch 1 step {number:06} loss 0.1234 throughput 5678 images/s\\n" for number in range(1000))
for _ in range(int(sys.argv[1]) // 1000):
    sys.stdout.write(block)
"""


@dataclass
class Watched:
    """Processes of one kind, looked at again and again."""

    cpu: dict[int, float] = field(default_factory=dict)
    """Process → seconds of processor so far."""
    sizes: list[tuple[float, float]] = field(default_factory=list)
    """When, and the megabytes of the largest of them."""

    @property
    def peak(self) -> float:
        return max((size for _, size in self.sizes), default=0.0)

    def growth(self) -> float:
        """From the first tenth of the time to the end."""
        tenth = self.sizes[len(self.sizes) // 10 :]
        return max(size for _, size in tenth) - tenth[0][1] if tenth else 0.0


def measure(rig: Rig) -> Report:
    home = rig.scratch / "volume-home"
    install_mpi(rig, "--hosts", "localhost", "--home", str(home))
    project = rig.scratch / PROJECT
    project.mkdir()
    (project / "many.py").write_text(_MANY)
    (project / "much.py").write_text(_MUCH)
    each = RATE * SECONDS // RANKS
    say(f"volume: {RANKS} ranks, {RATE} lines/s")
    many, _ = _watched(rig, home, RANKS, ("many.py", str(each), str(RATE / RANKS)), RANKS * each)
    say(f"volume: {LINES:,} lines")
    much, end = _watched(rig, home, 1, ("much.py", str(LINES)), LINES)
    header = ("", "supervisor", "wrapper of a rank", "client")
    rows = (
        (f"{RANKS} ranks, {RATE:,} lines/s: % of a core", *(f"{_percent(many[kind]):.1f}" for kind in KINDS.values())),
        (f"{RANKS} ranks, {RATE:,} lines/s: MB at most", *(f"{many[kind].peak:.0f}" for kind in KINDS.values())),
        (f"{LINES:,} lines of 60 bytes: MB at most", *(f"{much[kind].peak:.0f}" for kind in KINDS.values())),
        (f"{LINES:,} lines: MB more than after a tenth", *(f"{much[kind].growth():.1f}" for kind in KINDS.values())),
    )
    grown = max(much[kind].growth() for kind in KINDS.values())
    goal = Goal(f"memory does not grow with the log (< {GROWTH:.0f} MB)", f"{grown:.1f} MB", grown < GROWTH)
    pace = f"{LINES / end.spent.wall / 1000:.0f} thousand lines a second, from the rank to a pipe of the client's."
    return Report(1, header, rows, (goal,), (f"The lines of the one rank came at {pace}",))


def _percent(watched: Watched) -> float:
    """Of all of that kind together, over their time; of wrappers, of one."""
    if len(watched.sizes) < 2 or not watched.cpu:
        return 0.0
    seconds = watched.sizes[-1][0] - watched.sizes[0][0]
    return 100 * sum(watched.cpu.values()) / len(watched.cpu) / seconds


def _watched(rig: Rig, home: Path, ranks: int, script: tuple[str, ...], lines: int) -> tuple[dict[str, Watched], Exit]:
    project = rig.scratch / PROJECT
    words = ("run", "--hosts", "localhost", "--home", home, "-n", ranks, "--bind", "none", "--plain", "--cwd", project)
    call = (*words, "--oversubscribe", project / script[0], *script[1:])
    contender = ipexctl(f"ipexctl run {script[0]}", *call)
    found = {kind: Watched() for kind in KINDS.values()}
    counter = subprocess.Popen(["wc", "-l"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert counter.stdin is not None
    with started(contender, rig.env, counter.stdin.fileno()) as (process, wait):
        while not is_over(process):
            _look(found, process.pid, str(home))
            time.sleep(0.5)
        end = wait()
    came, _ = counter.communicate()
    if end.code != 0:
        raise failure(contender, end)
    if int(came) != lines:
        raise Failed(f"{contender.name}: {came.strip()} lines of {lines} came")
    return found, end


def _look(found: dict[str, Watched], client: int, home: str) -> None:
    now = time.monotonic()
    largest = dict.fromkeys(found, 0.0)
    for stat in all_processes():
        kind = _kind(stat.pid, client, home)
        if kind is not None and stat.is_alive:
            found[kind].cpu[stat.pid] = stat.seconds
            largest[kind] = max(largest[kind], stat.rss / 1e6)
    for kind, size in largest.items():
        if size:
            found[kind].sizes.append((now, size))


def _kind(pid: int, client: int, home: str) -> str | None:
    if pid == client:
        return KINDS["ipexctl"]
    _, _, agent, command = [word.decode(errors="replace") for word in [*arguments(pid), *[b""] * 4][:4]]
    if not agent.startswith(f"{home}/runs/"):
        return None
    return KINDS.get(command) if command != "run.supervisor" or is_detached(pid) else None
