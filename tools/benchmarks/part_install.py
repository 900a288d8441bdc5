"""`install` from a wheelhouse through a narrow uplink, beside who copies it to every host and calls pip; and once more.

Bytes are counted on the wire between this machine and the hosts, both directions, whatever sent them.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .figures import median, ranged, ratio
from .harness import Contender, Spent, in_turns, say, spend
from .peer_calls import playbook
from .report import Goal, Report, left_out
from .rig import CONTENDERS, Rig, all_well, ipexctl
from .uplink import capped, crossed
from .wheelhouse import Wheelhouse, make_wheelhouse

OURS, ANSIBLE, RSYNC = "ipexctl install --wheelhouse", "ansible: synchronize, pip (-f 32)", "xargs -P8: rsync, pip"
HOSTS, FEW = 8, 3
UPLINK = 50
"""MB/s: half of a gigabit link's."""
SIZE = 200_000_000
AIM_BYTES, AIM_AGAIN, AIM_SECONDS = 0.25, 0.083, 1.0
PAUSE = 2.0
PLACE = "bench-install"
"""Where the others put things, in the account's home."""


@dataclass(frozen=True, slots=True)
class Installed:
    """One contender's way from nothing to an environment on every host; then the same call again."""

    spent: Spent
    moved: int
    """Bytes over the uplink."""
    again: Spent | None
    """None: not measured, for its second call has nothing that tells it the first."""
    few: Spent | None = None
    """Again on the first hosts alone."""


def measure(rig: Rig) -> Report:
    house = make_wheelhouse(rig.scratch / "wheelhouse", SIZE)
    names = [OURS]
    if rig.peers.playbook and rig.peers["rsync"]:
        names.append(ANSIBLE)
    if rig.peers["rsync"] and rig.peers["ssh"]:
        names.append(RSYNC)
    with capped(rig.lab, UPLINK):
        figures = in_turns(names, rig.runs, partial(_installed, rig, house), PAUSE)
    _clear(rig)
    return _report(rig.runs, names, house, figures)


def _installed(rig: Rig, house: Wheelhouse, name: str) -> Installed:
    say(f"install: {name}")
    _clear(rig)
    before = crossed(rig.lab)
    spent = spend(_contender(rig, house, name, HOSTS), rig.env)
    moved = crossed(rig.lab) - before
    _prove(rig, house, name)
    again = few = None
    if name != RSYNC:
        again = spend(_contender(rig, house, name, HOSTS), rig.env)
    if name == OURS:
        few = spend(_contender(rig, house, name, FEW), rig.env)
    say(f"  {spent.wall:.1f} s, {moved / 1e6:.0f} MB" + (f", again {again.wall:.2f} s" if again else ""))
    return Installed(spent, moved, again, few)


def _contender(rig: Rig, house: Wheelhouse, name: str, count: int) -> Contender:
    config, home = rig.lab.ssh_config, rig.lab.hosts[0].home
    place = f"{home}/{PLACE}"
    if name == OURS:
        words = ("install", *rig.where(count), "--wheelhouse", house.path, "--offline", "--stack", "ipex-2.8")
        return ipexctl(name, *words)
    if name == RSYNC:
        argv: tuple[str, ...] = ("xargs", "-P8", "-I{}", "sh", str(CONTENDERS / "install.sh"), str(rig.peers["rsync"]))
        argv += (str(rig.peers["ssh"]), str(config), str(house.path), place, "{}", *house.pins)
        return Contender(name, argv, stdin="".join(f"{host}\n" for host in rig.names(count)).encode())
    values = {"wheelhouse": str(house.path), "place": place, "requirements": house.pins}
    return playbook(rig, name, "install.yml", values, count)


def _clear(rig: Rig) -> None:
    """Nothing of an earlier run anywhere, and no connection of it either."""
    where = f"rm -rf ~/.ipexctl ~/.cache ~/{PLACE} && mkdir ~/{PLACE}"
    all_well(rig.on_hosts(where, HOSTS), "clearing up")
    shutil.rmtree(Path(rig.env["HOME"]) / ".cache", ignore_errors=True)


def _prove(rig: Rig, house: Wheelhouse, name: str) -> None:
    """Every package is there, on every host, in the version that was asked for."""
    python = "~/.ipexctl/envs/default/bin/python" if name == OURS else f"~/{PLACE}/venv/bin/python"
    code = f"from importlib.metadata import version as v; [exit(p) for p, w in {house.versions!r} if v(p) != w]"
    all_well(rig.on_hosts(f'{python} -I -c "{code}"', HOSTS), f"{name} did not install everything everywhere")


def _report(runs: int, names: list[str], house: Wheelhouse, figures: dict[str, list[Installed]]) -> Report:
    header = (
        f"{house.size / 1e6:.0f} MB of wheels to {HOSTS} hosts, {UPLINK} MB/s",
        "wall s",
        "client CPU s",
        "MB over the uplink",
        "again, s",
    )
    rows = []
    for name in names:
        each = figures[name]
        again = [one.again.wall for one in each if one.again]
        rows.append(
            (
                name,
                ranged([one.spent.wall for one in each], 1),
                f"{median([one.spent.cpu for one in each]):.1f}",
                f"{median([one.moved for one in each]) / 1e6:.0f}",
                ranged(again, 2) if again else "",
            )
        )
    notes = left_out(name for name in (ANSIBLE, RSYNC) if name not in names)
    return Report(runs, header, tuple(rows), _goals(names, figures), notes)


def _goals(names: list[str], figures: dict[str, list[Installed]]) -> tuple[Goal, ...]:
    ours, peers = figures[OURS], [figures[name] for name in names if name != OURS]
    goals = []
    if peers:
        moved = max(ratio([one.moved for one in ours], [one.moved for one in peer]) for peer in peers)
        goals.append(Goal(f"bytes over the uplink: ≤ {AIM_BYTES}x any other", f"{moved:.2f}x", moved <= AIM_BYTES))
        walls = [one.spent.wall for one in ours]
        slowest = max(ratio(walls, [one.spent.wall for one in peer]) for peer in peers)
        goals.append(Goal("the shortest time", f"{slowest:.2f}x the next", slowest < 1))
    if ANSIBLE in names:
        theirs = [one.again.wall for one in figures[ANSIBLE] if one.again]
        times = ratio([one.again.wall for one in ours if one.again], theirs)
        goals.append(Goal(f"nothing to do: ≤ {AIM_AGAIN}x ansible", f"{times:.2f}x", times <= AIM_AGAIN))
    few = median([one.few.wall for one in ours if one.few])
    goals.append(Goal(f"nothing to do on {FEW} hosts in ≤ {AIM_SECONDS} s", f"{few:.2f} s", few <= AIM_SECONDS))
    return tuple(goals)
