"""From `ipexctl run` to rank 0's first line and first optimizer step, beside mpiexec.hydra and torchrun by hand.

The project and the environment are there already: what is measured is the start. Processor time is that of this
machine's processes and of all the hosts' together, and doesn't suffer from what else the machine does.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ipexctl.addons.lab import lab_system

from .figures import median, ranged
from .harness import Contender, Failed, failure, in_turns, say, spend, started
from .part_train import TORCH
from .report import Goal, Report
from .rig import CONTENDERS, Rig, ipexctl, let_node0_in, write_project

HOSTS: Final = 2
OURS, BARE, TORCHRUN = "ipexctl run", "mpiexec.hydra by hand", "torchrun by hand, one ssh for each host"
AIM, AIM_CONNECTIONS = 0.5, 6
PAUSE: Final = 1.0
SCRIPT: Final = "first_step.py"
PHASES: Final = ("import torch", "the group", "the first batch", "the first step")
"""What the script does after its first line, in this order."""
PORT: Final = 29511
_FIRST: Final = b"first line of rank 0"
_TOOK: Final = b"rank 0 took "
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Start:
    """One start: when rank 0's line came, what followed, and the processor time and logins it took."""

    first: float
    phases: tuple[float, ...]
    """Seconds of each of PHASES."""
    here: float
    there: float
    logins: int

    @property
    def step(self) -> float:
        """When the first step was done."""
        return self.first + sum(self.phases)


def measure(rig: Rig) -> Report:
    where = rig.where(HOSTS)
    let_node0_in(rig, HOSTS)
    say(f"start: installing torch {TORCH} on {HOSTS} hosts")
    spend(ipexctl("preparation", "install", *where, "--stack", "torch", "--torch", TORCH), rig.env)
    project = write_project(rig.scratch / "start")
    script = project / SCRIPT
    script.write_bytes((CONTENDERS / SCRIPT).read_bytes())
    options = ("--ppn", 1, "--omp", 1, "--plain", "--cwd", project)
    ours = ipexctl(OURS, "run", *where, *options, script)
    _start(rig, ours)
    (tree,) = {line for _, line in rig.on_hosts("ls -d $HOME/.ipexctl/code/start-*", HOSTS)}
    contenders = {each.name: each for each in (ours, *_by_hand(rig, f"{tree}/{SCRIPT}"))}
    for contender in contenders.values():
        _start(rig, contender)
    figures = in_turns(list(contenders), rig.runs, lambda name: _start(rig, contenders[name]), PAUSE)
    return _report(rig.runs, figures)


def _by_hand(rig: Rig, script: str) -> tuple[Contender, Contender]:
    """As a person would type it whose key opens all hosts."""
    home, node0 = rig.lab.hosts[0].home, rig.addresses(1)[0]
    env = f"{home}/.ipexctl/envs/default"
    variables = f"OMP_NUM_THREADS=1 MASTER_ADDR={node0} MASTER_PORT={PORT} GLOO_SOCKET_IFNAME=eth0"
    words = f"{variables} PATH={env}/bin:$PATH I_MPI_ROOT={env} I_MPI_PIN=0 mpiexec.hydra -bootstrap ssh "
    words += f"-iface eth0 -hosts {','.join(rig.addresses(HOSTS))} -ppn 1 -n {HOSTS} "
    login = (str(rig.peers["ssh"]), "-F", str(rig.lab.ssh_config))
    bare = Contender(BARE, (*login, rig.names(1)[0], f"{words}{env}/bin/python {script}"))
    of_torch = f"{variables} {env}/bin/torchrun --nnodes {HOSTS} --nproc-per-node 1 --master-port {PORT} "
    of_torch += f"--master-addr {node0} --node-rank"
    lines = [f"{' '.join(login)} {name} '{of_torch} {at} {script}' &" for at, name in enumerate(rig.names(HOSTS))]
    return bare, Contender(TORCHRUN, ("sh", "-c", "\n".join([*lines, "wait"])))


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
    took = said.partition(_TOOK)[2].partition(b"\n")[0]
    if not first or not took or said.count(b"first line of rank") != HOSTS:
        raise Failed(f"{contender.name} showed other lines than its ranks': {said!r}")
    time.sleep(0.3)
    spent = spent_on_hosts(rig) - there
    found = Start(first, tuple(json.loads(took)), end.spent.cpu, spent, connections(rig) - logins)
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


def _report(runs: int, figures: Mapping[str, Sequence[Start]]) -> Report:
    rows = tuple(
        (
            name,
            ranged([each.first for each in starts], 2),
            *(f"{median([each.phases[at] for each in starts]):.2f}" for at in range(len(PHASES))),
            ranged([each.step for each in starts], 2),
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
    header = (f"{HOSTS} hosts, s", "first line", *PHASES, "all", "CPU here", "CPU of the hosts", "connections")
    return Report(runs, header, rows, goals)
