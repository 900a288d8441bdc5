"""`exec -- true`, cold and as a whole process, on one host and on many, beside everybody else's."""

from __future__ import annotations

import os

from .harness import Contender, Failed, Spent, end_of, say, spend, spend_in_turns, table, walls_ratio
from .peer_calls import ansible, bare_pool, pyinfra
from .report import Goal, Report, left_out
from .rig import Rig, all_well, ipexctl

OURS, BARE = "ipexctl exec", "bare paramiko pool"
AIM_HOSTS, AIM_RATIO = 32, 1.0
PAUSE = 0.3
"""Seconds between two runs, for the servers of the last one to be gone."""


def contenders(rig: Rig, count: int, words: tuple[str, ...]) -> list[Contender]:
    """Everyone there is, told to run the same words on the same hosts with the same key, keys checked."""
    names, config, line = ",".join(rig.names(count)), f"-F {rig.lab.ssh_config}", " ".join(words)
    found: list[Contender | None] = [
        ipexctl(OURS, "exec", "-f", "32", *rig.where(count), "--", *words),
        bare_pool(rig, BARE, count, line),
    ]
    if pdsh := rig.peers["pdsh"]:
        argv = (str(pdsh), "-R", "ssh", "-S", "-f", "32", "-w", names, *words)
        found.append(Contender("pdsh -R ssh -f 32", argv, {"PDSH_SSH_ARGS_APPEND": config}))
    if clush := rig.peers["clush"]:
        argv = (str(clush), "-f", "32", "-S", "-o", config, "-w", names, *words)
        found.append(Contender("clush -f 32", argv))
    found.append(ansible(rig, "ansible -m raw -f 32", count, "raw", "-a", line))
    found.append(pyinfra(rig, "pyinfra exec", count, "exec", "--", *words))
    return [contender for contender in found if contender]


def prove(rig: Rig, count: int) -> None:
    """Before anything is timed: everyone reaches all hosts, and one host's failure shows in the exit code.

    The command is a mkdir; then the directory is removed again on all hosts but the last, where it now must fail.
    """
    for number in range(len(contenders(rig, count, ("true",)))):
        place = f"/tmp/bench-{os.getpid()}-{count}-{number}"
        contender = contenders(rig, count, ("mkdir", place))[number]
        spend(contender, rig.env)
        all_well(rig.on_hosts(f"[ -d {place} ]", count), f"{contender.name} did not run its command everywhere")
        all_well(rig.on_hosts(f"[ $(hostname) = {rig.names(count)[-1]} ] || rmdir {place}", count), "rmdir")
        end, stdout = end_of(contender, rig.env)
        if end.code == 0:
            raise Failed(f"{contender.name} ended with 0 though its command failed on a host\n{stdout}{end.stderr}")
        all_well(rig.on_hosts(f"rmdir {place}", count), f"{contender.name} lost other hosts by one's failure")


def measure(rig: Rig) -> Report:
    figures: dict[int, dict[str, list[Spent]]] = {}
    for count in rig.counts:
        say(f"exec: {count} hosts")
        prove(rig, count)
        figures[count] = spend_in_turns(contenders(rig, count, ("true",)), rig.runs, rig.env, PAUSE)
    header = ("wall s / client CPU s (x the bare pool's wall)", *(f"N={count}" for count in rig.counts))
    goals = []
    if AIM_HOSTS in figures:
        reached = walls_ratio(figures[AIM_HOSTS], OURS, BARE)
        goals.append(
            Goal(
                f"≤ {AIM_RATIO}x the bare pool with its default socket at {AIM_HOSTS} hosts",
                f"{reached:.2f}x",
                reached <= AIM_RATIO,
            )
        )
    notes = left_out(name for name in ("pdsh", "clush", "ansible", "pyinfra") if rig.peers[name] is None)
    return Report(rig.runs, header, table(figures.values(), BARE), tuple(goals), notes)
