"""The record of a run, `status.json` and `events.jsonl`, as values that the nodes and the control machine share.

Decoding never fails: a field that is missing or of another kind has its default, whichever version wrote the record.
The values are named tuples: to import dataclasses takes 10 ms, which every rank and every call would pay for.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any, Callable, Dict, Literal, Mapping, NamedTuple, TypeVar, cast

from ipexctl.node.common.processes import ProcessIdentity

Json = Dict[str, Any]
State = Literal["starting", "running", "ok", "failed", "stopped", "lost", "unknown"]
STATES: frozenset[str] = frozenset(("starting", "running", "ok", "failed", "stopped", "lost", "unknown"))
FINAL: frozenset[str] = frozenset(("ok", "failed", "stopped", "lost"))
"""The states of a run, and of a rank, that is over."""
SCHEMA = "ipexctl.status/1"
Value = TypeVar("Value")


class OutOfMemory(NamedTuple):
    """The kernel killed a process because memory ran out."""

    by: str
    """Where that was found: cgroup, kernel log."""
    limit: int | None = None
    """Bytes, where there was a limit below the machine's own."""


class RankStatus(NamedTuple):
    rank: int
    host: str
    state: State = "starting"
    pid: int | None = None
    cpu: float | None = None
    """Percent of one core, as top shows it: 800 is eight cores."""
    rss: int | None = None
    """Bytes."""
    exit_code: int | None = None
    signal: int | None = None
    out_lines: int | None = None
    err_lines: int | None = None
    lost: int = 0
    """Bytes of its output that found no room on any disk."""
    oom: OutOfMemory | None = None
    wrapper: int | None = None
    """The process id of the rank wrapper."""
    process: str | None = None
    """The state of its main process: R, S, D …"""
    waits_in: str | None = None
    """The kernel function that process sleeps in."""
    mismatch: tuple[str, ...] = ()
    """Sentences about cores and memory that are not as planned."""

    def to_json(self) -> Json:
        return {
            "rank": self.rank,
            "host": self.host,
            "pid": self.pid,
            "wrapper": self.wrapper,
            "state": self.state,
            "exit_code": self.exit_code,
            "signal": self.signal,
            "oom": self.oom and self.oom._asdict(),
            "cpu": self.cpu,
            "rss": self.rss,
            "process": self.process,
            "waits_in": self.waits_in,
            "lines": {"out": self.out_lines, "err": self.err_lines},
            "lost": self.lost,
            "mismatch": self.mismatch,
        }


class Failure(NamedTuple):
    """What ended a run. `kind` is one of those that `run/verdict.py` describes."""

    rank: int | None
    """None when no rank is to blame."""
    host: str | None
    exit_code: int | None = None
    signal: int | None = None
    at: float | None = None
    kind: str = ""
    ranks: tuple[int, ...] = ()
    """All ranks it is about: those of a node that was lost, those that never began."""
    oom: OutOfMemory | None = None

    def to_json(self) -> Json:
        return {
            "kind": self.kind,
            "rank": self.rank,
            "host": self.host,
            "ranks": self.ranks,
            "exit_code": self.exit_code,
            "signal": self.signal,
            "oom": self.oom and self.oom._asdict(),
            "at": self.at,
        }


class SilentRank(NamedTuple):
    """What a rank was doing when no rank had printed anything for long."""

    rank: int
    host: str
    last: str | None = None
    """Its last line."""
    cpu: float | None = None
    process: str | None = None
    waits_in: str | None = None
    stream: str | None = None
    """Of its last line: out, err."""


class Silence(NamedTuple):
    """No rank has printed anything since then."""

    since: float
    after: float
    """Seconds after which that is reported."""
    ranks: tuple[SilentRank, ...] = ()

    def to_json(self) -> Json:
        return {"since": self.since, "after": self.after, "ranks": [row._asdict() for row in self.ranks]}


