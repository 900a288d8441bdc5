"""`sync` of a project to hosts that have nothing, one file less or all of it, and `fetch`: beside rsync."""

from __future__ import annotations

import itertools
import os
import random
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from ipexctl.text import format_count

from .harness import TIMES, Contender, Failed, Spent, in_turns, say, spend, table, walls_ratio
from .peer_calls import playbook
from .report import Goal, Report, left_out
from .rig import Rig, all_well, ipexctl

OURS, RSYNC, ANSIBLE = "ipexctl sync", "xargs -P8 rsync -a --delete", "ansible synchronize (-f 32)"
FILES, DIRECTORIES, SIZE = 2000, 40, 20_000_000
COLD, CHANGED, UNCHANGED = "nothing there", "one file changed", "unchanged"
STATES: Final = (COLD, CHANGED, UNCHANGED)
AIMS_SYNC: Final = {COLD: 1.2, CHANGED: 0.95, UNCHANGED: 0.95}
PLACE = "bench-sync"
"""The project's directory in the account's home: this, the first word of the tool, a number.

"Nothing there" is a directory that never existed: ext4 creates files much slower where others were just deleted.
"""
PAUSE = 0.3
FETCH, RSYNC_BACK = "ipexctl fetch", "rsync -a"
BIG, SMALL = "one file of 500 MB", "2,000 files of 8 kB"
FETCHED: Final = {BIG: "fetch-big", SMALL: "fetch-small"}
MADE: Final = {
    BIG: "mkdir -p fetch-big && head -c 500000000 /dev/urandom >fetch-big/file",
    SMALL: "for i in $(seq 2000); do mkdir -p fetch-small/d$((i%20)); "
    "head -c 8000 /dev/urandom >fetch-small/d$((i%20))/f$i; done",
}
AIM_FETCH: Final = 1.15


def make_tree(root: Path) -> None:
    """Always the same bytes, which don't compress."""
    chance = random.Random(1)
    for number in range(FILES):
        directory = root / f"package{number % DIRECTORIES:02}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"module{number:04}.py").write_bytes(chance.randbytes(SIZE // FILES))


def measure_sync(rig: Rig) -> Report:
    tree = rig.scratch / "project"
    make_tree(tree)
    names = [OURS]
    if rig.peers["rsync"] and rig.peers["ssh"]:
        names.append(RSYNC)
    if rig.peers["rsync"] and rig.peers.playbook:
        names.append(ANSIBLE)
    columns: dict[str, dict[str, list[Spent]]] = {}
    numbers = itertools.count()
    for count in rig.counts:
        places: dict[str, str] = {}
        for name in names:
            _synced(rig, tree, COLD, count, places, numbers, name)
        for state in STATES:
            column = f"{state}, {format_count(count, 'host')}"
            say(f"sync: {column}")
            synced = partial(_synced, rig, tree, state, count, places, numbers)
            if state == UNCHANGED:  # the last change was made for one tool after the other
                in_turns(names, 1, synced)
            columns[column] = in_turns(names, rig.runs, synced, PAUSE)
    goals = tuple(_goal(figures, column) for column, figures in columns.items() if RSYNC in names)
    notes = left_out(name for name in (RSYNC, ANSIBLE) if name not in names)
    return Report(rig.runs, (TIMES, *columns), table(columns.values(), OURS), goals, notes)


def _goal(figures: dict[str, list[Spent]], column: str) -> Goal:
    reached, aim = walls_ratio(figures, OURS, RSYNC), AIMS_SYNC[column.partition(",")[0]]
    return Goal(f"{column}: ≤ {aim}x rsync", f"{reached:.2f}x", reached <= aim)


