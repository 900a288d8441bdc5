"""Progress events of a long step. Values only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Notice:
    text: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class BytesMoved:
    host: str
    what: str
    """`downloading`, `receiving`, or a file name."""
    done: int
    total: int | None


@dataclass(frozen=True, slots=True)
class Stepped:
    """A host began a step of unknown length, such as `unpacking`."""

    host: str
    what: str


@dataclass(frozen=True, slots=True)
class Timed:
    host: str
    what: str
    seconds: float


@dataclass(frozen=True, slots=True)
class HostFinished:
    host: str
    what: str
    ok: bool


ProgressEvent = Notice | BytesMoved | Stepped | Timed | HostFinished
Watch = Callable[[ProgressEvent], None]


def ignore_event(*_: object) -> None:
    """The default of `watch` and of other callbacks."""