class Attempt(NamedTuple):
    """An attempt before the last one, and why it ended."""

    attempt: int
    reason: str = ""
    first_failure: Failure | None = None
    ended: float | None = None

    def to_json(self) -> Json:
        return {**self._asdict(), "first_failure": self.first_failure and self.first_failure.to_json()}


class Mpirun(NamedTuple):
    pid: int | None = None
    exit_code: int | None = None
    tail: tuple[str, ...] = ()
    """Its own last lines, when it ended the run."""


class Master(NamedTuple):
    """Where the ranks meet: MASTER_ADDR and MASTER_PORT."""

    addr: str = ""
    port: int | None = None


class RunStatus(NamedTuple):
    """A run at one moment, as its supervisor wrote it. Times are seconds since the epoch."""

    id: str
    state: State
    script: str = ""
    env: str = ""
    nodes: int = 1
    world_size: int = 0
    started: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    ranks: tuple[RankStatus, ...] = ()
    first_failure: Failure | None = None
    reason: str = ""
    """Why it ended, in a sentence."""
    attempt: int = 0
    """How often it has been started again."""
    restarts: int = 0
    """How often it may be."""
    silent: Silence | None = None
    supervisor: ProcessIdentity = ProcessIdentity(0)
    node0: str = ""
    """The host the supervisor is on, as the hostfile names it."""
    mpirun: Mpirun = Mpirun()
    master: Master = Master()
    attempts: tuple[Attempt, ...] = ()
    unwritten_events: int | None = None
    """Events that a full disk has refused; None where none ever was."""

    @property
    def is_over(self) -> bool:
        return self.state in FINAL

    def to_json(self) -> Json:
        document = {
            "schema": SCHEMA,
            "id": self.id,
            "state": self.state,
            "started": self.started,
            "ended": self.ended,
            "exit_code": self.exit_code,
            "reason": self.reason,
            "supervisor": {**self.supervisor._asdict(), "host": self.node0},
            "mpirun": self.mpirun._asdict(),
            "nodes": self.nodes,
            "world_size": self.world_size,
            "script": self.script,
            "env": self.env,
            "attempt": self.attempt,
            "restarts": self.restarts,
            "attempts": [each.to_json() for each in self.attempts],
            "master": self.master._asdict(),
            "ranks": [rank.to_json() for rank in self.ranks],
            "first_failure": self.first_failure and self.first_failure.to_json(),
            "silent": self.silent and self.silent.to_json(),
        }
        if self.unwritten_events is not None:
            document["unwritten_events"] = self.unwritten_events
        return document


class RunEvent(NamedTuple):
    """A line of `events.jsonl`."""

    event: str
    at: float | None = None
    fields: Mapping[str, Any] = {}

    @property
    def rank(self) -> int | None:
        return _whole(self.fields.get("rank"))

    def to_json(self) -> Json:
        return {"at": self.at, "event": self.event, **self.fields}


def read_event(document: object) -> RunEvent | None:
    """None where it is no event."""
    said = _dict(document)
    if not isinstance(said.get("event"), str):
        return None
    fields = {name: value for name, value in said.items() if name not in ("event", "at")}
    return RunEvent(said["event"], _number(said.get("at")), fields)


def read_status(document: object) -> RunStatus:
    said = _dict(document)
    nodes = said.get("nodes")
    ranks = _each(said.get("ranks"), _rank)
    supervisor, mpirun, master = (_dict(said.get(name)) for name in ("supervisor", "mpirun", "master"))
    return RunStatus(
        id=_word(said.get("id")),
        state=read_state(said.get("state")),
        script=_word(said.get("script")),
        env=_word(said.get("env")),
        nodes=len(nodes) if isinstance(nodes, list) else _whole(nodes) or 1,
        world_size=_whole(said.get("world_size")) or len(ranks),
        started=_number(said.get("started")),
        ended=_number(said.get("ended")),
        exit_code=_whole(said.get("exit_code")),
        ranks=ranks,
        first_failure=_failure(said.get("first_failure")),
        reason=_word(said.get("reason")),
        attempt=_whole(said.get("attempt")) or 0,
        restarts=_whole(said.get("restarts")) or 0,
        silent=_silence(said.get("silent")),
        supervisor=ProcessIdentity(
            _whole(supervisor.get("pid")) or 0,
            _whole(supervisor.get("start")),
            _text(supervisor.get("machine")),
            _text(supervisor.get("boot")),
        ),
        node0=_word(supervisor.get("host")),
        mpirun=Mpirun(_whole(mpirun.get("pid")), _whole(mpirun.get("exit_code")), _lines(mpirun.get("tail"))),
        master=Master(_word(master.get("addr")), _whole(master.get("port"))),
        attempts=_each(said.get("attempts"), _attempt),
        unwritten_events=_whole(said.get("unwritten_events")),
    )


