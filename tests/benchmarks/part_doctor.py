"""`doctor --no-network` on one host and on many, beside who else gathers facts; and its rules on 256 answers."""

from __future__ import annotations

import contextlib
import io
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

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

from .harness import Contender, cell, in_turns, say, spend, walls_ratio
from .report import Goal, Report
from .rig import CONTENDERS, ipexctl_argv

if TYPE_CHECKING:
    from .harness import Spent
    from .rig import Rig

OURS, BARE, SETUP = "ipexctl doctor --no-network", "bare paramiko pool, cat /proc/cpuinfo", "ansible -m setup -f 32"
SIMULATED = 256
AIM_RATIO, AIM_RULES = 1.5, 0.2
PAUSE = 0.3


def contenders(rig: Rig, count: int) -> list[Contender]:
    names, config = rig.names(count), str(rig.lab.ssh_config)
    bare: tuple[str, ...] = (sys.executable, str(CONTENDERS / "bare_pool.py"), *rig.login, "cat /proc/cpuinfo")
    found = [
        Contender(OURS, (*ipexctl_argv(), "doctor", "--no-network", "-H", str(rig.hostfile(count)))),
        Contender(BARE, (*bare, *rig.addresses(count))),
    ]
    if ansible := rig.peers["ansible"]:
        argv: tuple[str, ...] = (str(ansible), "all", "-i", ",".join(names) + ",", "-m", "setup", "-f", "32")
        settings = rig.scratch / "ansible.cfg"
        settings.touch()
        env = {"ANSIBLE_SSH_ARGS": f"-F {config}", "ANSIBLE_CONFIG": str(settings), "ANSIBLE_PIPELINING": "True"}
        found.append(Contender(SETUP, argv, env))
    if pyinfra := rig.peers["pyinfra"]:
        data = f"ssh_config_file={config} ssh_known_hosts_file={rig.lab.known_hosts} ssh_strict_host_key_checking=yes"
        options = [word for item in data.split() for word in ("--data", item)]
        hosts = ",".join(f"@ssh/{name}" for name in names)
        facts = ("hardware.Cpus", "hardware.Memory", "server.LinuxDistribution", "server.Kernel")
        argv = (str(pyinfra), "-y", "--parallel", "32", *options, hosts, "fact", *facts)
        found.append(Contender("pyinfra fact (4 facts)", argv))
    return found


def rules_and_rendering() -> float:
    """Seconds for parsing, all rules and the table over recorded answers, as if so many hosts had given them."""
    sys.path.append(str(Path(__file__).parents[1]))
    from recorded_probes import NAMES, recorded

    texts = [recorded(name) for name in NAMES]
    answers = [parse(texts[number % len(texts)]) for number in range(SIMULATED)]
    hosts = [Host(f"node{number}", f"10.0.{number // 250}.{number % 250 + 1}") for number in range(SIMULATED)]
    names = tuple(host.name for host in hosts)
    started = time.perf_counter()
    contexts = {host.name: HostContext(host.name, host.address, peers=names) for host in hosts}
    each = [examine_host(facts, contexts[host.name]) for host, facts in zip(hosts, answers, strict=True)]
    cluster = merge_findings(examine_cluster(list(zip(hosts, answers, strict=True)), contexts))
    reports = tuple(
        HostReport(host, "fail" if worst(findings) == "fail" else "ok", 0.1, facts, findings)
        for host, facts, findings in zip(hosts, answers, each, strict=True)
    )
    by_name = {host.name: facts for host, facts in zip(hosts, answers, strict=True)}
    advice = recommend(by_name, {}, choose_stack(StackRequest(), by_name, rows()))
    with contextlib.redirect_stdout(io.StringIO()):
        show_doctor(DoctorReport(reports, cluster, advice, 1.0), quiet=False, verbose=False, no_color=True)
    return time.perf_counter() - started


def _spent(rig: Rig, by_name: dict[str, Contender], name: str) -> Spent:
    return spend(by_name[name], rig.env)


def measure(rig: Rig) -> Report:
    figures: dict[int, dict[str, list[Spent]]] = {}
    for count in rig.counts:
        say(f"doctor: {count} hosts")
        by_name = {contender.name: contender for contender in contenders(rig, count)}
        figures[count] = in_turns(list(by_name), rig.runs, partial(_spent, rig, by_name), PAUSE)
    header = ("wall s / client CPU s (x the bare pool's wall)", *(f"N={count}" for count in rig.counts))
    names = list(figures[rig.counts[0]])
    rows = tuple((name, *(cell(figures[count], name, BARE) for count in rig.counts)) for name in names)
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
    return Report(rig.runs, header, rows, tuple(goals), ())
