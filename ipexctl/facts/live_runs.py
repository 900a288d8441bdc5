"""Parse which runs are alive on a host, and which calls wait for it, for every account whose processes are visible
there. Nothing here touches a host. The evidence is always a process: a supervisor, a rank wrapper, the holder of the
host lock while a run starts (`run --exclusive`), or a call that waits in the host's queue (`run --wait`). Any account
may start a process with any arguments, so ids and names are validated.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from ipexctl.facts.cpu import CpuList, parse_cpulist
from ipexctl.facts.probe import Answers, natural, read_answers
from ipexctl.node.common.json_records import parse_object
from ipexctl.node.common.plan import RunBy

TICKS: Final = 100
"""Kernel ticks per second in /proc, on every platform that torch supports."""
RUN_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}")
_LONGEST_TIME_LIMIT: Final = 366 * 86400
"""Seconds; longer time limits are shortened to this."""
_LONGEST_NAME: Final = 80
_ACCOUNT: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]{0,63}\$?")


class CallDetails(NamedTuple):
    """What a call says about itself to its own account."""

    by: RunBy | None = None
    script: str = ""
    tag: str = ""


NO_DETAILS: Final = CallDetails()


class RunOnHost(NamedTuple):
    run: str
    uid: int
    account: str
    """Name of the account, or `uid 1001` if the host doesn't know it."""
    since: float | None = None
    """Start of the run's first program on this host, in seconds since 1970 by the host's clock."""
    cores: CpuList = CpuList()
    """Cores of the run's ranks on this host; empty if there are no ranks yet or their cores are unknown."""
    is_starting: bool = False
    until: float | None = None
    """Like `since`. None without a limit, or if the supervisor is on another host."""
    ranks: int = 0
    script: str = ""
    call: CallDetails = NO_DETAILS


class WaitingCall(NamedTuple):
    """A call that waits in the queue for a host."""

    run: str
    uid: int
    account: str
    since: float | None = None
    until: float | None = None
    call: CallDetails = NO_DETAILS


class LockHolder(NamedTuple):
    """A process that holds the lock of a host but is not starting a run."""

    pid: int
    start: int
    """Kernel ticks since the boot."""
    name: str
    uid: int
    account: str

    def __str__(self) -> str:
        return f"pid {self.pid} of {self.account} ({self.name}), which is no start of ipexctl,"


class BusyProgram(NamedTuple):
    """A process that uses cores and belongs to no run."""

    name: str
    """Program name, for an interpreter followed by its script; without arguments."""
    uid: int
    account: str
    since: float | None
    cores: float
    """Processor seconds per second."""


class RunsOnHost(NamedTuple):
    runs: tuple[RunOnHost, ...] = ()
    hides_others: bool = False
    """True if /proc hides processes of other accounts (hidepid), so their runs are unknown."""
    waiting: tuple[WaitingCall, ...] = ()
    """Calls that wait for the host, in queue order."""
    holder: LockHolder | None = None

    @property
    def may_be_starting(self) -> bool:
        """True if a start of ipexctl may hold the lock of the host."""
        return self.hides_others or any(live.is_starting for live in self.runs)


class HostSnapshot(NamedTuple):
    runs: RunsOnHost
    machine: str
    """Text that is equal for two names of one machine, in every call."""
    uid: int | None = None
    clock: float | None = None
    programs: tuple[BusyProgram, ...] = ()


class _Program(NamedTuple):
    pid: int
    kind: str
    run: str
    uid: int
    start: int
    limit: int | None


def parse_live_runs(answers: Answers) -> RunsOnHost:
    """Return the runs whose programs live on the host, and the calls that wait there."""
    boot, owners = natural(answers.first("run.boot")), _owners(answers)
    cores: dict[int, set[int]] = {}
    for line in answers.all("run.cores"):
        pid, _, text = line.partition(" ")
        if (number := natural(pid)) is not None and (core_list := parse_cpulist(text)) is not None:
            cores.setdefault(number, set()).update(core_list)
    ranks = [natural(line) for line in answers.all("run.rank")]
    scripts = dict(line.partition(" ")[::2] for line in answers.all("run.script"))
    calls = {pid: call for line in answers.all("run.call") for pid, call in _call(line)}
    by_run: dict[tuple[int, str], list[_Program]] = {}
    waiting = []
    for line in answers.all("run.program"):
        program = _program(line)
        if program is not None and program.kind == "wait":
            waiting.append(program)
        elif program is not None:
            by_run.setdefault((program.uid, program.run), []).append(program)
    runs = []
    for (uid, run), programs in by_run.items():
        running = [program for program in programs if program.kind != "lock"]
        start = min(program.start for program in running or programs)
        script = next((scripts[text] for program in running if (text := str(program.pid)) in scripts), "")
        call = next((calls[program.pid] for program in programs if program.pid in calls), NO_DETAILS)
        runs.append(
            RunOnHost(
                run,
                uid,
                owners[uid],
                _time(boot, start),
                CpuList.of(core for program in running for core in cores.get(program.pid, ())),
                not running,
                min(filter(None, (_end(boot, program) for program in running)), default=None),
                sum(ranks.count(program.pid) for program in running),
                call.script or _script(script),
                call,
            )
        )
    places: dict[tuple[int, str], WaitingCall] = {}
    for program in sorted(
        waiting, key=lambda program: (program.start, program.pid)
    ):  # a shell forks, so its first process counts
        times = _time(boot, program.start), _end(boot, program)
        waiting_call = WaitingCall(
            program.run, program.uid, owners[program.uid], *times, calls.get(program.pid, NO_DETAILS)
        )
        places.setdefault((program.uid, program.run), waiting_call)
    runs.sort(key=lambda live: (live.run, live.uid))
    return RunsOnHost(tuple(runs), "run.hidden" in answers, tuple(places.values()), _holder(answers, owners))