def _contender(rig: Rig, tree: Path, count: int, name: str, place: str) -> Contender:
    place = f"{rig.lab.hosts[0].home}/{place}"
    if name == OURS:
        return ipexctl(name, "sync", *rig.where(count), "--home", place, tree)
    if name == ANSIBLE:
        return playbook(rig, name, "sync.yml", {"tree": str(tree), "place": place}, count)
    shell = shlex.join([str(rig.peers["ssh"]), "-F", str(rig.lab.ssh_config)])
    argv = ("xargs", "-P8", "-I{}", str(rig.peers["rsync"]), "-a", "--delete", "-e", shell)
    hosts = "".join(f"{host}\n" for host in rig.names(count)).encode()
    return Contender(name, (*argv, f"{tree}/", f"{{}}:{place}/"), stdin=hosts)


def _synced(
    rig: Rig, tree: Path, state: str, count: int, places: dict[str, str], numbers: Iterator[int], name: str
) -> Spent:
    changed = tree / "package00" / "module0000.py"
    if state == COLD:
        places[name] = f"{PLACE}-{name.split()[0]}-{next(numbers)}"
    elif state == CHANGED:
        changed.write_bytes(changed.read_bytes()[1:] + b"!")
    spent = spend(_contender(rig, tree, count, name, places[name]), rig.env)
    _prove(rig, tree, count, name, places[name])
    if state == COLD:
        os.sync()
    return spent


def _prove(rig: Rig, tree: Path, count: int, name: str, place: str) -> None:
    """Every host has every file, and the one that changes as it is here."""
    where = f"~/{place}/code/*" if name == OURS else f"~/{place}"
    sizes_of_all = "find . -path ./.ipexctl -prune -o -type f -printf '%s\\n'"
    command = f"cd {where} && {sizes_of_all}; tail -c 9 package00/module0000.py | od -An -tx1"
    last = (tree / "package00" / "module0000.py").read_bytes()[-9:].hex(" ")
    looked = rig.on_hosts(command, count)
    all_well(looked, name)
    for host, (_, said) in zip(rig.names(count), looked, strict=True):
        *sizes, ends = said.splitlines()
        if (len(sizes), sum(map(int, sizes)), ends.strip()) != (FILES, SIZE, last):
            raise Failed(f"{name}: {host} has {len(sizes)} files, the changed one ending with {ends}")


def measure_fetch(rig: Rig) -> Report:
    if not rig.peers["rsync"] or not rig.peers["ssh"]:
        raise Failed("rsync and ssh are what fetch is measured beside")
    figures, goals = {}, []
    for what, command in MADE.items():
        say(f"fetch: {what}")
        all_well(rig.on_hosts(command, 1), "making what is fetched")
        figures[what] = in_turns([FETCH, RSYNC_BACK], rig.runs, partial(_fetched, rig, what), PAUSE)
        reached = walls_ratio(figures[what], FETCH, RSYNC_BACK)
        goals.append(Goal(f"{what}: ≤ {AIM_FETCH}x rsync", f"{reached:.2f}x", reached <= AIM_FETCH))
    return Report(rig.runs, (TIMES, *MADE), table(figures.values(), FETCH), tuple(goals))


def _fetched(rig: Rig, what: str, name: str) -> Spent:
    out, place = rig.scratch / "fetched", FETCHED[what]
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    paths = (f"{rig.names(1)[0]}:{place}", f"{out}/")
    shell = f"{rig.peers['ssh']} -F {rig.lab.ssh_config}"
    rsync = Contender(name, (str(rig.peers["rsync"]), "-a", "-e", shell, *paths))
    spent = spend(ipexctl(name, "fetch", *rig.where(1), *paths) if name == FETCH else rsync, rig.env)
    count = "find . -type f -printf '%s\\n' | awk '{n++; s+=$1} END {print n, s}'"
    ((_, there),) = rig.on_hosts(f"cd {place} && {count}", 1)
    here = subprocess.run(["sh", "-c", count], cwd=out / place, capture_output=True, text=True, check=True).stdout
    if here.split() != there.split():
        raise Failed(f"{name}: {here.strip()} files and bytes came, of {there}")
    return spent
