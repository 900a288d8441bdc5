"""What a follower tells whoever watches a run: output, status, messages, the end. Values only.

`follow` makes them, `ui` shows them. A chunk is bytes as they came: where a line begins or ends is not known here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ipexctl.node.common.frames import Chunk, Stream
from ipexctl.node.common.records import (
    FINAL,
    Failure,
    OutOfMemory,
    RankStatus,
    RunStatus,
    Silence,
    SilentRank,
    State,
    read_status,
)
from ipexctl.remote.progress import Notice

__all__ = (
    "FINAL",
    "Chunk",
    "RunEnded",
    "Event",
    "Failure",
    "OutOfMemory",
    "RankStatus",
    "RunStatus",
    "Notice",
    "Silence",
    "SilentRank",
    "State",
    "Stream",
    "Watch",
    "read_status",
)


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The run is over and all of its output has been told; nothing comes after this."""

    exit_code: int
    status: RunStatus | None = None


Event = Chunk | RunStatus | Notice | RunEnded
Watch = Callable[[Event], None]
