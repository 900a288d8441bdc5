"""From hosts that have nothing to the first trained step, beside rsync, pip and torchrun by hand: measured whole.

Both take their wheels from a directory of this machine, over the same uplink. By hand, hosts are prepared one after the
other or all at once; nothing is verified, and nobody looks whether the hosts can train together.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from .figures import compared, median, median_interval, ratio, ratios
from .harness import Contender, Failed, failure, in_turns, say, spend, started
from .part_start import SCRIPT
from .part_train import TORCH
from .report import Goal, Report
from .rig import CONTENDERS, Rig, all_well, ipexctl, write_project
from .uplink import capped, crossed

HOSTS: Final = 4
UPLINK: Final = 50
"""MB/s: half of a gigabit link's."""
OURS: Final = "ipexctl run --install"
LOOP, AT_ONCE = "a loop: rsync, pip; torchrun by ssh", f"the same, {HOSTS} hosts at once"
PAUSE: Final = 2.0
PLACE: Final = "bench-bare"
"""Where the others put things, in the account's home."""
_DONE: Final = b"rank 0 took "


@dataclass(frozen=True, slots=True)
class FirstStep:
    """Seconds until the first optimizer step was done, bytes over the uplink, processor seconds of this machine."""

    seconds: float
    moved: int
    here: float


def measure(rig: Rig) -> Report:
    if not (rig.peers["rsync"] and rig.peers["ssh"]):
        raise Failed("rsync and ssh are what bare-hosts is measured beside")
    project = write_project(rig.scratch / "bare")
    (project / SCRIPT).write_bytes((CONTENDERS / SCRIPT).read_bytes())
    contenders = {each.name: each for each in _contenders(rig, project)}
    with capped(rig.lab, UPLINK):
        figures = in_turns(list(contenders), rig.runs, lambda name: _first_step(rig, contenders[name]), PAUSE)
    _clear(rig)
    return _report(rig.runs, figures)


def _contenders(rig: Rig, project: Path) -> list[Contender]:
    """Ours gets the wheels of its stack; the others those that pip wants for torch."""
    wheels, few = rig.scratch / "bare-wheels", rig.scratch / "bare-wheels-of-torch"
    say(f"bare-hosts: downloading torch {TORCH}")
    stack = ("--stack", "torch", "--torch", TORCH)
    spend(ipexctl("preparation", "install", *rig.where(HOSTS), *stack, "--download-only", wheels), rig.env)
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-index", "--find-links", str(wheels), "-d", str(few)]
    subprocess.run([*pip, "torch"], check=True, stdin=subprocess.DEVNULL)
    options = ("--ppn", 1, "--omp", 1, "--plain", "--install", *stack, "--cwd", project)
    ours = ipexctl(OURS, "run", *rig.where(HOSTS), *options, project / SCRIPT)
    settings = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": os.devnull}
    home, tools = rig.lab.hosts[0].home, (str(rig.peers["rsync"]), str(rig.peers["ssh"]), str(rig.lab.ssh_config))
    words = (*tools, str(project), str(few), f"{home}/{PLACE}", rig.addresses(1)[0], SCRIPT, "torch", *rig.names(HOSTS))
    by_hand = [
        Contender(name, ("sh", str(CONTENDERS / "by_hand.sh"), str(jobs), *words))
        for name, jobs in ((LOOP, 1), (AT_ONCE, HOSTS))
    ]
    return [replace(ours, env=settings), *by_hand]


def _first_step(rig: Rig, contender: Contender) -> FirstStep:
    say(f"bare-hosts: {contender.name}")
    _clear(rig)
    said, seconds = b"", 0.0
    before, begun = crossed(rig.lab), time.perf_counter()
    with started(contender, rig.env, subprocess.PIPE) as (process, wait):
        assert process.stdout is not None
        while data := os.read(process.stdout.fileno(), 1 << 16):
            said += data
            if not seconds and _DONE in said:
                seconds = time.perf_counter() - begun
        end = wait()
    if end.code != 0 or not seconds:
        raise failure(contender, end, said.decode(errors="replace"))
    if said.count(b"first line of rank") != HOSTS:
        raise Failed(f"{contender.name} trained with other ranks than one a host: {said!r}")
    found = FirstStep(seconds, crossed(rig.lab) - before, end.spent.cpu)
    say(f"  {found}")
    return found


def _clear(rig: Rig) -> None:
    """Nothing of an earlier run anywhere."""
    all_well(rig.on_hosts(f"rm -rf ~/.ipexctl ~/.cache ~/{PLACE}", HOSTS), "clearing up")
    for name in (".cache", ".local"):
        shutil.rmtree(Path(rig.env["HOME"]) / name, ignore_errors=True)


def _report(runs: int, figures: Mapping[str, Sequence[FirstStep]]) -> Report:
    def of(name: str, field: str) -> list[float]:
        return [getattr(each, field) for each in figures[name]]

    rows = []
    for name in figures:
        seconds = of(name, "seconds")
        beside = "" if name == OURS else f" ({compared(median_interval(ratios(of(OURS, 'seconds'), seconds)))})"
        moved, here = median(of(name, "moved")) / 1e6, median(of(name, "here"))
        rows.append((name, f"{median(seconds):.1f}{beside}", f"{moved:.0f}", f"{here:.1f}"))
    header = (f"{HOSTS} hosts, {UPLINK} MB/s", "first step, s (ipexctl's / this)", "MB over the uplink", "CPU s here")
    worst = max(ratio(of(OURS, "seconds"), of(name, "seconds")) for name in (LOOP, AT_ONCE))
    return Report(runs, header, tuple(rows), (Goal("≤ 1x the faster way by hand", f"{worst:.2f}x", worst <= 1),))
