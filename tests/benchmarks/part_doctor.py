"""`doctor --no-network` on one host and on many, beside who else gathers facts; and its rules on 256 answers."""

from __future__ import annotations

import contextlib
import io
import statistics
import sys
import time
from pathlib import Path

from ipexctl.doctor.context import HostContext
from ipexctl.doctor.finding import DoctorReport, HostReport, merge_findings, worst
from ipexctl.doctor.recommend import recommend
from ipexctl.doctor.rules import examine_cluster, examine_host
from ipexctl.facts.facts import parse
from ipexctl.hosts.host import Host
from ipexctl.stack.catalog.table import rows
from ipexctl.stack.choice import choose_stack
from ipexctl.stack.resolve.model import StackRequest
from ipexctl.ui.doctor import show_doctor

from .harness import Contender, Spent, say, spend_in_turns, table, walls_ratio
from .peer_calls import ansible, bare_pool, pyinfra
from .report import Goal, Report
from .rig import Rig, ipexctl

OURS, BARE, SETUP = "ipexctl doctor --no-network", "bare paramiko pool, cat /proc/cpuinfo", "ansible -m setup -f 32"
SIMULATED = 256
AIM_RATIO, AIM_RULES = 1.5, 0.2
PAUSE = 0.3


def contenders(rig: Rig, count: int) -> list[Contender]:
    facts = ("hardware.Cpus", "hardware.Memory", "server.LinuxDistribution", "server.Kernel")
    found = (
        ipexctl(OURS, "doctor", "--no-network", *rig.where(count)),
        bare_pool(rig, BARE, count, "cat /proc/cpuinfo"),
        ansible(rig, SETUP, count, "setup", ANSIBLE_PIPELINING="True"),
        pyinfra(rig, "pyinfra fact (4 facts)", count, "fact", *facts),
    )
    return [contender for contender in found if contender]


def rules_and_rendering() -> float:
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


def measure(rig: Rig) -> Report:
    figures: dict[int, dict[str, list[Spent]]] = {}
    for count in rig.counts:
        say(f"doctor: {count} hosts")
        figures[count] = spend_in_turns(contenders(rig, count), rig.runs, rig.env, PAUSE)
    header = ("wall s / client CPU s (x the bare pool's wall)", *(f"N={count}" for count in rig.counts))
    goals = []
    most = max(rig.counts)
    reached = walls_ratio(figures[most], OURS, BARE)
    goals.append(Goal(f"≤ {AIM_RATIO}x the bare pool at {most} hosts", f"{reached:.2f}x", reached <= AIM_RATIO))
    if SETUP in figures[most]:
        times = walls_ratio(figures[most], SETUP, OURS)
        goals.append(Goal(f"≥ 8x faster than ansible setup at {most} hosts", f"{times:.1f}x", times >= 8))
    rules = statistics.median(rules_and_rendering() for _ in range(rig.runs))
    aim = f"≤ {AIM_RULES} s for rules and rendering of {SIMULATED} answers"
    goals.append(Goal(aim, f"{rules:.2f} s", rules <= AIM_RULES))
    return Report(rig.runs, header, table(figures.values(), BARE), tuple(goals))