def read_state(value: object) -> State:
    """A state of a newer version is unknown."""
    return cast("State", value) if isinstance(value, str) and value in STATES else "unknown"


def read_oom(document: object) -> OutOfMemory | None:
    if not isinstance(document, dict):
        return None
    return OutOfMemory(_word(document.get("by")), _whole(document.get("limit")))


def _rank(row: Json) -> RankStatus:
    lines = _dict(row.get("lines"))
    return RankStatus(
        rank=_whole(row.get("rank")) or 0,
        host=_word(row.get("host")),
        state=read_state(row.get("state")),
        pid=_whole(row.get("pid")),
        cpu=_number(row.get("cpu")),
        rss=_whole(row.get("rss")),
        exit_code=_whole(row.get("exit_code")),
        signal=_whole(row.get("signal")),
        out_lines=_whole(lines.get("out")),
        err_lines=_whole(lines.get("err")),
        lost=_whole(row.get("lost")) or 0,
        oom=read_oom(row.get("oom")),
        wrapper=_whole(row.get("wrapper")),
        process=_text(row.get("process")),
        waits_in=_text(row.get("waits_in")),
        mismatch=_lines(row.get("mismatch")),
    )


def _failure(document: object) -> Failure | None:
    if not isinstance(document, dict):
        return None
    numbers = [_whole(rank) for rank in _list(document.get("ranks"))]
    return Failure(
        rank=_whole(document.get("rank")),
        host=_text(document.get("host")),
        exit_code=_whole(document.get("exit_code")),
        signal=_whole(document.get("signal")),
        at=_number(document.get("at")),
        kind=_word(document.get("kind")),
        ranks=tuple(number for number in numbers if number is not None),
        oom=read_oom(document.get("oom")),
    )


def _silence(document: object) -> Silence | None:
    if not isinstance(document, dict):
        return None
    since, after = _number(document.get("since")), _number(document.get("after")) or 0.0
    return None if since is None else Silence(since, after, _each(document.get("ranks"), _silent_rank))


def _silent_rank(row: Json) -> SilentRank:
    return SilentRank(
        rank=_whole(row.get("rank")) or 0,
        host=_word(row.get("host")),
        last=_text(row.get("last")),
        cpu=_number(row.get("cpu")),
        process=_text(row.get("process")),
        waits_in=_text(row.get("waits_in")),
        stream=_text(row.get("stream")),
    )


def _attempt(row: Json) -> Attempt:
    first = _failure(row.get("first_failure"))
    return Attempt(_whole(row.get("attempt")) or 0, _word(row.get("reason")), first, _number(row.get("ended")))


def _each(value: object, read: Callable[[Json], Value]) -> tuple[Value, ...]:
    return tuple(read(row) for row in _list(value) if isinstance(row, dict))


def _dict(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _lines(value: object) -> tuple[str, ...]:
    return tuple(str(line) for line in _list(value))


def _word(value: object) -> str:
    """What was meant as a text, whatever it is."""
    return str(value) if value else ""


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _number(value: object) -> float | None:
    """JSON as Python writes it may hold NaN and Infinity; no figure here is one."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):
            return float(value) if math.isfinite(value) else None
    return None


def _whole(value: object) -> int | None:
    number = _number(value)
    return None if number is None else int(number)
