"""Get the stacks or a profile of all ranks from node0, parse what py-spy or faulthandler printed, and group the ranks.

- The smallest group comes first, because a rank that differs from the others usually causes the hang.
- Frames are compared without the parts of a path that differ between nodes.
- The text comes from processes that are not trusted, so its length is bounded, and what cannot be read becomes a
  reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from ipexctl.homes.registry import RunRecord
from ipexctl.limits import DUMP_WAIT, PROFILE_WAIT
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.frames import Frame, FrameError, decode_json
from ipexctl.node.common.json_records import parse_json
from ipexctl.node.common.records import RunStatus, read_status
from ipexctl.node.run.runs import RanksRequest
from ipexctl.remote.outcome import HostError
from ipexctl.remote.reply import Reply
from ipexctl.remote.session import Session
from ipexctl.run.node0 import call_on_node0
from ipexctl.run.ranks import name_ranks

_MOST_TEXT: Final = 1 << 20
"""Characters parsed per process; a node sends at most an eighth of that."""
_THREAD: Final = re.compile(
    r"(?P<current>Current thread|Thread) (?P<id>0x[0-9a-f]+)(?: \[(?P<name>.*)\])? \(most recent call first\):"
)
_FRAME: Final = re.compile(r'  File (?P<file>".*"|\S.*), line (?P<line>\d+|\?\?\?) in (?P<function>.*)')
_LIBRARIES: Final = ("/site-packages/", "/dist-packages/")
_STANDARD: Final = re.compile(r"^.*/lib/python3\.\d+t?/")
_HOOKS: Final = re.compile(r"^.*/hooks/ipexctl_(?:hooks\.py$|inrank/)")
"""Files of the agent that appear in a rank's stack: between DDP and the script, and below a backward pass."""
_PROJECT: Final = re.compile(r"^.*/code/[^/]+-[0-9a-f]{8}/")


@dataclass(frozen=True, slots=True)
class StackFrame:
    """One call of a stack."""

    function: str
    file: str
    line: int | None
    """None if it is unknown."""

    @property
    def place(self) -> str:
        """The file relative to the project, to site-packages or to Python's library."""
        for sign in _LIBRARIES:
            if sign in self.file:
                return self.file.rpartition(sign)[2]
        return _PROJECT.sub("", _STANDARD.sub("", self.file))

    @property
    def is_standard(self) -> bool:
        """True for a file of Python's own library, or of ipexctl's hooks."""
        if _HOOKS.match(self.file):
            return True
        return bool(_STANDARD.match(self.file)) and self.place == _STANDARD.sub("", self.file)

    @property
    def is_library(self) -> bool:
        """True for a file of an installed package."""
        return any(sign in self.file for sign in _LIBRARIES)

    @property
    def key(self) -> tuple[str, str, int | None]:
        """What equal frames have in common, also on nodes with other homes.

        The class that py-spy puts before the name of a method is left out.
        """
        return self.function.rpartition(".")[2], self.place, self.line


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread and its stack, the innermost call first."""

    name: str
    frames: tuple[StackFrame, ...]
    is_main: bool = False


@dataclass(frozen=True, slots=True)
class Process:
    """A process of a rank with the stacks of its threads."""

    pid: int
    name: str
    state: str
    """As in /proc: R, S, D …"""
    wchan: str
    """Function of the kernel in which it sleeps; or empty."""
    how: str
    """What read the stacks: `py-spy` or `faulthandler`."""
    threads: tuple[Thread, ...]
    reason: str
    """Why no threads are known; or empty."""
    waits_for: int | None = None
    """Rank that it waits for in a shared-memory all-reduce; else None."""

    @property
    def frames(self) -> tuple[StackFrame, ...]:
        """Frames of the main thread, the innermost first; empty if they are not known."""
        return next((thread.frames for thread in self.threads if thread.is_main), ())


@dataclass(frozen=True, slots=True)
class RankStacks:
    """The Python processes of a rank, the command first."""

    rank: int
    host: str
    state: str
    processes: tuple[Process, ...]
    reason: str = ""
    """Why there are no processes; or empty."""
    last_state: str = ""
    """Last reported state of a rank that does not answer, as in /proc; or empty."""
    last_wchan: str = ""
    """Function of the kernel in which that rank slept then; or empty."""

    @property
    def main_process(self) -> Process | None:
        """The process whose stack is compared: not a launcher that only waits for its child."""
        for index, process in enumerate(self.processes):
            waits = bool(process.frames) and process.frames[0].place == "subprocess.py"
            if not waits or not any(process.frames for process in self.processes[index + 1 : index + 2]):
                return process if process.frames else None
        return None

    @property
    def frames(self) -> tuple[StackFrame, ...]:
        """Frames of the main process; empty if no process has any."""
        return self.main_process.frames if self.main_process is not None else ()


@dataclass(frozen=True, slots=True)
class StackGroup:
    """Ranks with equal stacks."""

    ranks: tuple[RankStacks, ...]

    @property
    def frames(self) -> tuple[StackFrame, ...]:
        """The stack that all of these ranks have."""
        return self.ranks[0].frames

    @property
    def inner(self) -> StackFrame:
        """The innermost frame outside of Python's library."""
        return next((frame for frame in self.frames if not frame.is_standard), self.frames[0])

    @property
    def own(self) -> StackFrame | None:
        """The innermost frame in the project; None if there is none."""
        return next((frame for frame in self.frames if not frame.is_standard and not frame.is_library), None)

    @property
    def place(self) -> str:
        """`all_reduce, called at train.py:9`, or only the function if it is of the project itself."""
        inner, own_frame = self.inner, self.own
        if own_frame is None or own_frame == inner:
            return inner.function
        return f"{inner.function}, called at {own_frame.place}:{own_frame.line}"


