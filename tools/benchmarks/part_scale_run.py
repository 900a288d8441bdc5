"""Runs on many hosts: their start beside `mpiexec.hydra` and torchrun by hand, and what is asked of one while it lives.

The hosts share a home, for torchrun with the real torch, and a script that imports nothing prints a line in each rank.
Processor time of hosts is that of all their processes. sshd's part of it: each login costs what one with `true` does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ipexctl.extras.lab import lab_system
from ipexctl.extras.lab.faults import break_host

from .figures import fit_line, median
from .harness import Contender, Failed, failure, good_end_of, in_turns, say, spend, started
from .part_start import connections, spent_on_hosts
from .part_train import TORCH
from .processes import SupervisorWatch, Usage
from .report import Goal, Report
from .rig import Rig, ipexctl, laboratory, prepare, write_project
from .wheelhouse import install_mpi

DIRECT, MPIRUN = "ipexctl run --launcher direct", "ipexctl run --launcher mpirun"
HYDRA, TORCHRUN = "mpiexec.hydra by hand", "torchrun by hand, one ssh for each host"
AIM_CPU: Final = 8.0
"""Milliseconds on the control machine for each host."""
AIM_SQUARE: Final = 1.5
"""A host may cost this much more among the most hosts than among fewer: by the square it would be twice as much."""
LOST: Final = 4
"""Hosts cut off at once."""
VIEW_SECONDS: Final = 5.0
_SCRIPT: Final = """\
import os, sys, time
rank = os.environ.get("RANK") or os.environ["PMI_RANK"]
os.write(1, f"first line of rank {rank} in attempt {os.environ.get('RESTART_COUNT', '0')}\\n".encode())
if "IPEXCTL_RUN_DIR" in os.environ:
    open(os.path.join(os.environ["IPEXCTL_RUN_DIR"], f"result-{rank}"), "w").write(rank)
for step in range(int(sys.argv[1])):
    time.sleep(1)
    print("step", step, "loss", 1 / (step + 1), flush=True)
