"""The runs alive on a host, of every account with visible processes there. Pure.

The evidence is a process: a supervisor, a rank wrapper, or the holder of the host lock while a run starts
(`run --exclusive`). Records of other accounts can't be read. Any account may start a process with any arguments, so ids
and names are validated.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from ipexctl.facts.answers import Answers, natural, read_answers
from ipexctl.facts.cpu import CpuList, parse_cpulist

TICKS: Final = 100
"""Kernel ticks per second in /proc, on every platform that torch supports."""
RUN_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}")
"""Valid run ids; an id is printed as part of a command."""
_ACCOUNT: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]{0,63}\$?")


class RunOnHost(NamedTuple):
    run: str
    uid: int
    account: str | None = None
    """None if the host doesn't know the account's name."""
    since: float | None = None
    """Start of its first program there, in seconds since 1970 by the host's clock."""
    cores: CpuList = CpuList()
    """Cores of its ranks there; empty if there are none yet or they are unknown."""
    is_starting: bool = False

    @property
    def owner(self) -> str:
        return self.account or f"uid {self.uid}"


class RunsOnHost(NamedTuple):
    runs: tuple[RunOnHost, ...] = ()
    hides_others: bool = False
    """True if /proc hides processes of other accounts (hidepid): their runs are unknown."""


class Look(NamedTuple):
    runs: RunsOnHost
    machine: str
    """The same for two names of one machine, in every call."""


class _Program(NamedTuple):
    pid: int
    kind: str
    run: str
    uid: int
    start: int


def parse_live_runs(answers: Answers) -> RunsOnHost:
    boot = natural(answers.first("run.boot"))
    names: dict[int, str] = {}
    for line in answers.all("run.account"):
        text, _, name = line.partition(" ")
        if (number := natural(text)) is not None and _ACCOUNT.fullmatch(name) and name != "UNKNOWN":
            names[number] = name
    cores: dict[int, set[int]] = {}
    for line in answers.all("run.cores"):
        pid, _, text = line.partition(" ")
        if (number := natural(pid)) is not None and (found := parse_cpulist(text)) is not None:
            cores.setdefault(number, set()).update(found)
    by_run: dict[tuple[int, str], list[_Program]] = {}
    for line in answers.all("run.program"):
        program = _program(line)
        if program is not None:
            by_run.setdefault((program.uid, program.run), []).append(program)
    runs = []
    for (uid, run), programs in by_run.items():
        running = [program for program in programs if program.kind != "lock"]
        start = min(program.start for program in running or programs)
        runs.append(
            RunOnHost(
                run,
                uid,
                names.get(uid),
                None if boot is None else boot + start / TICKS,
                CpuList.of(core for program in running for core in cores.get(program.pid, ())),
                not running,
            )
        )
    return RunsOnHost(tuple(sorted(runs)), "run.hidden" in answers)


def read_look(text: str) -> Look | None:
    answers = read_answers(text)
    return Look(parse_live_runs(answers), answers.first("machine") or "") if "looked" in answers else None


def _program(line: str) -> _Program | None:
    """`PID KIND RUN UID START`"""
    match line.split():
        case [pid, ("lock" | "rank" | "supervisor") as kind, run, uid, start] if RUN_ID.fullmatch(run):
            numbers = natural(pid), natural(uid), natural(start)
            match numbers:
                case (int(number), int(owner), int(ticks)):
                    return _Program(number, kind, run, owner, ticks)
    return None
