"""Events that a long step reports while it runs, for a view to show. Values only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Notice:
    """A message about the whole call."""

    text: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class BytesMoved:
    """The bytes transferred so far on one host; `host` is empty for the control machine."""

    host: str
    what: str
    """`downloading`, `receiving`, or the name of a file."""
    done: int
    total: int | None


@dataclass(frozen=True, slots=True)
class Stepped:
    """A host has begun a step without a known length, such as `unpacking`."""

    host: str
    what: str


@dataclass(frozen=True, slots=True)
class Timed:
    """A step has ended after so many seconds; shown with -v."""

    host: str
    what: str
    seconds: float


@dataclass(frozen=True, slots=True)
class HostFinished:
    """A host has finished, successfully or not."""

    host: str
    what: str
    ok: bool


ProgressEvent = Notice | BytesMoved | Stepped | Timed | HostFinished
Watch = Callable[[ProgressEvent], None]


def ignore_event(*_: object) -> None:
    """The default of `watch` and of other callbacks."""
