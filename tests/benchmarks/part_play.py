"""One playbook of ten small tasks, the same file for both, on eight hosts: whole processes, connecting included."""

from __future__ import annotations

import shutil
from functools import partial

from .harness import Contender, Failed, Spent, in_turns, say, spend, table, walls_ratio
from .peer_calls import playbook
from .report import Goal, Report, left_out
from .rig import CONTENDERS, Rig, all_well, ipexctl

OURS, ANSIBLE = "ipexctl play", "ansible-playbook, pipelining, 32 forks"
HOSTS = 8
COUNTS = (1, HOSTS)
AIM = 5.0
PAUSE = 0.3


def contenders(rig: Rig, count: int) -> dict[str, Contender]:
    brought = rig.scratch / "brought"
    words = ("play", CONTENDERS / "play.yml", "-f", "32", *rig.where(count), "-e", f"brought={brought}")
    found = {OURS: ipexctl(OURS, *words)}
    if rig.peers["ansible"]:
        found[ANSIBLE] = playbook(rig, ANSIBLE, "play.yml", {"brought": str(brought)}, count)
    return found


def _played(rig: Rig, by_name: dict[str, Contender], count: int, name: str) -> Spent:
    """Once; then it is looked at whether it did what it should, and took everything away again."""
    brought = rig.scratch / "brought"
    shutil.rmtree(brought, ignore_errors=True)
    spent = spend(by_name[name], rig.env)
    for host in rig.names(count):
        text = (brought / host / "tmp/bench-play/conf").read_text()
        if text != f"# of {host}\nname=one\nname=two\nname=three\n":
            raise Failed(f"{name}: what {host} had is {text!r}")
    all_well(rig.on_hosts("[ ! -e /tmp/bench-play ]", count), f"{name} left something behind")
    return spent


def measure(rig: Rig) -> Report:
    figures: dict[int, dict[str, list[Spent]]] = {}
    for count in COUNTS:
        say(f"play: {count} hosts")
        by_name = contenders(rig, count)
        for name in by_name:
            _played(rig, by_name, count, name)  # unmeasured: bytecode is compiled
        figures[count] = in_turns(list(by_name), rig.runs, partial(_played, rig, by_name, count), PAUSE)
    header = ("wall s / client CPU s (x ipexctl's wall)", *(f"N={count}" for count in COUNTS))
    rows = table(figures.values(), OURS)
    if ANSIBLE not in figures[HOSTS]:
        return Report(rig.runs, header, rows, notes=left_out(["ansible"]))
    reached = walls_ratio(figures[HOSTS], ANSIBLE, OURS)
    goal = Goal(f"≥ {AIM:g}x faster than ansible on {HOSTS} hosts", f"{reached:.1f}x", reached >= AIM)
    return Report(rig.runs, header, rows, (goal,))
