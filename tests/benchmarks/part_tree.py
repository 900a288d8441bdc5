"""A tree of many small files to hosts that have nothing of it yet, connecting included."""

from __future__ import annotations

import random
import sys
from functools import partial
from typing import TYPE_CHECKING

from .harness import Contender, Failed, cell, in_turns, say, spend, walls_ratio
from .report import Goal, Report
from .rig import CONTENDERS, all_well

if TYPE_CHECKING:
    from pathlib import Path

    from .harness import Spent
    from .rig import Rig

OURS, RSYNC = "ipexctl push_bundle", "xargs -P8 rsync -a"
BARE, EACH = "paramiko tar stream, packed once", "paramiko tar stream, packed for each host"
FILES, DIRECTORIES, SIZE = 2000, 40, 20_000_000
COUNTS = (1, 8)
PLACE = "/tmp/bench-tree"
"""Memory, not a disk: the disks of a lab are all on one, which a cluster's are not."""
PAUSE = 0.3


def make_tree(root: Path) -> None:
    """Always the same bytes, which don't compress."""
    chance = random.Random(1)
    for number in range(FILES):
        directory = root / f"package{number % DIRECTORIES:02}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"module{number:04}.py").write_bytes(chance.randbytes(SIZE // FILES))


def measure(rig: Rig) -> Report:
    tree = rig.scratch / "tree"
    make_tree(tree)
    names = [OURS, BARE, EACH, *([RSYNC] if rig.peers["rsync"] and rig.peers["ssh"] else [])]
    figures: dict[int, dict[str, list[Spent]]] = {}
    for count in COUNTS:
        say(f"tree: {count} hosts")
        for name in names:
            _pushed(rig, tree, count, name)
        figures[count] = in_turns(names, rig.runs, partial(_pushed, rig, tree, count), PAUSE)
    header = ("wall s / client CPU s (x the tar stream's wall)", *(f"N={count}" for count in COUNTS))
    rows = tuple((name, *(cell(figures[count], name, BARE) for count in COUNTS)) for name in names)
    most = COUNTS[-1]
    reached = walls_ratio(figures[most], OURS, BARE)
    goal = Goal(f"to {most} hosts ≤ the tar stream through paramiko", f"{reached:.2f}x", reached <= 1.0)
    notes = () if RSYNC in names else ("Left out, not installed here: rsync.",)
    return Report(rig.runs, header, rows, (goal,), notes)


def _contender(rig: Rig, tree: Path, count: int, name: str) -> Contender:
    if name == RSYNC:
        hosts = "".join(f"{host}\n" for host in rig.names(count)).encode()
        shell = f"{rig.peers['ssh']} -F {rig.lab.ssh_config}"
        argv = ("xargs", "-P8", "-I{}", str(rig.peers["rsync"]), "-a", "-e", shell, f"{tree}/", f"{{}}:{PLACE}/")
        return Contender(name, argv, stdin=hosts)
    scripts = {OURS: ("push_ipexctl.py",), BARE: ("push_paramiko.py", "once"), EACH: ("push_paramiko.py", "each")}
    script, *how = scripts[name]
    words = (*how, *rig.login, str(tree), PLACE, *rig.addresses(count))
    return Contender(name, (sys.executable, str(CONTENDERS / script), *words))


def _pushed(rig: Rig, tree: Path, count: int, name: str) -> Spent:
    """One push into a new directory, looked at and removed outside the measurement."""
    spent = spend(_contender(rig, tree, count, name), rig.env)
    looked = rig.on_hosts(f"cd {PLACE} && find . -type f -printf '%s\\n'", count)
    all_well(looked, name)
    for address, (_, sizes) in zip(rig.addresses(count), looked, strict=True):
        found = [int(size) for size in sizes.split()]
        if (len(found), sum(found)) != (FILES, SIZE):
            raise Failed(f"{name}: {address} has {len(found)} files, {sum(found)} bytes; not {FILES}, {SIZE}")
    all_well(rig.on_hosts(f"rm -rf {PLACE}", count), name)
    return spent
