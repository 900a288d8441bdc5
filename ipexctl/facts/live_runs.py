"""The runs that are alive on a host, of every account whose processes are visible there. Pure.

In: lines of the probe's part `runs.sh`, or of a look at the host alone; out: a frozen `RunsOnHost`. The evidence is a
process: a supervisor or a rank wrapper (then the run is running), or one that holds the host for a call that is
starting a run (`run --exclusive`). Records are no evidence here, as those of other accounts can't be read. Ids and
names are matched before they count, because any account may start a process with any words.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from ipexctl.facts.answers import decimal, natural, read_answers
from ipexctl.facts.cpu import CpuList, parse_cpulist
from ipexctl.limits import CLAIM_VALID

if TYPE_CHECKING:
    from ipexctl.facts.answers import Answers

TICKS: Final = 100
"""Kernel ticks of a second in /proc, on every platform that torch runs on."""
RUN_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}")
"""Valid ids of runs: an id is printed as part of a command."""
_ACCOUNT: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]{0,63}\$?")


class RunOnHost(NamedTuple):
    """One run, or one call that is starting it."""

    run: str
    uid: int
    account: str | None = None
    """None: the name of the account is not known on the host."""
    since: float | None = None
    """When its first program there has started, in seconds since 1970 by the host's clock."""
    cores: CpuList = CpuList()
    """Of its ranks there; empty: it has none yet, or they are not known."""
    claimed: int | None = None
    """The time of the claim by the clock of its call, if a call is still starting it; None: it is running."""

    @property
    def owner(self) -> str:
        return self.account or f"uid {self.uid}"


class RunsOnHost(NamedTuple):
    """What one look at a host has shown."""

    runs: tuple[RunOnHost, ...] = ()
    hides_others: bool = False
    """/proc shows no processes of other accounts (hidepid): nothing is known about their runs."""


class _Program(NamedTuple):
    pid: int
    kind: str
    run: str
    stamp: int | None
    uid: int
    start: int


def parse_live_runs(answers: Answers) -> RunsOnHost:
    uptime = decimal((answers.words("run.uptime") or [""])[0])
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
        if program is not None and not _is_stale(program, uptime):
            by_run.setdefault((program.uid, program.run), []).append(program)
    runs = []
    for (uid, run), programs in by_run.items():
        running = [program for program in programs if program.kind != "claim"]
        stamps = [program.stamp for program in programs if program.stamp is not None]
        start = min(program.start for program in running or programs)
        runs.append(
            RunOnHost(
                run,
                uid,
                names.get(uid),
                None if boot is None else boot + start / TICKS,
                CpuList.of(core for program in running for core in cores.get(program.pid, ())),
                None if running else min(stamps, default=0),
            )
        )
    return RunsOnHost(tuple(sorted(runs)), "run.hidden" in answers)


def read_look(text: str) -> RunsOnHost | None:
    """The answer to a look at the host alone; None if its end is missing."""
    answers = read_answers(text)
    return parse_live_runs(answers) if "looked" in answers else None


def _is_stale(program: _Program, uptime: float | None) -> bool:
    return program.kind == "claim" and uptime is not None and uptime - program.start / TICKS > CLAIM_VALID


def _program(line: str) -> _Program | None:
    """`PID KIND RUN STAMP UID START`"""
    match line.split():
        case [pid, ("claim" | "rank" | "supervisor") as kind, run, stamp, uid, start] if RUN_ID.fullmatch(run):
            numbers = natural(pid), natural(uid), natural(start)
            match numbers:
                case (int(number), int(owner), int(ticks)):
                    return _Program(number, kind, run, natural(stamp), owner, ticks)
    return None
