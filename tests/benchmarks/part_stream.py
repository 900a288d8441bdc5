"""One host that prints five million lines: how fast they come, and what is held of them meanwhile."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass

from ipexctl.node.common.frames import StreamName
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.command import Command
from ipexctl.remote.connector import ConnectOptions, Connector

from .contenders import bare_pool
from .figures import median
from .harness import Contender, Failed, failure, in_turns, say, started
from .part_step import host_of
from .processes import high_water
from .report import Goal, Report
from .rig import Rig, ipexctl

MILLION = 1_000_000
LINE = 100
MANY, FEW = 5 * MILLION, MILLION
CHANNEL, EXEC, SSH, BARE = "ipexctl Session.run", "ipexctl exec, to a pipe", "ssh, to a pipe", "paramiko recv"
SHORT = f"{EXEC}, {FEW // MILLION} M lines"
AIM_CHANNEL, AIM_EXEC, AIM_MB = 0.8, 0.3, 120


@dataclass(frozen=True, slots=True)
class Streamed:
    """One run; `peak` is the process's highest resident size in MB, unknown where it is our own."""

    lines: int
    wall: float
    cpu: float
    peak: float | None = None


def measure(rig: Rig) -> Report:
    say(f"stream: {MANY // MILLION} million lines")
    names = [CHANNEL, EXEC, SHORT, BARE]
    if rig.peers["ssh"]:
        names.append(SSH)
    figures = in_turns(names, rig.runs, lambda name: _streamed(rig, name))
    rows = tuple(_row(name, runs) for name, runs in figures.items())
    channel, through_exec = _rate(figures[CHANNEL]), _rate(figures[EXEC])
    peak = _peak(figures[EXEC]) or 0.0
    goals = (
        Goal(f"≥ {AIM_CHANNEL} M lines/s from the channel", f"{channel:.2f} M", channel >= AIM_CHANNEL),
        Goal(f"≥ {AIM_EXEC} M lines/s through exec to a pipe", f"{through_exec:.2f} M", through_exec >= AIM_EXEC),
        Goal(f"< {AIM_MB} MB while {MANY // MILLION} M lines stream", f"{peak:.0f} MB", peak < AIM_MB),
    )
    header = (f"{LINE}-byte lines of one host", "M lines", "M lines/s", "client CPU s a million", "peak RSS MB")
    return Report(rig.runs, header, rows, goals)


def _row(name: str, runs: list[Streamed]) -> tuple[str, ...]:
    lines = runs[0].lines / MILLION
    cpu = median([run.cpu for run in runs]) / lines
    peak = _peak(runs)
    return name, f"{lines:.0f}", f"{_rate(runs):.2f}", f"{cpu:.2f}", "" if peak is None else f"{peak:.0f}"


def _rate(runs: list[Streamed]) -> float:
    return median([run.lines / run.wall / MILLION for run in runs])


def _peak(runs: list[Streamed]) -> float | None:
    """The highest of all runs: a limit is a limit."""
    return max((run.peak for run in runs if run.peak is not None), default=None)


def _script(lines: int) -> str:
    return f"yes {'x' * (LINE - 1)} | head -c {lines * LINE}"


def _streamed(rig: Rig, name: str) -> Streamed:
    if name == CHANNEL:
        return _from_session(rig)
    if name == BARE:
        return _from_paramiko(rig)
    lines = FEW if name == SHORT else MANY
    contender = ipexctl(name, "exec", *rig.where(1), "--shell", _script(lines))
    if name == SSH:
        argv = (str(rig.peers["ssh"]), "-F", str(rig.lab.ssh_config), rig.names(1)[0], _script(lines))
        contender = Contender(name, argv)
    return _from_process(rig, contender, lines)


def _from_session(rig: Rig) -> Streamed:
    seen = 0

    def count(stream: StreamName, data: bytes) -> None:
        nonlocal seen
        if stream == "stdout":
            seen += data.count(b"\n")

    with Connector(ConnectOptions()) as connector:
        session = connector.open(host_of(rig), Cancel())
        try:
            begun, used = time.perf_counter(), time.process_time()
            ended = session.run(Command.shell(_script(MANY)), count)
            wall, cpu = time.perf_counter() - begun, time.process_time() - used
        finally:
            session.close()
    return _checked(CHANNEL, ended.code, Streamed(seen, wall, cpu), MANY)


def _from_paramiko(rig: Rig) -> Streamed:
    transport = bare_pool.connect(bare_pool.Way.read(*rig.login), rig.addresses(1)[0])
    try:
        seen, begun, used = 0, time.perf_counter(), time.process_time()
        with transport.open_session() as channel:
            channel.exec_command(_script(MANY))
            while data := channel.recv(1 << 20):
                seen += data.count(b"\n")
            code = channel.recv_exit_status()
        wall, cpu = time.perf_counter() - begun, time.process_time() - used
    finally:
        transport.close()
    return _checked(BARE, code, Streamed(seen, wall, cpu), MANY)


def _from_process(rig: Rig, contender: Contender, lines: int) -> Streamed:
    seen, peak, looked = 0, 0.0, 0.0
    with started(contender, rig.env, subprocess.PIPE) as (process, wait):
        assert process.stdout is not None
        while data := os.read(process.stdout.fileno(), 1 << 20):
            seen += data.count(b"\n")
            if (now := time.monotonic()) - looked > 0.02:
                peak, looked = max(peak, high_water(process.pid)), now
        end = wait()
    if end.code != 0:
        raise failure(contender, end)
    return _checked(contender.name, 0, Streamed(seen, end.spent.wall, end.spent.cpu, peak), lines)


def _checked(name: str, code: int, run: Streamed, lines: int) -> Streamed:
    if code != 0 or run.lines != lines:
        raise Failed(f"{name}: {run.lines} lines of {lines}, exit code {code}")
    return run
