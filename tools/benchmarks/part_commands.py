"""`exec`, `doctor` and `play` as whole processes, connecting included, on one host and on many, beside other tools."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from functools import partial

from ipexctl.text import format_count

from .harness import (
    TIMES,
    Contender,
    Failed,
    Spent,
    end_of,
    in_turns,
    say,
    spend,
    spend_in_turns,
    table,
    walls_ratio,
)
from .peer_calls import ansible, bare_pool, playbook, pyinfra
from .report import Goal, Report, left_out
from .rig import CONTENDERS, Rig, all_well, ipexctl

EXEC, POOL = "ipexctl exec", "bare paramiko pool"
DOCTOR, SETUP = "ipexctl doctor --no-network", "ansible -m setup -f 32"
POOL_OF_DOCTOR = "bare paramiko pool, cat /proc/cpuinfo"
PLAY, PLAYBOOK = "ipexctl play", "ansible-playbook, pipelining, 32 forks"
AIM_EXEC_HOSTS, AIM_EXEC = 32, 1.0
AIM_DOCTOR, AIM_SETUP = 1.5, 0.125
AIM_PLAY = 0.2
PAUSE = 0.3
"""Seconds between two runs, for the servers of the last one to be gone."""
Columns = Mapping[int, Mapping[str, list[Spent]]]
"""Number of hosts → contender → its runs."""


def _columns(rig: Rig, what: str, measure: Callable[[int], dict[str, list[Spent]]]) -> Columns:
    figures = {}
    for count in rig.counts:
        say(f"{what}: {count} hosts")
        figures[count] = measure(count)
    return figures


def _report(
    rig: Rig, figures: Columns, ours: str, goals: tuple[Goal, ...], notes: tuple[str, ...] = (), pool: str = ""
) -> Report:
    """`pool`: the row of the bare pool."""
    header = (TIMES, *(format_count(count, "host") for count in rig.counts))
    return Report(rig.runs, header, table(figures.values(), ours), goals, notes, frozenset((pool,)))


# exec


def _exec_contenders(rig: Rig, count: int, words: tuple[str, ...]) -> list[Contender]:
    """Everyone there is, told to run the same words on the same hosts with the same key, keys checked."""
    names, config, line = ",".join(rig.names(count)), f"-F {rig.lab.ssh_config}", " ".join(words)
    found: list[Contender | None] = [
        ipexctl(EXEC, "exec", "-f", "32", *rig.where(count), "--", *words),
        bare_pool(rig, POOL, count, line),
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


def _prove(rig: Rig, count: int) -> None:
    """Before anything is timed: everyone reaches all hosts, and one host's failure shows in the exit code.

    The command is a mkdir; then the directory is removed again on all hosts but the last, where it now must fail.
    """
    for number in range(len(_exec_contenders(rig, count, ("true",)))):
        place = f"/tmp/bench-{os.getpid()}-{count}-{number}"
        contender = _exec_contenders(rig, count, ("mkdir", place))[number]
        spend(contender, rig.env)
        all_well(rig.on_hosts(f"[ -d {place} ]", count), f"{contender.name} did not run its command everywhere")
        all_well(rig.on_hosts(f"[ $(hostname) = {rig.names(count)[-1]} ] || rmdir {place}", count), "rmdir")
        end, stdout = end_of(contender, rig.env)
        if end.code == 0:
            raise Failed(f"{contender.name} ended with 0 though its command failed on a host\n{stdout}{end.stderr}")
        all_well(rig.on_hosts(f"rmdir {place}", count), f"{contender.name} lost other hosts by one's failure")


def measure_exec(rig: Rig) -> Report:
    def on_hosts(count: int) -> dict[str, list[Spent]]:
        _prove(rig, count)
        return spend_in_turns(_exec_contenders(rig, count, ("true",)), rig.runs, rig.env, PAUSE)

    figures = _columns(rig, "exec", on_hosts)
    goals: tuple[Goal, ...] = ()
    if AIM_EXEC_HOSTS in figures:
        reached = walls_ratio(figures[AIM_EXEC_HOSTS], EXEC, POOL)
        aim = f"≤ {AIM_EXEC}x the bare pool with its default socket at {AIM_EXEC_HOSTS} hosts"
        goals = (Goal(aim, f"{reached:.2f}x", reached <= AIM_EXEC),)
    notes = left_out(name for name in ("pdsh", "clush", "ansible", "pyinfra") if rig.peers[name] is None)
    return _report(rig, figures, EXEC, goals, notes, POOL)


# doctor


def _doctor_contenders(rig: Rig, count: int) -> list[Contender]:
    facts = ("hardware.Cpus", "hardware.Memory", "server.LinuxDistribution", "server.Kernel")
    found = (
        ipexctl(DOCTOR, "doctor", "--no-network", *rig.where(count)),
        bare_pool(rig, POOL_OF_DOCTOR, count, "cat /proc/cpuinfo"),
        ansible(rig, SETUP, count, "setup", ANSIBLE_PIPELINING="True"),
        pyinfra(rig, "pyinfra fact (4 facts)", count, "fact", *facts),
    )
    return [contender for contender in found if contender]


def measure_doctor(rig: Rig) -> Report:
    figures = _columns(
        rig, "doctor", lambda count: spend_in_turns(_doctor_contenders(rig, count), rig.runs, rig.env, PAUSE)
    )
    most = max(rig.counts)
    reached = walls_ratio(figures[most], DOCTOR, POOL_OF_DOCTOR)
    goals = [Goal(f"≤ {AIM_DOCTOR}x the bare pool at {most} hosts", f"{reached:.2f}x", reached <= AIM_DOCTOR)]
    if SETUP in figures[most]:
        reached = walls_ratio(figures[most], DOCTOR, SETUP)
        goals.append(Goal(f"≤ {AIM_SETUP}x setup at {most} hosts", f"{reached:.2f}x", reached <= AIM_SETUP))
    return _report(rig, figures, DOCTOR, tuple(goals), pool=POOL_OF_DOCTOR)


# play: one file for both tools


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


def measure_play(rig: Rig) -> Report:
    brought = rig.scratch / "brought"

    def on_hosts(count: int) -> dict[str, list[Spent]]:
        words = ("play", CONTENDERS / "play.yml", "-f", "32", *rig.where(count), "-e", f"brought={brought}")
        by_name = {PLAY: ipexctl(PLAY, *words)}
        if rig.peers["ansible"]:
            by_name[PLAYBOOK] = playbook(rig, PLAYBOOK, "play.yml", {"brought": str(brought)}, count)
        for name in by_name:
            _played(rig, by_name, count, name)  # unmeasured: bytecode is compiled
        return in_turns(list(by_name), rig.runs, partial(_played, rig, by_name, count), PAUSE)

    figures, most = _columns(rig, "play", on_hosts), max(rig.counts)
    if PLAYBOOK not in figures[most]:
        raise Failed("ansible is what play is measured beside")
    reached = walls_ratio(figures[most], PLAY, PLAYBOOK)
    goal = Goal(f"≤ {AIM_PLAY:g}x ansible on {most} hosts", f"{reached:.2f}x", reached <= AIM_PLAY)
    return _report(rig, figures, PLAY, (goal,))
