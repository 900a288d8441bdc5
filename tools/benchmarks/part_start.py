"""From `ipexctl run` to rank 0's first line, beside a plain `ssh node0 mpiexec.hydra` of the same script.

The project is there already and so is the environment: what is measured is the start. Processor time is that of this
machine's processes and of all the hosts' together, and doesn't suffer from what else the machine does.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ipexctl.extras.lab import lab_system

from .figures import median
from .harness import Contender, Failed, failure, in_turns, say, started
from .report import Goal, Report
from .rig import Rig, ipexctl, prepare, write_project
from .wheelhouse import install_mpi

HOSTS: Final = 3
OURS, BARE, UNTUNED = "ipexctl run", "ssh node0 mpiexec.hydra", "the same, its ssh with OpenSSH's own choices"
AIM, AIM_CONNECTIONS = 0.5, 9
PAUSE: Final = 1.0
_SCRIPT: Final = """\
import os
print("first line of rank", os.environ["PMI_RANK"], flush=True)
"""
_FIRST: Final = b"first line of rank 0"
_OWN_CHOICES: Final = (
    "-o KexAlgorithms=sntrup761x25519-sha512@openssh.com -o Ciphers=chacha20-poly1305@openssh.com"  # of OpenSSH 9
)
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Start:
    """One start: when rank 0's line came, when all was over, and the processor time and logins it took."""

    first: float
    wall: float
    here: float
    there: float
    logins: int


def measure(rig: Rig) -> Report:
    where = rig.where(HOSTS)
    prepare(rig, "trust", *where)
    install_mpi(rig, *where)
    project = write_project(rig.scratch / "start")
    (project / "first.py").write_text(_SCRIPT)
    contenders = {OURS: ipexctl(OURS, "run", *where, "--ppn", 1, "--cwd", project, project / "first.py")}
    _start(rig, contenders[OURS])
    (tree,) = {line for _, line in rig.on_hosts("ls -d $HOME/.ipexctl/code/start-*", HOSTS)}
    for name, options in ((BARE, ""), (UNTUNED, _OWN_CHOICES)):
        contenders[name] = _by_hand(rig, name, f"{tree}/first.py", options)
    for contender in contenders.values():
        _start(rig, contender)
    figures = in_turns(list(contenders), rig.runs, lambda name: _start(rig, contenders[name]), PAUSE)
    return _report(rig.runs, figures)


def _by_hand(rig: Rig, name: str, script: str, ssh_options: str) -> Contender:
    """A plain mpirun over ssh, as a person would type it who has `ipexctl trust` for the logins."""
    home = rig.lab.hosts[0].home
    env, ssh = f"{home}/.ipexctl/envs/default", f"{home}/bare-{len(name)}"
    text = f"#!/bin/sh\\nexec ssh {ssh_options} -F {home}/.ipexctl/ssh/config"
    rig.on_hosts(f"printf '{text} \"$@\"\\n' >{ssh}; chmod 755 {ssh}", 1)
    words = f"PATH={env}/bin:$PATH I_MPI_ROOT={env} I_MPI_PIN=0 mpiexec.hydra -bootstrap ssh -bootstrap-exec {ssh} "
    words += f"-iface eth0 -hosts {','.join(rig.addresses(HOSTS))} -ppn 1 -n {HOSTS} {env}/bin/python {script}"
    return Contender(name, (str(rig.peers["ssh"]), "-F", str(rig.lab.ssh_config), rig.names(1)[0], words))


def _start(rig: Rig, contender: Contender) -> Start:
    said, first = b"", 0.0
    logins, there, begun = connections(rig), spent_on_hosts(rig), time.perf_counter()
    with started(contender, rig.env, subprocess.PIPE) as (process, wait):
        assert process.stdout is not None
        while data := os.read(process.stdout.fileno(), 1 << 16):
            said += data
            if not first and _FIRST in said:
                first = time.perf_counter() - begun
        end = wait()
    if end.code != 0:
        raise failure(contender, end, said.decode(errors="replace"))
    if not first or said.count(b"first line of rank") != HOSTS:
        raise Failed(f"{contender.name} showed other lines than its ranks': {said!r}")
    time.sleep(0.3)
    found = Start(first, end.spent.wall, end.spent.cpu, spent_on_hosts(rig) - there, connections(rig) - logins)
    say(f"start: {contender.name}: {found}")
    return found


def spent_on_hosts(rig: Rig, count: int = HOSTS) -> float:
    """Seconds of processor the hosts have used so far, those of processes that have ended among them."""
    ticks = 0
    for pids in lab_system.in_namespaces({host.netns for host in rig.lab.hosts[:count]}).values():
        for pid in pids:
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            ticks += sum(int(field) for field in fields[11:15])
    return ticks / _TICKS


def connections(rig: Rig, count: int = HOSTS) -> int:
    """Connections all the hosts' sshds have taken so far."""
    found = 0
    for host in rig.lab.hosts[:count]:
        pid = lab_system.init_of(host.netns)
        text = Path(f"/proc/{pid}/net/snmp").read_text()
        names, figures = (line.split() for line in re.findall(r"^Tcp: .*$", text, re.MULTILINE))
        found += int(figures[names.index("PassiveOpens")])
    return found


def _report(runs: int, figures: dict[str, list[Start]]) -> Report:
    rows = tuple(
        (
            name,
            f"{median([each.first for each in starts]):.2f}",
            f"{median([each.wall for each in starts]):.2f}",
            f"{median([each.here for each in starts]):.2f}",
            f"{median([each.there for each in starts]):.2f}",
            f"{median([each.logins for each in starts]):.0f}",
        )
        for name, starts in figures.items()
    )
    more = median([ours.first - bare.first for ours, bare in zip(figures[OURS], figures[BARE], strict=True)])
    logins = median([start.logins for start in figures[OURS]])
    goals = (
        Goal(f"rank 0's first line ≤ {AIM} s later than {BARE}'s", f"{more:.2f} s", more <= AIM),
        Goal(f"≤ {AIM_CONNECTIONS} connections", f"{logins:.0f}", logins <= AIM_CONNECTIONS),
    )
    header = (f"{HOSTS} hosts", "first line s", "whole call s", "CPU s here", "CPU s of the hosts", "connections")
    return Report(runs, header, rows, goals)
