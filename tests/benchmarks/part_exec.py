"""`exec -- true`, cold and as a whole process, on one host and on many, beside everybody else's."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import TYPE_CHECKING

from .harness import Contender, Failed, cell, end_of, in_turns, say, spend, walls_ratio
from .report import Goal, Report
from .rig import CONTENDERS, all_well, ipexctl_argv

if TYPE_CHECKING:
    from .harness import Spent
    from .rig import Rig

OURS, BARE = "ipexctl exec", "bare paramiko pool"
AIM_HOSTS, AIM_RATIO = 32, 1.0
PAUSE = 0.3
"""Seconds between two runs, for the servers of the last one to be gone."""


def contenders(rig: Rig, count: int, words: tuple[str, ...]) -> list[Contender]:
    """Everyone there is, told to run the same words on the same hosts with the same key, keys checked."""
    names, config = rig.names(count), str(rig.lab.ssh_config)
    found = [
        Contender(OURS, (*ipexctl_argv(), "exec", "-f", "32", "-H", str(rig.hostfile(count)), "--", *words)),
        Contender(
            BARE,
            (sys.executable, str(CONTENDERS / "bare_pool.py"), *rig.login, " ".join(words), *rig.addresses(count)),
        ),
    ]
    if pdsh := rig.peers["pdsh"]:
        argv = (str(pdsh), "-R", "ssh", "-S", "-f", "32", "-w", ",".join(names), *words)
        found.append(Contender("pdsh -R ssh -f 32", argv, {"PDSH_SSH_ARGS_APPEND": f"-F {config}"}))
    if clush := rig.peers["clush"]:
        argv = (str(clush), "-f", "32", "-S", "-o", f"-F {config}", "-w", ",".join(names), *words)
        found.append(Contender("clush -f 32", argv))
    if ansible := rig.peers["ansible"]:
        argv = (str(ansible), "all", "-i", ",".join(names) + ",", "-m", "raw", "-f", "32", "-a", " ".join(words))
        # No ControlPersist, which Ansible asks for by default: from the second run on it would not be cold.
        settings = rig.scratch / "ansible.cfg"
        settings.touch()
        env = {"ANSIBLE_SSH_ARGS": f"-F {config}", "ANSIBLE_CONFIG": str(settings)}
        found.append(Contender("ansible -m raw -f 32", argv, env))
    if pyinfra := rig.peers["pyinfra"]:
        known = rig.lab.known_hosts
        data = f"ssh_config_file={config} ssh_known_hosts_file={known} ssh_strict_host_key_checking=yes"
        hosts = ",".join(f"@ssh/{name}" for name in names)  # one bare name alone would be taken for a file
        options = [word for item in data.split() for word in ("--data", item)]
        argv = (str(pyinfra), "-y", "--parallel", "32", *options, hosts, "exec", "--", *words)
        found.append(Contender("pyinfra exec", argv))
    return found


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


def _spent(rig: Rig, by_name: dict[str, Contender], name: str) -> Spent:
    return spend(by_name[name], rig.env)


def measure(rig: Rig) -> Report:
    figures: dict[int, dict[str, list[Spent]]] = {}
    for count in rig.counts:
        say(f"exec: {count} hosts")
        prove(rig, count)
        by_name = {contender.name: contender for contender in contenders(rig, count, ("true",))}
        figures[count] = in_turns(list(by_name), rig.runs, partial(_spent, rig, by_name), PAUSE)
    names = list(figures[rig.counts[0]])
    header = ("wall s / client CPU s (x the bare pool's wall)", *(f"N={count}" for count in rig.counts))
    rows = tuple((name, *(cell(figures[count], name, BARE) for count in rig.counts)) for name in names)
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
    missing = [name for name in ("pdsh", "clush", "ansible", "pyinfra") if rig.peers[name] is None]
    notes = (f"Left out, not installed here: {', '.join(missing)}.",) if missing else ()
    return Report(rig.runs, header, rows, tuple(goals), notes)
