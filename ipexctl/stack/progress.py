"""What happens while an install goes on, as small events that somebody may show, or not. Values only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence about the whole: which stack, how much is to be had."""

    text: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class BytesMoved:
    """How far bytes have come on one host; `host` is empty for this machine."""

    host: str
    what: str
    """`downloading`, `receiving` …"""
    done: int
    total: int | None


@dataclass(frozen=True, slots=True)
class Stepped:
    """A host has begun something that can't be counted."""

    host: str
    what: str
    """`unpacking`, `verifying` …"""


@dataclass(frozen=True, slots=True)
class Timed:
    """A step is done, and what it took: for who asked to see each."""

    host: str
    what: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Ended:
    """A host is through, well or not."""

    host: str
    what: str
    ok: bool


Event = Notice | BytesMoved | Stepped | Timed | Ended
Watch = Callable[[Event], None]


def unwatched(event: Event) -> None:
    """Nobody looks."""
