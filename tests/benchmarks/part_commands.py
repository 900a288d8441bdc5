"""`exec`, `doctor` and `play` as whole processes, connecting included, on one host and on many, beside other tools."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from ipexctl.commands.doctor_command import show_doctor
from ipexctl.doctor.doctor_run import examine_cluster, examine_host
from ipexctl.doctor.finding import DoctorReport, HostContext, HostReport, merge_findings, recommend, worst
from ipexctl.facts.facts import parse
from ipexctl.hosts.host import Host
from ipexctl.stack.catalog import rows
from ipexctl.stack.choice import choose_stack
from ipexctl.stack.resolve.model import StackRequest

from .harness import Contender, Failed, Spent, end_of, in_turns, say, spend, spend_in_turns, table, walls_ratio
from .peer_calls import ansible, bare_pool, playbook, pyinfra
from .report import Goal, Report, left_out
from .rig import CONTENDERS, Rig, all_well, ipexctl

EXEC, POOL = "ipexctl exec", "bare paramiko pool"
DOCTOR, SETUP = "ipexctl doctor --no-network", "ansible -m setup -f 32"
POOL_OF_DOCTOR = "bare paramiko pool, cat /proc/cpuinfo"
PLAY, PLAYBOOK = "ipexctl play", "ansible-playbook, pipelining, 32 forks"
AIM_EXEC_HOSTS, AIM_EXEC = 32, 1.0
AIM_DOCTOR, AIM_SETUP, AIM_RULES = 1.5, 8, 0.2
AIM_PLAY = 5.0
SIMULATED = 256
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
    rig: Rig, figures: Columns, beside: str, who: str, goals: tuple[Goal, ...], notes: tuple[str, ...] = ()
) -> Report:
    header = (f"wall s / client CPU s (x {who} wall)", *(f"N={count}" for count in rig.counts))
    return Report(rig.runs, header, table(figures.values(), beside), goals, notes)


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
    return _report(rig, figures, POOL, "the bare pool's", goals, notes)


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


def _rules_and_rendering() -> float:
    """Seconds for parsing, all rules and the table over recorded answers, as if so many hosts had given them."""
    sys.path.append(str(Path(__file__).parents[1]))
    from recorded_probes import NAMES, recorded

    texts = [recorded(name) for name in NAMES]
    answers = [parse(texts[number % len(texts)]) for number in range(SIMULATED)]
    hosts = [Host(f"node{number}", f"10.0.{number // 250}.{number % 250 + 1}") for number in range(SIMULATED)]
    names = tuple(host.name for host in hosts)
    started = time.perf_counter()
    nodes = [HostContext(host, facts, peers=names) for host, facts in zip(hosts, answers, strict=True)]
    each = [examine_host(node) for node in nodes]
    cluster = merge_findings(examine_cluster(nodes))
    reports = tuple(
        HostReport(host, "fail" if worst(findings) == "fail" else "ok", 0.1, facts, findings)
        for host, facts, findings in zip(hosts, answers, each, strict=True)
    )
    by_name = {host.name: facts for host, facts in zip(hosts, answers, strict=True)}
    advice = recommend(by_name, {}, choose_stack(StackRequest(), by_name, rows()))
    with contextlib.redirect_stdout(io.StringIO()):
        show_doctor(DoctorReport(reports, cluster, advice, 1.0), quiet=False, verbose=False, no_color=True)
    return time.perf_counter() - started


def measure_doctor(rig: Rig) -> Report:
    figures = _columns(
        rig, "doctor", lambda count: spend_in_turns(_doctor_contenders(rig, count), rig.runs, rig.env, PAUSE)
    )
    most = max(rig.counts)
    reached = walls_ratio(figures[most], DOCTOR, POOL_OF_DOCTOR)
    goals = [Goal(f"≤ {AIM_DOCTOR}x the bare pool at {most} hosts", f"{reached:.2f}x", reached <= AIM_DOCTOR)]
    if SETUP in figures[most]:
        times = walls_ratio(figures[most], SETUP, DOCTOR)
        aim = f"≥ {AIM_SETUP}x faster than ansible setup at {most} hosts"
        goals.append(Goal(aim, f"{times:.1f}x", times >= AIM_SETUP))
    rules = statistics.median(_rules_and_rendering() for _ in range(rig.runs))
    aim = f"≤ {AIM_RULES} s for rules and rendering of {SIMULATED} answers"
    goals.append(Goal(aim, f"{rules:.2f} s", rules <= AIM_RULES))
    return _report(rig, figures, POOL_OF_DOCTOR, "the bare pool's", tuple(goals))


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
        return _report(rig, figures, PLAY, "ipexctl's", (), left_out(["ansible"]))
    reached = walls_ratio(figures[most], PLAYBOOK, PLAY)
    aim = f"≥ {AIM_PLAY:g}x faster than ansible on {most} hosts"
    return _report(rig, figures, PLAY, "ipexctl's", (Goal(aim, f"{reached:.1f}x", reached >= AIM_PLAY),))
