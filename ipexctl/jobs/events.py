"""What a follower tells whoever watches a run: output, status, words, the end. Values only.

`follow` makes them, `ui` shows them. A chunk is bytes as they came: where a line begins or ends is not known here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

if TYPE_CHECKING:
    from collections.abc import Mapping

Stream = Literal["stdout", "stderr"]
State = Literal["starting", "running", "ok", "failed", "stopped", "lost", "unknown"]
_STATES: frozenset[str] = frozenset(get_args(State))
FINAL: frozenset[str] = frozenset({"ok", "failed", "stopped", "lost"})
"""A run that is over, and how."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of one rank's stream; pieces of one stream come in order and without a gap."""

    rank: int
    stream: Stream
    data: bytes
    offset: int = 0
    """Where in the stream it begins, in bytes."""


@dataclass(frozen=True, slots=True)
class RankStatus:
    rank: int
    host: str
    state: State = "starting"
    pid: int | None = None
    cpu: float | None = None
    """Percent of one core, as top says it: 800 is eight cores."""
    rss: int | None = None
    """Bytes."""
    exit_code: int | None = None
    signal: int | None = None
    out_lines: int | None = None
    err_lines: int | None = None
    lost: int = 0
    """Bytes it printed that there was no room for anywhere."""
    oom: OutOfMemory | None = None


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """The kernel killed it for want of memory, and who says so."""

    by: str
    limit: int | None = None
    """Bytes, where there was one below the machine's own."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the run ended: the first rank that failed, or none where none is to blame."""

    rank: int | None
    host: str | None
    exit_code: int | None = None
    signal: int | None = None
    at: float | None = None
    kind: str = ""
    """exit, signal, oom, lost, stuck, not-begun, mpirun, time-limit."""
    ranks: tuple[int, ...] = ()
    """All that are meant: those of a node that was lost, those that never began."""
    oom: OutOfMemory | None = None


@dataclass(frozen=True, slots=True)
class SilentRank:
    """What a rank was at when nobody had said a word for long."""

    rank: int
    host: str
    last: str | None = None
    """Its last line."""
    cpu: float | None = None
    process: str | None = None
    """The state of its main process: R, S, D …"""
    waits_in: str | None = None
    """The kernel's word for where."""


@dataclass(frozen=True, slots=True)
class Silence:
    """No rank has printed anything since then, and for longer than is usual."""

    since: float
    after: float
    ranks: tuple[SilentRank, ...] = ()


@dataclass(frozen=True, slots=True)
class Status:
    """The whole of a run at one moment, as its supervisor wrote it. Times are seconds since the epoch."""

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
    """How often it has been begun again."""
    restarts: int = 0
    """How often it may be."""
    silent: Silence | None = None


@dataclass(frozen=True, slots=True)
class Said:
    """A sentence of ours about the run: a link lost, a link found again, a log that has a gap."""

    text: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """The run is over and all of its output has been told; nothing comes after this."""

    exit_code: int
    status: Status | None = None


Event = Chunk | Status | Said | Ended
Watch = Callable[[Event], None]


def read_status(document: Mapping[str, Any]) -> Status:
    """status.json (`ipexctl.status/1`) as a value. What is missing or odd is left at its default, never an error."""
    failure = document.get("first_failure")
    nodes = document.get("nodes")
    ranks = tuple(_rank(rank) for rank in document.get("ranks") or () if isinstance(rank, dict))
    return Status(
        id=str(document.get("id") or ""),
        state=_state(document.get("state")),
        script=str(document.get("script") or ""),
        env=str(document.get("env") or ""),
        nodes=len(nodes) if isinstance(nodes, list) else _whole(nodes) or 1,
        world_size=_whole(document.get("world_size")) or len(ranks),
        started=_number(document.get("started")),
        ended=_number(document.get("ended")),
        exit_code=_whole(document.get("exit_code")),
        ranks=ranks,
        first_failure=_failure(failure) if isinstance(failure, dict) else None,
        reason=str(document.get("reason") or ""),
        attempt=_whole(document.get("attempt")) or 0,
        restarts=_whole(document.get("restarts")) or 0,
        silent=_silence(document.get("silent")),
    )


def _rank(rank: Mapping[str, Any]) -> RankStatus:
    lines = rank.get("lines")
    counts: Mapping[str, Any] = lines if isinstance(lines, dict) else {}
    return RankStatus(
        rank=_whole(rank.get("rank")) or 0,
        host=str(rank.get("host") or ""),
        state=_state(rank.get("state")),
        pid=_whole(rank.get("pid")),
        cpu=_number(rank.get("cpu")),
        rss=_whole(rank.get("rss")),
        exit_code=_whole(rank.get("exit_code")),
        signal=_whole(rank.get("signal")),
        out_lines=_whole(counts.get("out")),
        err_lines=_whole(counts.get("err")),
        lost=_whole(rank.get("lost")) or 0,
        oom=_oom(rank.get("oom")),
    )


def _failure(failure: Mapping[str, Any]) -> Failure:
    ranks = failure.get("ranks")
    numbers = [_whole(rank) for rank in ranks] if isinstance(ranks, list) else []
    return Failure(
        rank=_whole(failure.get("rank")),
        host=_text(failure.get("host")),
        exit_code=_whole(failure.get("exit_code")),
        signal=_whole(failure.get("signal")),
        at=_number(failure.get("at")),
        kind=str(failure.get("kind") or ""),
        ranks=tuple(number for number in numbers if number is not None),
        oom=_oom(failure.get("oom")),
    )


def _oom(said: object) -> OutOfMemory | None:
    return OutOfMemory(str(said.get("by") or ""), _whole(said.get("limit"))) if isinstance(said, dict) else None


def _silence(said: object) -> Silence | None:
    if not isinstance(said, dict):
        return None
    ranks = tuple(
        SilentRank(
            rank=_whole(row.get("rank")) or 0,
            host=str(row.get("host") or ""),
            last=_text(row.get("last")),
            cpu=_number(row.get("cpu")),
            process=_text(row.get("process")),
            waits_in=_text(row.get("waits_in")),
        )
        for row in said.get("ranks") or ()
        if isinstance(row, dict)
    )
    return Silence(_number(said.get("since")) or 0.0, _number(said.get("after")) or 0.0, ranks)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _state(value: object) -> State:
    return cast("State", value) if isinstance(value, str) and value in _STATES else "unknown"


def _number(value: object) -> float | None:
    """JSON of Python's may hold NaN and Infinity; no figure here is one."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def _whole(value: object) -> int | None:
    number = _number(value)
    return None if number is None else int(number)