@dataclass(frozen=True, slots=True)
class Dump:
    """The stacks of all ranks at one moment."""

    at: float
    """UNIX time."""
    ranks: tuple[RankStacks, ...]

    @property
    def groups(self) -> tuple[StackGroup, ...]:
        """The ranks with equal stacks, the smallest group first."""
        by_stack: dict[object, list[RankStacks]] = {}
        for rank in self.ranks:
            if rank.frames:
                by_stack.setdefault(tuple(frame.key for frame in rank.frames), []).append(rank)
        groups = sorted(by_stack.values(), key=lambda ranks: (len(ranks), ranks[0].rank))
        return tuple(StackGroup(tuple(ranks)) for ranks in groups)

    @property
    def mute(self) -> tuple[RankStacks, ...]:
        """The ranks without a Python frame."""
        return tuple(rank for rank in self.ranks if not rank.frames)

    @property
    def is_complete(self) -> bool:
        """True if every rank that lives gave its stack."""
        return all(rank.state != "running" for rank in self.mute)


class DumpReceiver:
    """Collects the parts of a dump, one for each rank."""

    def __init__(self, world_size: int) -> None:
        """Expect at most so many ranks. `world_size`: 0 if unknown."""
        self._world_size = world_size
        self._rows: list[object] = []
        self.document: dict[str, Any] = {}
        """The last complete dump, as the local copy keeps it."""

    def add(self, message: Mapping[str, object]) -> Dump | None:
        """Add a part.

        Returns the dump if the part was the last one, else None. Raises a FrameError for more ranks than the run has.
        """
        if 0 < self._world_size <= len(self._rows):
            raise FrameError("stacks of more ranks than this run has")
        self._rows.append(message.get("stacks"))
        if len(self._rows) != message.get("of"):
            return None
        rows, self._rows = self._rows, []
        self.document = {"at": message.get("at"), "ranks": rows}
        return read_dump(Reply(self.document))


def place_lines(dump: Dump) -> list[tuple[tuple[RankStacks, ...], str]]:
    """Return groups of ranks with equal stacks, each with a line about them: the smallest groups first, then the ranks
    without a stack, by the reason.
    """
    mute: dict[str, list[RankStacks]] = {}
    for rank in dump.mute:
        mute.setdefault(rank.reason or "it has no Python frame", []).append(rank)
    groups = [
        (group.ranks, group.place if "," in group.place else f"{group.place} at {group.inner.place}:{group.inner.line}")
        for group in dump.groups
    ]
    groups += [(tuple(ranks), f"no stack: {reason}") for reason, ranks in mute.items()]
    return [(ranks, f"{name_ranks(ranks)}: {place}") for ranks, place in groups]


def dump(session: Session, record: RunRecord, ranks: Sequence[int] | None) -> Dump | RunStatus:
    """Get the stacks from node0; the status instead if the run is over. Raises a HostError. `ranks`: None for all."""
    receiver, received_dump = DumpReceiver(record.plan.world_size), None

    def on_frame(frame: Frame) -> None:
        """Take one part."""
        nonlocal received_dump
        received_dump = receiver.add(decode_json(frame[1])) or received_dump

    request: RanksRequest = {"home": record.home, "id": record.id, "ranks": ranks, "wait": DUMP_WAIT}
    reply = call_on_node0(session, record, "run.runs", "dump", request, on_frame=on_frame)
    status = read_status(reply["status"])
    if received_dump is None and not status.is_over:
        raise HostError("it sent no stacks, or not all of them", Fix(f"try again: `ipexctl why {record.id} --stacks`"))
    return received_dump or status


