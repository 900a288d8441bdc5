"""Eight ranks that print 20,000 lines a second in all: what `ipexctl run` makes of them beside a bare mpirun over ssh.

Every line carries its rank, its number and the time it was printed; all hosts have this machine's clock.
"""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .figures import median, ratio
from .harness import Contender, Failed, failure, in_turns, say, spend, started
from .mpirun import mpirun_by_hand
from .report import Goal, Report
from .rig import Rig, ipexctl, prepare
from .wheelhouse import install_mpi

HOSTS: Final = 3
RANKS: Final = 8
PPN: Final = 3
RATE: Final = 20_000
SECONDS: Final = 20
OURS, BARE = "ipexctl run --plain", "ssh node0 mpiexec.hydra"
AIM_SLOWER: Final = 0.15
AIM_DELAY: Final = 150.0
_EACH: Final = RATE * SECONDS // RANKS
_MILLION: Final = 1_000_000
_SCRIPT: Final = """\
import os, sys, time
rank, total, rate = int(os.environ["PMI_RANK"]), int(sys.argv[1]), float(sys.argv[2])
began = time.monotonic()
for number in range(total):
    sys.stdout.write(f"{rank} {number} {time.time_ns()} epoch 1 step {number} loss {1 / (1 + number / 1000):.4f}\\n")
    if number % 25 == 24:
        sys.stdout.flush()
        time.sleep(max(0.0, began + (number + 1) / rate - time.monotonic()))
"""


@dataclass(frozen=True, slots=True)
class Printed:
    """One run. `span` is from the first line printed to the last one here, delays are milliseconds."""

    wall: float
    span: float
    cpu: float
    delay: float
    worst: float
    lost: int
    mixed: int
    in_order: bool


def measure(rig: Rig) -> Report:
    where = rig.where(HOSTS)
    prepare(rig, "trust", *where)
    install_mpi(rig, *where)
    project = rig.scratch / "lines"
    project.mkdir()
    (project / "lines.py").write_text(_SCRIPT)
    contenders = {OURS: _ours(project, where)}
    spend(_ours(project, where, lines=25), rig.env)
    ((_, tree),) = rig.on_hosts("ls -d $HOME/.ipexctl/code/lines-*", 1)
    rates = f"{_EACH} {RATE / RANKS}"
    contenders[BARE] = mpirun_by_hand(rig, BARE, (HOSTS, PPN, RANKS), f"{tree}/lines.py", rates)
    figures = in_turns(list(contenders), rig.runs, lambda name: _printed(rig, contenders[name]), 1.0)
    return _report(rig.runs, figures)


def _ours(project: Path, where: tuple[str, ...], lines: int = _EACH) -> Contender:
    words = ("run", *where, "-n", RANKS, "--ppn", PPN, "--oversubscribe", "--plain", "--cwd", project)
    return ipexctl(OURS, *words, project / "lines.py", lines, RATE / RANKS)


def _printed(rig: Rig, contender: Contender) -> Printed:
    came: list[tuple[int, bytes]] = []
    with started(contender, rig.env, subprocess.PIPE) as (process, wait):
        assert process.stdout is not None
        while data := os.read(process.stdout.fileno(), 1 << 16):
            came.append((time.time_ns(), data))
        end = wait()
    if end.code != 0:
        raise failure(contender, end)
    if not came:
        raise Failed(f"{contender.name} showed no line")
    found = _read(came, end.spent.wall, end.spent.cpu, b"[" if contender.name == OURS else b"")
    say(f"lines: {contender.name}: {found}")
    return found


def _read(came: list[tuple[int, bytes]], wall: float, cpu: float, prefix: bytes) -> Printed:
    """What the lines say of themselves. A line that isn't as it was printed is a mixed one."""
    delays: list[float] = []
    numbers: dict[int, list[int]] = {rank: [] for rank in range(RANKS)}
    mixed, first, rest = 0, came[0][0], b""
    for at, data in came:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            words = line.split()[1 if prefix else 0 :]
            if not _is_whole(words) or (prefix and not line.startswith(b"[%s] " % words[0])):
                mixed += 1
                continue
            printed = int(words[2])
            first = min(first, printed)
            numbers[int(words[0])].append(int(words[1]))
            delays.append((at - printed) / _MILLION)
    delays.sort()
    return Printed(
        wall=wall,
        span=(came[-1][0] - first) / _MILLION / 1000,
        cpu=cpu,
        delay=delays[len(delays) // 2],
        worst=delays[-1],
        lost=RANKS * _EACH - sum(len(set(each)) for each in numbers.values()),
        mixed=mixed,
        in_order=all(each == list(range(_EACH)) for each in numbers.values()),
    )


def _is_whole(words: list[bytes]) -> bool:
    return len(words) == 9 and all(word.isdigit() for word in words[:3]) and words[1] == words[6]


def _report(runs: int, figures: dict[str, list[Printed]]) -> Report:
    rows = tuple(
        (
            name,
            f"{median([each.wall for each in printed]):.1f}",
            f"{median([each.span for each in printed]):.1f}",
            f"{median([each.cpu for each in printed]):.1f}",
            f"{median([each.delay for each in printed]):.0f}",
            f"{max(each.worst for each in printed):.0f}",
            str(max(each.lost for each in printed)),
            str(max(each.mixed for each in printed)),
        )
        for name, printed in figures.items()
    )
    ours, bare = figures[OURS], figures[BARE]
    whole = all(each.in_order and not each.lost and not each.mixed for each in ours)
    wall = ratio([each.wall for each in ours], [each.wall for each in bare]) - 1
    span = ratio([each.span for each in ours], [each.span for each in bare]) - 1
    delay = median([each.delay for each in ours])
    goals = (
        Goal("no line lost, none mixed, each rank's in order", "all of them" if whole else "no", whole),
        Goal(f"the whole call ≤ {AIM_SLOWER:.0%} slower than {BARE}", f"{wall:+.0%}", wall <= AIM_SLOWER),
        Goal(f"first line to last ≤ {AIM_SLOWER:.0%} slower", f"{span:+.0%}", span <= AIM_SLOWER),
        Goal(f"median delay of a line ≤ {AIM_DELAY:.0f} ms", f"{delay:.0f} ms", delay <= AIM_DELAY),
    )
    header = (
        f"{RANKS} ranks, {RATE:,} lines/s, {SECONDS} s",
        "whole call s",
        "first line to last s",
        "CPU s here",
        "median delay ms",
        "worst ms",
        "lost",
        "mixed",
    )
    return Report(runs, header, rows, goals)
