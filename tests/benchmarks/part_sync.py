"""`sync` of a project: to hosts that have nothing of it, after one file has changed, and when nothing has."""

from __future__ import annotations

import itertools
import os
import random
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from ipexctl.text import counted

from .harness import Contender, Failed, Spent, in_turns, say, spend, table, walls_ratio
from .peer_calls import playbook
from .report import Goal, Report, left_out
from .rig import Rig, all_well, ipexctl

OURS, RSYNC, ANSIBLE = "ipexctl sync", "xargs -P8 rsync -a --delete", "ansible synchronize (-f 32)"
FILES, DIRECTORIES, SIZE = 2000, 40, 20_000_000
COLD, CHANGED, UNCHANGED = "nothing there", "one file changed", "unchanged"
STATES: Final = (COLD, CHANGED, UNCHANGED)
PLACE = "bench-sync"
"""The project's directory in the account's home: this, the first word of the tool, a number.

"Nothing there" is a directory that never existed: ext4 creates files much slower where others were just deleted.
"""
PAUSE = 0.3


def make_tree(root: Path) -> None:
    """Always the same bytes, which don't compress."""
    chance = random.Random(1)
    for number in range(FILES):
        directory = root / f"package{number % DIRECTORIES:02}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"module{number:04}.py").write_bytes(chance.randbytes(SIZE // FILES))


def measure(rig: Rig) -> Report:
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
            column = f"{state}, {counted(count, 'host')}"
            say(f"sync: {column}")
            synced = partial(_synced, rig, tree, state, count, places, numbers)
            if state == UNCHANGED:  # the last change was made for one tool after the other
                in_turns(names, 1, synced)
            columns[column] = in_turns(names, rig.runs, synced, PAUSE)
    header = (f"{FILES} files: wall s / client CPU s (x ipexctl)", *columns)
    goals = tuple(_goal(figures, column) for column, figures in columns.items() if RSYNC in names)
    notes = left_out(name for name in (RSYNC, ANSIBLE) if name not in names)
    return Report(rig.runs, header, table(columns.values(), OURS), goals, notes)


def _goal(figures: dict[str, list[Spent]], column: str) -> Goal:
    reached = walls_ratio(figures, RSYNC, OURS)
    return Goal(f"{column}: faster than rsync", f"{reached:.2f}x as fast", reached > 1)


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