def _call(line: str) -> Iterator[tuple[int, CallDetails]]:
    """Yield the pid and the details of a call from a line `PID JSON`; nothing if the line is damaged."""
    pid, _, text = line.partition(" ")
    with contextlib.suppress(ValueError):
        fields = parse_object(text.encode())
        user, host, records, script, tag = (
            str(fields.get(name) or "")[:_LONGEST_NAME] for name in ("user", "host", "records", "script", "tag")
        )
        if (number := natural(pid)) is not None:
            yield number, CallDetails(RunBy(user, host, records) if user and host else None, script, tag)


def _holder(answers: Answers, owners: Mapping[int, str]) -> LockHolder | None:
    """Return the process that holds the host's lock, from a line `PID UID START NAME`."""
    match (answers.first("run.holder") or "").split(None, 3):
        case [*words, name] if None not in (numbers := [natural(word) for word in words]) and len(words) == 3:
            pid, uid, start = (number or 0 for number in numbers)
            return LockHolder(pid, start, name[:_LONGEST_NAME], uid, owners[uid])
    return None


def read_host_snapshot(text: str) -> HostSnapshot | None:
    """Return what lives on the host; None if the output is cut off."""
    answers = read_answers(text)
    if "looked" not in answers:
        return None
    clock = natural(answers.first("clock"))
    return HostSnapshot(
        parse_live_runs(answers),
        answers.first("machine") or "",
        natural(answers.first("uid")),
        None if clock is None else float(clock),
        tuple(_busy_programs(answers)),
    )


def _busy_programs(answers: Answers) -> Iterator[BusyProgram]:
    """Yield the programs that use cores and belong to no run, from lines `PID UID START PERCENT NAME`. A damaged line
    is left out."""
    boot, owners = natural(answers.first("run.boot")), _owners(answers)
    for line in answers.all("run.busy"):
        match line.split(None, 4):
            case [_, *columns, name] if (
                None not in (numbers := [natural(word) for word in columns]) and len(columns) == 3
            ):
                uid, start, percent = (number or 0 for number in numbers)
                yield BusyProgram(name[:_LONGEST_NAME], uid, owners[uid], _time(boot, start), percent / 100)


class _Owners(dict[int, str]):
    def __missing__(self, uid: int) -> str:
        return f"uid {uid}"


def _owners(answers: Answers) -> Mapping[int, str]:
    """Return uid → name of the account; such as `uid 1000` for an account whose name is unknown or invalid."""
    owners = _Owners()
    for line in answers.all("run.account"):
        text, _, name = line.partition(" ")
        if (number := natural(text)) is not None and _ACCOUNT.fullmatch(name) and name != "UNKNOWN":
            owners[number] = name
    return owners


def _script(program: str) -> str:
    """Return the script that an interpreter runs, or else the program. Empty while ipexctl's own programs still start
    the rank."""
    script = program.partition(" ")[2] or program
    return "" if script == "agent.zip" else script[:_LONGEST_NAME]


def _time(boot: int | None, ticks: int) -> float | None:
    return None if boot is None else boot + ticks / TICKS


def _end(boot: int | None, program: _Program) -> float | None:
    start = _time(boot, program.start)
    return None if start is None or program.limit is None else start + min(program.limit, _LONGEST_TIME_LIMIT)


def _program(line: str) -> _Program | None:
    """Parse `PID KIND RUN UID START [LIMIT]`."""
    match line.split():
        case [pid, ("lock" | "pass" | "rank" | "supervisor" | "wait") as kind, run, uid, start, *limit] if (
            RUN_ID.fullmatch(run)
        ):
            numbers = natural(pid), natural(uid), natural(start)
            match numbers:
                case (int(number), int(owner), int(ticks)):
                    return _Program(number, kind, run, owner, ticks, natural(limit[0]) if limit else None)
    return None
