"""The record of a run, `status.json` and `events.jsonl`, as values shared by the nodes and the control machine.

Decoding never fails: a missing or invalid field has its default, for records of any version. The values are named
tuples, because importing dataclasses takes 10 ms for every rank and every call.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any, Callable, Literal, Mapping, NamedTuple, TypeVar, cast

from ipexctl.node.common.job import Master
from ipexctl.node.common.processes import ProcessIdentity

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json

State = Literal["starting", "running", "ok", "failed", "stopped", "lost", "unknown"]
STATES: frozenset[str] = frozenset(("starting", "running", "ok", "failed", "stopped", "lost", "unknown"))
FINAL: frozenset[str] = frozenset(("ok", "failed", "stopped", "lost"))
"""The states of a run or a rank that has ended."""
SCHEMA = "ipexctl.status/1"
Value = TypeVar("Value")


class OutOfMemory(NamedTuple):
    """The kernel killed a process because memory ran out."""

    by: str
    """The source: cgroup, kernel log."""
    limit: int | None = None
    """Bytes, when there was a limit below the machine's memory."""


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
    """Bytes of output lost because disks were full."""
    oom: OutOfMemory | None = None
    wrapper: int | None = None
    """The process id of the rank wrapper."""
    process: str | None = None
    """The state of its main process: R, S, D …"""
    waits_in: str | None = None
    """The kernel function that process sleeps in."""
    mismatch: tuple[str, ...] = ()
    """Sentences about cores and memory that differ from the plan."""

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
    """The failure that ended a run. `run/verdict.py` describes the values of `kind`."""

    rank: int | None
    """None when no single rank is the cause."""
    host: str | None
    exit_code: int | None = None
    signal: int | None = None
    at: float | None = None
    kind: str = ""
    ranks: tuple[int, ...] = ()
    """All ranks concerned, such as those of a lost node, or those that never started."""
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
    """The state of a rank in a run without output for a long time."""

    rank: int
    host: str
    last: str | None = None
    """Its last line."""
    cpu: float | None = None
    process: str | None = None
    waits_in: str | None = None
    stream: str | None = None
    """The stream of its last line: out, err."""


class Silence(NamedTuple):
    """No rank has printed anything since then."""

    since: float
    after: float
    """Seconds without output after which it is reported."""
    ranks: tuple[SilentRank, ...] = ()
    dump: str = ""
    """The id of the stack dump that --on-hang has taken."""

    def to_json(self) -> Json:
        return {**self._asdict(), "ranks": [rank._asdict() for rank in self.ranks]}


class Attempt(NamedTuple):
    """An earlier attempt, and why it ended."""

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
    """Its last output lines, when it ended the run."""


class RunStatus(NamedTuple):
    """The status of a run, as its supervisor wrote it. Times are seconds since the epoch."""

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
    """The number of restarts so far."""
    restarts: int = 0
    """The maximum number of restarts."""
    silent: Silence | None = None
    supervisor: ProcessIdentity = ProcessIdentity(0)
    node0: str = ""
    """The host of the supervisor, as named in the hostfile."""
    mpirun: Mpirun = Mpirun()
    master: Master = Master()
    attempts: tuple[Attempt, ...] = ()
    unwritten_events: int | None = None
    """Events not written because the disk is full; None when there never were any."""

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
            "attempts": [attempt.to_json() for attempt in self.attempts],
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
        return _integer(self.fields.get("rank"))

    def to_json(self) -> Json:
        return {"at": self.at, "event": self.event, **self.fields}


def read_event(document: object) -> RunEvent | None:
    """None when it is not an event."""
    record = as_dict(document)
    if not isinstance(record.get("event"), str):
        return None
    fields = {name: value for name, value in record.items() if name not in ("event", "at")}
    return RunEvent(record["event"], as_number(record.get("at")), fields)