"""
_FIRST: Final = b"first line of rank 0 "


@dataclass(frozen=True, slots=True)
class Start:
    first: float
    wall: float
    here: float
    """Seconds of processor, of the control machine."""
    there: float
    """The same of all hosts."""
    supervisor: float
    size: float
    """MB on the control machine at most."""
    logins: int
    """Of all accounts on all hosts."""
    connections: int
    """All that the hosts took: logins, and those of starters and ranks to node0."""


@contextmanager
def _prepared(rig: Rig, *, has_torchrun: bool) -> Iterator[tuple[Rig, Path]]:
    """A lab with a shared home, an environment and the script."""
    most = max(rig.counts)
    with laboratory(most, shared_home=True) as lab:
        shared = replace(rig, lab=lab)
        prepare(shared, "trust", *shared.where(most))
        if has_torchrun:
            say(f"installing torch {TORCH} into the shared home")
            words = ("install", *shared.where(1), "--stack", "torch", "--torch", TORCH)
            spend(ipexctl("preparation", *words), shared.env)
        else:
            install_mpi(shared, *shared.where(1))
        project = write_project(rig.scratch / f"project-{os.getpid()}-{time.monotonic_ns()}")
        (project / "first.py").write_text(_SCRIPT)
        yield shared, project


def measure_start(rig: Rig) -> Report:
    figures: dict[int, dict[str, list[Start]]] = {}
    with _prepared(rig, has_torchrun=True) as (shared, project):
        login = _login_cost(shared)
        for count in rig.counts:
            contenders = _contenders(shared, project, count)
            for name, contender in contenders.items():
                if name != TORCHRUN or not figures:  # each import of torch takes seconds
                    _start(shared, contender, count)  # unmeasured: bytecode is compiled, connections are checked
            figures[count] = in_turns(
                list(contenders),
                rig.runs,
                lambda name, contenders=contenders, count=count: _start(shared, contenders[name], count),  # type: ignore[misc]
            )
    return _start_report(rig.runs, figures, login)


def _contenders(rig: Rig, project: Path, count: int) -> dict[str, Contender]:
    options = (*rig.where(count), "--ppn", 1, "--plain", "--backend", "gloo", "--omp", 1, "--cwd", project)
    found = {
        name: ipexctl(name, "run", "--launcher", name.rpartition(" ")[2], *options, project / "first.py", 0)
        for name in (DIRECT, MPIRUN)
    }
    _start(rig, found[DIRECT], count)  # it sends the project
    home = rig.lab.hosts[0].home
    ((_, tree),) = rig.on_hosts("ls -td $HOME/.ipexctl/code/project-* | head -n 1", 1)
    env, ssh, script = f"{home}/.ipexctl/envs/default", f"{home}/bare-ssh", f"{tree}/first.py 0"
    text = f"#!/bin/sh\\nexec ssh -F {home}/.ipexctl/ssh/config"
    rig.on_hosts(f"printf '{text} \"$@\"\\n' >{ssh}; chmod 755 {ssh}", 1)
    words = f"PATH={env}/bin:$PATH I_MPI_ROOT={env} I_MPI_PIN=0 mpiexec.hydra -bootstrap ssh -bootstrap-exec {ssh} "
    words += f"-branch-count {count} -iface eth0 -hosts {','.join(rig.addresses(count))} -ppn 1 -n {count} "
    login = f"{rig.peers['ssh']} -F {rig.lab.ssh_config}"
    found[HYDRA] = Contender(HYDRA, ("sh", "-c", f"exec {login} {rig.names(1)[0]} '{words}{env}/bin/python {script}'"))
    of_torch = f"OMP_NUM_THREADS=1 {env}/bin/torchrun --nnodes {count} --nproc-per-node 1 --master-port 29511 "
    of_torch += f"--master-addr {rig.addresses(1)[0]} --node-rank"
    lines = [f"{login} {name} '{of_torch} {at} {script}' &" for at, name in enumerate(rig.names(count))]
    found[TORCHRUN] = Contender(TORCHRUN, ("sh", "-c", "\n".join([*lines, "wait"])))
    return found


def _start(rig: Rig, contender: Contender, count: int) -> Start:
    said, first, usage = b"", 0.0, Usage()
    supervisor = SupervisorWatch(rig.lab.hosts[0].netns)
    taken, logins = connections(rig, count), _logins(rig, count)
    there, begun = spent_on_hosts(rig, count), time.perf_counter()
    with started(contender, rig.env, subprocess.PIPE) as (process, wait):
        assert process.stdout is not None
        while data := os.read(process.stdout.fileno(), 1 << 16):
            said += data
            if not first and _FIRST in said:
                first = time.perf_counter() - begun
            usage.update(process.pid)
            supervisor.look()
        end = wait()
    if end.code != 0 or not first or said.count(b"first line of rank") != count:
        raise failure(contender, end, said.decode(errors="replace"))
    time.sleep(0.5)
    found = Start(
        first,
        end.spent.wall,
        end.spent.cpu,
        spent_on_hosts(rig, count) - there,
        supervisor.usage.cpu,
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


def _login_cost(rig: Rig) -> float:
    """Seconds of a host's processor for a login that runs `true`."""
    count = max(rig.counts)
    rig.on_hosts("true", count)
    before = spent_on_hosts(rig, count)
    rig.on_hosts("true", count)
    time.sleep(0.5)
    return (spent_on_hosts(rig, count) - before) / count


def _start_report(runs: int, figures: dict[int, dict[str, list[Start]]], login: float) -> Report:
    rows = []
    for count, by_name in figures.items():
        for name, starts in by_name.items():
            middle = {field: median([getattr(start, field) for start in starts]) for field in Start.__slots__}
            cells = (middle["first"], middle["wall"], 1000 * middle["here"] / count)
            there = 1000 * middle["there"] / count
            sshd = 1000 * login * middle["logins"] / count
            rows.append((
                f"{count}: {name}", *(f"{cell:.2f}" for cell in cells[:2]), f"{cells[2]:.1f}", f"{there:.0f}",
                f"{sshd:.0f}", f"{1000 * middle['supervisor'] / count:.1f}" if middle["supervisor"] else "",
                f"{middle['size']:.0f}", f"{middle['logins']:.0f}", f"{middle['connections']:.0f}",
            ))  # fmt: skip
    header = (
        "hosts: contender, one rank each", "first line s", "whole call s", "CPU ms here a host",
        "CPU ms of a host", "sshd's part", "supervisor, CPU ms a rank", "MB here", "logins", "connections",
    )  # fmt: skip
    note = f"A login that runs `true` costs a host's sshd {1000 * login:.0f} ms; its part is that for each login."
    return Report(runs, header, tuple(rows), _start_goals(figures), (note,))


