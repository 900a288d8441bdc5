"""The start of a run on many hosts beside `mpiexec.hydra` by hand.

The hosts share a home, and a script that imports nothing prints a line in each rank. Processor time of hosts is that of
all their processes.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ipexctl.addons.lab import lab_system

from .figures import fit_line, median
from .harness import Contender, failure, in_turns, say, started
from .part_start import connections, spent_on_hosts
from .processes import Usage
from .report import Goal, Report
from .rig import Rig, ipexctl, laboratory, let_node0_in, write_project
from .wheelhouse import install_mpi

DIRECT, MPIRUN = "ipexctl run --launcher direct", "ipexctl run --launcher mpirun"
HYDRA: Final = "mpiexec.hydra by hand"
AIM_CPU: Final = 8.0
"""Milliseconds on the control machine for each host."""
AIM_SQUARE: Final = 1.5
"""A host may cost this much more among the most hosts than among fewer: by the square it would be twice as much."""
_SCRIPT: Final = """\
import os
os.write(1, f"first line of rank {os.environ.get('RANK') or os.environ['PMI_RANK']} \\n".encode())
"""
_FIRST: Final = b"first line of rank 0 "


@dataclass(frozen=True, slots=True)
class Start:
    first: float
    here: float
    """Seconds of processor, of the control machine."""
    there: float
    """The same of all hosts."""
    size: float
    """MB on the control machine at most."""
    logins: int
    """Of all accounts on all hosts."""
    connections: int
    """All that the hosts took: logins, and those of starters and ranks to node0."""


@contextmanager
def _prepared(rig: Rig) -> Iterator[tuple[Rig, Path]]:
    """A lab with a shared home, an environment and the script."""
    most = max(rig.counts)
    with laboratory(most, shared_home=True) as lab:
        shared = replace(rig, lab=lab)
        let_node0_in(shared, most)
        install_mpi(shared, *shared.where(1))
        project = write_project(rig.scratch / f"project-{os.getpid()}-{time.monotonic_ns()}")
        (project / "first.py").write_text(_SCRIPT)
        yield shared, project


def measure_start(rig: Rig) -> Report:
    figures: dict[int, dict[str, list[Start]]] = {}
    with _prepared(rig) as (shared, project):
        for count in rig.counts:
            contenders = _contenders(shared, project, count)
            for contender in contenders.values():
                _start(shared, contender, count)  # unmeasured: bytecode is compiled, connections are checked
            figures[count] = in_turns(
                list(contenders),
                rig.runs,
                lambda name, contenders=contenders, count=count: _start(shared, contenders[name], count),  # type: ignore[misc]
            )
    return _start_report(rig.runs, figures)


def _contenders(rig: Rig, project: Path, count: int) -> dict[str, Contender]:
    options = (*rig.where(count), "--ppn", 1, "--plain", "--backend", "gloo", "--omp", 1, "--cwd", project)
    found = {
        name: ipexctl(name, "run", "--launcher", name.rpartition(" ")[2], *options, project / "first.py")
        for name in (DIRECT, MPIRUN)
    }
    _start(rig, found[DIRECT], count)  # it sends the project
    home = rig.lab.hosts[0].home
    ((_, tree),) = rig.on_hosts("ls -td $HOME/.ipexctl/code/project-* | head -n 1", 1)
    env, script = f"{home}/.ipexctl/envs/default", f"{tree}/first.py"
    words = f"PATH={env}/bin:$PATH I_MPI_ROOT={env} I_MPI_PIN=0 mpiexec.hydra -bootstrap ssh "
    words += f"-branch-count {count} -iface eth0 -hosts {','.join(rig.addresses(count))} -ppn 1 -n {count} "
    login = f"{rig.peers['ssh']} -F {rig.lab.ssh_config}"
    found[HYDRA] = Contender(HYDRA, ("sh", "-c", f"exec {login} {rig.names(1)[0]} '{words}{env}/bin/python {script}'"))
    return found


def _start(rig: Rig, contender: Contender, count: int) -> Start:
    said, first, usage = b"", 0.0, Usage()
    taken, logins = connections(rig, count), _logins(rig, count)
    there, begun = spent_on_hosts(rig, count), time.perf_counter()
    with started(contender, rig.env, subprocess.PIPE) as (process, wait):
        assert process.stdout is not None
        while data := os.read(process.stdout.fileno(), 1 << 16):
            said += data
            if not first and _FIRST in said:
                first = time.perf_counter() - begun
            usage.update(process.pid)
        end = wait()
    if end.code != 0 or not first or said.count(b"first line of rank") != count:
        raise failure(contender, end, said.decode(errors="replace"))
    time.sleep(0.5)
    found = Start(
        first,
        end.spent.cpu,
        spent_on_hosts(rig, count) - there,
        usage.size,
        _logins(rig, count) - logins,
        connections(rig, count) - taken,
    )
    say(f"scale-start: {count} hosts, {contender.name}: {found}")
    return found


def _logins(rig: Rig, count: int) -> int:
    """Logins that the hosts' sshds have accepted so far."""
    inits = [lab_system.init_of(host.netns) for host in rig.lab.hosts[:count]]
    return sum(Path(f"/proc/{pid}/root/var/log/sshd.log").read_bytes().count(b"Accepted ") for pid in inits)


def _start_report(runs: int, figures: dict[int, dict[str, list[Start]]]) -> Report:
    rows = []
    for count, by_name in figures.items():
        for name, starts in by_name.items():
            middle = {field: median([getattr(start, field) for start in starts]) for field in Start.__slots__}
            here, there = (1000 * middle[place] / count for place in ("here", "there"))
            counts = (f"{middle[field]:.0f}" for field in ("size", "logins", "connections"))
            rows.append((f"{count}: {name}", f"{middle['first']:.2f}", f"{here:.1f}", f"{there:.0f}", *counts))
    header = (
        "hosts: contender, one rank each", "first line s", "CPU ms here a host", "CPU ms of a host",
        "MB here", "logins", "connections",
    )  # fmt: skip
    return Report(runs, header, tuple(rows), _start_goals(figures))


def _start_goals(figures: dict[int, dict[str, list[Start]]]) -> tuple[Goal, ...]:
    goals = []
    for name in (DIRECT, MPIRUN):
        here = {count: median([start.here for start in by_name[name]]) for count, by_name in figures.items()}
        if len(here) > 1:
            slope = 1000 * fit_line(here).slope
            goals.append(Goal(f"{name}: ≤ {AIM_CPU:g} ms of CPU here a host", f"{slope:.1f} ms", slope <= AIM_CPU))
        for field in ("first", "here", "there", "size", "logins", "connections"):
            values = {n: median([getattr(each, field) for each in by[name]]) for n, by in figures.items()}
            *_, fewer, most = [0, *sorted(values)]
            growth = values[most] / most / (values[fewer] / fewer) if fewer and values[fewer] else 0.0
            if growth > AIM_SQUARE:
                goals.append(Goal(f"{name}: {field} a host is constant", f"{growth:.1f}x", met=False))
    return tuple(goals)
