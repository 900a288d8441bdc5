"""What `node/run/run_snapshot.py` has read of a run's directory, as a value.

What is missing or odd is left out, never an error.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ipexctl.jobs.events import FINAL
from ipexctl.jobs.why.causes import Scene, Words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_BUSY = 50.0
"""Percent of a core from which on a rank is at work, or spins."""


@dataclass(frozen=True, slots=True)
class Row:
    """One rank, as the supervisor's record has it."""

    rank: int
    host: str
    state: str
    pid: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    oom: bool = False
    lost: int = 0
    """Bytes of its output that found no room anywhere."""
    mismatch: tuple[str, ...] = ()
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class At:
    """What a rank was at when nobody had said anything for long."""

    rank: int
    host: str
    last: str = ""
    """Its last line."""
    is_busy: bool = False
    waits_in: str = ""
    """The kernel's word for where it sleeps."""


@dataclass(frozen=True, slots=True)
class Account:
    """All that is known of a run."""

    id: str
    state: str
    rows: tuple[Row, ...]
    scene: Scene
    node0: str = ""
    reason: str = ""
    exit_code: int | None = None
    started: float | None = None
    ended: float | None = None
    now: float | None = None
    """By node0's clock, as are the others."""
    boot: float | None = None
    silent: float | None = None
    """Seconds for which no rank has said anything, where that was reported."""
    at: tuple[At, ...] = ()
    """What each rank of such a run was at."""
    first_failure: Mapping[str, Any] | None = field(default=None, hash=False)
    restarts: tuple[str, ...] = ()
    """What each attempt before the last ended with."""
    unwritten: int = 0
    supervise: tuple[str, ...] = ()

    @property
    def took(self) -> float | None:
        return max(0.0, self.ended - self.started) if self.ended and self.started else None

    def words_of(self, rank: int | None) -> Words:
        return next((words for words in self.scene.words if words.rank == rank), Words(rank, ""))

    def row(self, rank: int) -> Row | None:
        return next((row for row in self.rows if row.rank == rank), None)


def read_account(document: Mapping[str, Any], node0: str) -> Account:
    """From the script's last word."""
    status: dict[str, Any] = _dict(document.get("status"))
    events = [each for each in _list(document.get("events")) if isinstance(each, dict)]
    begun = max((at for at, each in enumerate(events) if each.get("event") == "restart"), default=0)
    exits = {each.get("rank"): _number(each.get("at")) for each in events[begun:] if each.get("event") == "exit"}
    rows = tuple(_row(each, exits) for each in _list(status.get("ranks")) if isinstance(each, dict))
    first = status.get("first_failure")
    now = _number(document.get("now"))
    return Account(
        id=str(status.get("id") or ""),
        state=str(status.get("state") or "unknown"),
        rows=rows,
        scene=_scene(document, status, rows, first if isinstance(first, dict) else {}, node0),
        node0=node0,
        reason=str(status.get("reason") or ""),
        exit_code=_whole(status.get("exit_code")),
        started=_number(status.get("started")),
        ended=_number(status.get("ended")),
        now=now,
        boot=_number(document.get("boot")),
        silent=_silent(status, now),
        at=_at(status),
        first_failure=first if isinstance(first, dict) else None,
        restarts=_attempts(status, events),
        unwritten=_whole(status.get("unwritten_events")) or 0,
        supervise=_lines(document.get("supervise")),
    )


def _scene(
    document: Mapping[str, Any],
    status: Mapping[str, Any],
    rows: Sequence[Row],
    first: Mapping[str, Any],
    node0: str,
) -> Scene:
    texts = {key: _unpacked(text) for key, text in _dict(document.get("texts")).items()}
    keys = _dict(document.get("ranks"))
    words = []
    for row in rows:
        own = _dict(keys.get(str(row.rank)))
        is_first = first.get("rank") == row.rank
        words.append(
            Words(
                row.rank,
                row.host,
                texts.get(str(own.get("out")), ()),
                texts.get(str(own.get("err")), ()),
                _whole(first.get("exit_code")) if is_first else row.exit_code,
                _whole(first.get("signal")) if is_first else row.signal,
                str(first.get("kind") or "") if is_first else "",
                row.state,
            )
        )
    plan = _dict(document.get("plan"))
    log = _lines(document.get("mpirun")) or _lines(_dict(status.get("mpirun")).get("tail"))
    return Scene(
        run=str(status.get("id") or ""),
        words=tuple(words),
        mpirun=Words(None, node0, (), (*log, str(status.get("reason") or ""))),
        plan=plan,
        master=_dict(status.get("master")),
        tiers={str(host): str(tier) for host, tier in _dict(plan.get("tiers")).items() if tier},
    )


def _row(said: Mapping[str, Any], exits: Mapping[Any, float | None]) -> Row:
    rank = _whole(said.get("rank")) or 0
    return Row(
        rank=rank,
        host=str(said.get("host") or ""),
        state=str(said.get("state") or "unknown"),
        pid=_whole(said.get("pid")),
        exit_code=_whole(said.get("exit_code")),
        signal=_whole(said.get("signal")),
        oom=bool(said.get("oom")),
        lost=_whole(said.get("lost")) or 0,
        mismatch=_lines(said.get("mismatch")),
        ended_at=exits.get(rank),
    )


def _silent(status: Mapping[str, Any], now: float | None) -> float | None:
    since = _number(_dict(status.get("silent")).get("since"))
    until = _number(status.get("ended")) if status.get("state") in FINAL else now
    return None if since is None or until is None else max(0.0, until - since)


def _at(status: Mapping[str, Any]) -> tuple[At, ...]:
    rows = [row for row in _list(_dict(status.get("silent")).get("ranks")) if isinstance(row, dict)]
    return tuple(
        At(
            _whole(row.get("rank")) or 0,
            str(row.get("host") or ""),
            str(row.get("last") or ""),
            (_number(row.get("cpu")) or 0.0) > _BUSY,
            str(row.get("waits_in") or ""),
        )
        for row in rows
    )


def _attempts(status: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    noted = [each for each in _list(status.get("attempts")) if isinstance(each, dict)]
    if noted:
        return tuple(str(each.get("reason") or "") for each in noted)
    return tuple(str(each.get("after") or "") for each in events if each.get("event") == "restart")


def _unpacked(text: object) -> tuple[str, ...]:
    try:
        data = zlib.decompress(base64.b64decode(str(text)))
    except (binascii.Error, zlib.error, ValueError):
        return ()
    return tuple(data.decode(errors="replace").split("\n")) if data else ()


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _lines(value: object) -> tuple[str, ...]:
    return tuple(map(str, _list(value)))


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