def read_status(document: object) -> RunStatus:
    record = as_dict(document)
    nodes = record.get("nodes")
    ranks = _read_list(record.get("ranks"), _rank)
    supervisor, mpirun, master = (as_dict(record.get(name)) for name in ("supervisor", "mpirun", "master"))
    return RunStatus(
        id=_text_or_empty(record.get("id")),
        state=read_state(record.get("state")),
        script=_text_or_empty(record.get("script")),
        env=_text_or_empty(record.get("env")),
        nodes=len(nodes) if isinstance(nodes, list) else _integer(nodes) or 1,
        world_size=_integer(record.get("world_size")) or len(ranks),
        started=as_number(record.get("started")),
        ended=as_number(record.get("ended")),
        exit_code=_integer(record.get("exit_code")),
        ranks=ranks,
        first_failure=_failure(record.get("first_failure")),
        reason=_text_or_empty(record.get("reason")),
        attempt=_integer(record.get("attempt")) or 0,
        restarts=_integer(record.get("restarts")) or 0,
        silent=_silence(record.get("silent")),
        supervisor=ProcessIdentity(
            _integer(supervisor.get("pid")) or 0,
            _integer(supervisor.get("start")),
            _text_or_none(supervisor.get("machine")),
            _text_or_none(supervisor.get("boot")),
        ),
        node0=_text_or_empty(supervisor.get("host")),
        mpirun=Mpirun(_integer(mpirun.get("pid")), _integer(mpirun.get("exit_code")), as_lines(mpirun.get("tail"))),
        master=Master(_text_or_empty(master.get("addr")), _integer(master.get("port"))),
        attempts=_read_list(record.get("attempts"), _attempt),
        unwritten_events=_integer(record.get("unwritten_events")),
    )


def read_state(value: object) -> State:
    """An unknown value, as of a newer version, becomes `unknown`."""
    return cast("State", value) if isinstance(value, str) and value in STATES else "unknown"


def read_oom(document: object) -> OutOfMemory | None:
    if not isinstance(document, dict):
        return None
    return OutOfMemory(_text_or_empty(document.get("by")), _integer(document.get("limit")))


def _rank(entry: Json) -> RankStatus:
    lines = as_dict(entry.get("lines"))
    return RankStatus(
        rank=_integer(entry.get("rank")) or 0,
        host=_text_or_empty(entry.get("host")),
        state=read_state(entry.get("state")),
        pid=_integer(entry.get("pid")),
        cpu=as_number(entry.get("cpu")),
        rss=_integer(entry.get("rss")),
        exit_code=_integer(entry.get("exit_code")),
        signal=_integer(entry.get("signal")),
        out_lines=_integer(lines.get("out")),
        err_lines=_integer(lines.get("err")),
        lost=_integer(entry.get("lost")) or 0,
        oom=read_oom(entry.get("oom")),
        wrapper=_integer(entry.get("wrapper")),
        process=_text_or_none(entry.get("process")),
        waits_in=_text_or_none(entry.get("waits_in")),
        mismatch=as_lines(entry.get("mismatch")),
    )


def _failure(document: object) -> Failure | None:
    if not isinstance(document, dict):
        return None
    ranks = [_integer(rank) for rank in as_list(document.get("ranks"))]
    return Failure(
        rank=_integer(document.get("rank")),
        host=_text_or_none(document.get("host")),
        exit_code=_integer(document.get("exit_code")),
        signal=_integer(document.get("signal")),
        at=as_number(document.get("at")),
        kind=_text_or_empty(document.get("kind")),
        ranks=tuple(rank for rank in ranks if rank is not None),
        oom=read_oom(document.get("oom")),
    )


def _silence(document: object) -> Silence | None:
    if not isinstance(document, dict):
        return None
    since, after = as_number(document.get("since")), as_number(document.get("after")) or 0.0
    ranks, dump = _read_list(document.get("ranks"), _silent_rank), _text_or_empty(document.get("dump"))
    return None if since is None else Silence(since, after, ranks, dump)


def _silent_rank(entry: Json) -> SilentRank:
    return SilentRank(
        rank=_integer(entry.get("rank")) or 0,
        host=_text_or_empty(entry.get("host")),
        last=_text_or_none(entry.get("last")),
        cpu=as_number(entry.get("cpu")),
        process=_text_or_none(entry.get("process")),
        waits_in=_text_or_none(entry.get("waits_in")),
        stream=_text_or_none(entry.get("stream")),
    )


def _attempt(entry: Json) -> Attempt:
    first = _failure(entry.get("first_failure"))
    return Attempt(
        _integer(entry.get("attempt")) or 0, _text_or_empty(entry.get("reason")), first, as_number(entry.get("ended"))
    )


def _read_list(value: object, read: Callable[[Json], Value]) -> tuple[Value, ...]:
    return tuple(read(entry) for entry in as_list(value) if isinstance(entry, dict))


def as_dict(value: object) -> Json:
    """Like the functions below: an invalid value becomes an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def as_lines(value: object) -> tuple[str, ...]:
    return tuple(str(line) for line in as_list(value))


def _text_or_empty(value: object) -> str:
    """Any value as text; empty for none."""
    return str(value) if value else ""


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def as_number(value: object) -> float | None:
    """A finite number, or None. Python's JSON may have NaN and Infinity."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):
            return float(value) if math.isfinite(value) else None
    return None


def _integer(value: object) -> int | None:
    number = as_number(value)
    return None if number is None else int(number)
