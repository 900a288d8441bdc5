"""`fetch` of one large file and of a tree of small ones, beside rsync."""

from __future__ import annotations

import shutil
import subprocess
from functools import partial
from typing import TYPE_CHECKING, Final

from .harness import Contender, Failed, cell, in_turns, say, spend, walls_ratio
from .report import Goal, Report
from .rig import all_well, ipexctl_argv

if TYPE_CHECKING:
    from .harness import Spent
    from .rig import Rig

OURS, RSYNC = "ipexctl fetch", "rsync -a"
BIG, SMALL = "one file of 500 MB", "2,000 files of 8 kB"
PLACES: Final = {BIG: "fetch-big", SMALL: "fetch-small"}
MADE: Final = {
    BIG: "mkdir -p fetch-big && head -c 500000000 /dev/urandom >fetch-big/file",
    SMALL: "for i in $(seq 2000); do mkdir -p fetch-small/d$((i%20)); "
    "head -c 8000 /dev/urandom >fetch-small/d$((i%20))/f$i; done",
}
AIM: Final = 1.0
PAUSE: Final = 0.5


def measure(rig: Rig) -> Report:
    if not rig.peers["rsync"] or not rig.peers["ssh"]:
        raise Failed("rsync and ssh are what fetch is measured beside")
    figures: dict[str, dict[str, list[Spent]]] = {}
    for what, command in MADE.items():
        say(f"fetch: {what}")
        all_well(rig.on_hosts(command, 1), "making what is fetched")
        figures[what] = in_turns([OURS, RSYNC], rig.runs, partial(_fetched, rig, what), PAUSE)
    header = ("wall s / client CPU s (x rsync's wall)", *MADE)
    rows = tuple((name, *(cell(figures[what], name, RSYNC) for what in MADE)) for name in (OURS, RSYNC))
    goals = []
    for what in MADE:
        reached = walls_ratio(figures[what], RSYNC, OURS)
        goals.append(Goal(f"{what}: ≥ {AIM}x as fast as rsync", f"{reached:.2f}x", reached >= AIM))
    return Report(rig.runs, header, rows, tuple(goals))


def _fetched(rig: Rig, what: str, name: str) -> Spent:
    out = rig.scratch / "fetched"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    place = PLACES[what]
    if name == OURS:
        words = ("fetch", "-H", str(rig.hostfile(1)), f"{rig.names(1)[0]}:{place}", f"{out}/")
        spent = spend(Contender(name, (*ipexctl_argv(), *words)), rig.env)
    else:
        shell = f"{rig.peers['ssh']} -F {rig.lab.ssh_config}"
        argv = (str(rig.peers["rsync"]), "-a", "-e", shell, f"{rig.names(1)[0]}:{place}", f"{out}/")
        spent = spend(Contender(name, argv), rig.env)
    count = "find . -type f -printf '%s\\n' | awk '{n++; s+=$1} END {print n, s}'"
    ((_, there),) = rig.on_hosts(f"cd {place} && {count}", 1)
    here = subprocess.run(["sh", "-c", count], cwd=out / place, capture_output=True, text=True, check=True).stdout
    if here.split() != there.split():
        raise Failed(f"{name}: {here.strip()} files and bytes came, of {there}")
    return spent
