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


@dataclass(frozen=True, slots=True)
class Failure:
    """The first rank that failed: why the run ended."""

    rank: int
    host: str
    exit_code: int | None = None
    signal: int | None = None
    at: float | None = None


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
    )


def _failure(failure: Mapping[str, Any]) -> Failure:
    return Failure(
        rank=_whole(failure.get("rank")) or 0,
        host=str(failure.get("host") or ""),
        exit_code=_whole(failure.get("exit_code")),
        signal=_whole(failure.get("signal")),
        at=_number(failure.get("at")),
    )


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
