"""`fetch` of one large file and of a tree of small ones, beside rsync."""

from __future__ import annotations

import shutil
import subprocess
from functools import partial
from typing import Final

from .harness import Contender, Failed, Spent, in_turns, say, spend, table, walls_ratio
from .report import Goal, Report
from .rig import Rig, all_well, ipexctl

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
    goals = []
    for what in MADE:
        reached = walls_ratio(figures[what], RSYNC, OURS)
        goals.append(Goal(f"{what}: ≥ {AIM}x as fast as rsync", f"{reached:.2f}x", reached >= AIM))
    return Report(rig.runs, header, table(figures.values(), RSYNC), tuple(goals))


def _fetched(rig: Rig, what: str, name: str) -> Spent:
    out = rig.scratch / "fetched"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    place = PLACES[what]
    paths = (f"{rig.names(1)[0]}:{place}", f"{out}/")
    shell = f"{rig.peers['ssh']} -F {rig.lab.ssh_config}"
    rsync = Contender(name, (str(rig.peers["rsync"]), "-a", "-e", shell, *paths))
    spent = spend(ipexctl(name, "fetch", *rig.where(1), *paths) if name == OURS else rsync, rig.env)
    count = "find . -type f -printf '%s\\n' | awk '{n++; s+=$1} END {print n, s}'"
    ((_, there),) = rig.on_hosts(f"cd {place} && {count}", 1)
    here = subprocess.run(["sh", "-c", count], cwd=out / place, capture_output=True, text=True, check=True).stdout
    if here.split() != there.split():
        raise Failed(f"{name}: {here.strip()} files and bytes came, of {there}")
    return spent