def _start_goals(figures: dict[int, dict[str, list[Start]]]) -> tuple[Goal, ...]:
    goals = []
    for name in (DIRECT, MPIRUN):
        here = {count: median([start.here for start in by_name[name]]) for count, by_name in figures.items()}
        if len(here) > 1:
            slope = 1000 * fit_line(here).slope
            goals.append(Goal(f"{name}: ≤ {AIM_CPU:g} ms of CPU here a host", f"{slope:.1f} ms", slope <= AIM_CPU))
        for field in ("first", "here", "there", "supervisor", "size", "logins", "connections"):
            values = {n: median([getattr(each, field) for each in by[name]]) for n, by in figures.items()}
            *_, fewer, most = [0, *sorted(values)]
            growth = values[most] / most / (values[fewer] / fewer) if fewer and values[fewer] else 0.0
            if growth > AIM_SQUARE:
                goals.append(Goal(f"{name}: {field} a host is constant", f"{growth:.1f}x", met=False))
    return tuple(goals)


def measure_life(rig: Rig) -> Report:
    count = max(rig.counts)
    rows: list[tuple[str, ...]] = []
    with _prepared(rig, has_torchrun=False) as (shared, project):
        where = shared.where(count)

        def call(name: str, *words: object) -> None:
            usage = Usage()
            spent, _ = good_end_of(ipexctl(name, *words), shared.env, usage.update)
            say(f"scale-life: {name}: {spent.wall:.2f} s, {spent.cpu:.2f} s of CPU, {usage}")
            rows.append((name, f"{spent.wall:.2f}", f"{spent.cpu:.2f}", f"{usage.size:.0f}"))

        options = ("--launcher", "direct", "--ppn", 1, "--backend", "gloo", "--omp", 1, "--min-hosts", count - LOST)
        more = ("--max-restarts", 1, "--detach", "--cwd", project)
        call("run --detach", "run", *where, *options, *more, project / "first.py", 600)
        rows.append(("attach --live in 80 x 24, for each second", *_live_view(shared)))
        for name, words in {
            "ps": ("ps",),
            "ps -H": ("ps", *where),
            "why": ("why", "last"),
            "logs, all lines": ("logs", "last"),
            "fetch, a file of each rank": ("fetch", "last", rig.scratch / f"fetched-{os.getpid()}"),
        }.items():
            call(name, *words)
        rows.append((f"{LOST} hosts lost at once: first line on the others", f"{_lose(shared, count):.2f}", "", ""))
        call("why, after the loss", "why", "last")
        call("stop", "stop", "last")
    return Report(1, (f"a run on {count} hosts", "wall s", "CPU s here", "MB here"), tuple(rows))


def _live_view(rig: Rig) -> tuple[str, str, str]:
    """Of a view that is attached and has shown all ranks."""
    sys.path.append(str(Path(__file__).parents[2] / "tests"))
    from terminals import TerminalProgram

    usage = Usage()
    program = TerminalProgram(ipexctl("", "attach", "last", "--live").argv, rig.env)
    try:
        if not program.until_seen(b"step"):
            raise Failed(f"the live view shows no line: {program.seen[-500:]!r}")
        usage.update(program.process.pid)
        before = usage.cpu
        program.until(lambda: False, VIEW_SECONDS)
        usage.update(program.process.pid)
        program.type(b"d")
        program.until_gone()
    finally:
        program.close()
    return "", f"{(usage.cpu - before) / VIEW_SECONDS:.3f}", f"{usage.size:.0f}"


def _lose(rig: Rig, count: int) -> float:
    """Seconds from the loss of the last hosts to a line of the next attempt."""
    with started(ipexctl("attach", "attach", "last", "--plain"), rig.env, subprocess.PIPE) as (process, _):
        assert process.stdout is not None
        said = b""
        while _FIRST not in said:
            said += _read(process.stdout.fileno())
        for host in rig.lab.hosts[count - LOST : count]:
            break_host(host, "link-down")
        begun = time.perf_counter()
        while b"in attempt 1" not in said:
            said = said[-100:] + _read(process.stdout.fileno())
        return time.perf_counter() - begun


def _read(descriptor: int) -> bytes:
    data = os.read(descriptor, 1 << 16)
    if not data:
        raise Failed("the run ended before its next attempt")
    return data