@dataclass(frozen=True, slots=True)
class MissingProfile:
    """A rank that could not be profiled."""

    rank: int
    host: str
    reason: str


ProfileAnswer: TypeAlias = tuple[MissingProfile, ...]


def request_profile(session: Session, record: RunRecord) -> ProfileAnswer | RunStatus:
    """Profile the next steps of all ranks. Returns the ranks without a profile, or the status if the run is over.

    Raises a HostError.
    """
    wait = session.timeout or PROFILE_WAIT
    request: RanksRequest = {"home": record.home, "id": record.id, "ranks": None, "wait": wait}
    reply = call_on_node0(session, record, "run.runs", "profile", request, timeout=wait + DUMP_WAIT)
    if reply.get("ranks") is None:
        return read_status(reply["status"])
    rows = reply.records("ranks")
    return tuple(MissingProfile(row.integer("rank"), row.text("host"), row.text("why")) for row in rows if row["why"])


def read_dump(document: Reply) -> Dump:
    """Return the dump that a document describes. Raises MalformedReply for any other content."""
    return Dump(document.number("at"), tuple(_rank(row) for row in document.records("ranks")))


def _rank(row: Reply) -> RankStacks:
    """Return the stacks of one rank."""
    processes = tuple(_process(process) for process in row.records("processes")) if row.get("processes") else ()
    reason = str(row.get("why") or "")
    if not processes and not reason:
        reason = "its process has ended"
    last = row.record("last") if row.get("last") else {}
    seen = str(last.get("process") or ""), str(last.get("waits_in") or "")
    return RankStacks(row.integer("rank"), row.text("host"), row.text("state"), processes, reason, *seen)


def _process(row: Reply) -> Process:
    """Return one process. Output that cannot be read becomes a reason."""
    pid, how, reason = row.integer("pid"), row.text("how"), row.text("why") if row.get("why") else ""
    try:
        text = row["text"][:_MOST_TEXT]
        threads = read_pyspy(text, pid) if how == "py-spy" else read_faulthandler(text)
    except (ValueError, LookupError, TypeError, AttributeError):
        threads, reason = (), f"the output of {how} can't be read"
    waits_for = row.get("waits_for")
    waits_for = waits_for if type(waits_for) is int else None
    return Process(pid, str(row["name"]), str(row["state"]), str(row["wchan"]), how, threads, reason, waits_for)


def read_pyspy(text: str, pid: int) -> tuple[Thread, ...]:
    """Parse the output of `py-spy dump --json`. Raises ValueError, KeyError or TypeError for other text."""
    threads = []
    for thread in parse_json(text):
        name = str(thread.get("thread_name") or "")
        frames = tuple(
            StackFrame(str(frame["name"]), str(frame["filename"]), _line_number(frame["line"]))
            for frame in thread["frames"]
        )
        threads.append(Thread(name, frames, thread.get("os_thread_id") == pid or name == "MainThread"))
    return _with_main(threads)


def _line_number(value: object) -> int | None:
    """Return the line; None if it is none."""
    return value if type(value) is int and value > 0 else None


def read_faulthandler(text: str) -> tuple[Thread, ...]:
    """Parse the output of faulthandler, which begins with the youngest thread and ends with the main one."""
    stacks: list[tuple[str, list[StackFrame]]] = []
    for line in text.splitlines():
        if match := _THREAD.fullmatch(line):
            stacks.append((match["name"] or match["id"], []))
        elif (match := _FRAME.fullmatch(line)) and stacks:
            number = int(match["line"]) if match["line"].isdigit() else None
            stacks[-1][1].append(StackFrame(match["function"], match["file"].strip('"'), number))
    threads = [Thread(name, tuple(frames)) for name, frames in stacks]
    return _with_main([*threads[:-1], replace(threads[-1], is_main=True)] if threads else [])


def _with_main(threads: list[Thread]) -> tuple[Thread, ...]:
    """Put the main thread first.

    If py-spy could not read thread IDs, it does not mark one, and the likeliest is taken.
    """
    if threads and not any(thread.is_main for thread in threads):
        likely = next(
            (thread for thread in threads if thread.frames and thread.frames[-1].function == "<module>"), None
        )
        likely = likely or threads[-1]
        threads = [replace(thread, is_main=thread is likely) for thread in threads]
    return tuple(sorted(threads, key=lambda thread: not thread.is_main))
