"""Decide how long a call that follows a run waits for a node0 that does not answer. Pure.

Seconds without a frame add up. Once they exceed `--reconnect`, the call ends, after at least one attempt to reconnect.
The sum is reset once frames have arrived for 30 seconds, so that a host that sends one frame and falls silent again
cannot hold a call forever.
"""

from __future__ import annotations

import math
from typing import Final, Literal, TypeAlias

from ipexctl.limits import NODE0_SILENCE, NODE0_STEADY
from ipexctl.text import rough_duration

_MINUTE: Final = 60.0


Step: TypeAlias = Literal["lost", "away", "again", "over"]
"""What to do after a loss: report it (`lost`), report another minute (`away`), report nothing (`again`), or end the
call (`over`).
"""


class Absence:
    """How long node0 has not answered. All times are monotonic."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._before = 0.0
        """Seconds without a frame before the current connection."""
        self._first_at: float | None = None
        """Time of the first frame of the current connection; None before it."""
        self._last_at: float | None = None
        """Time of the last frame; None before the first."""
        self._minutes = 0
        """Minutes of the absence that were reported."""

    def on_frame(self, now: float) -> None:
        """Take note of a frame from node0."""
        if self._first_at is None:
            if self._last_at is not None:
                self._before += now - self._last_at
            self._first_at = now
        elif now - self._first_at > NODE0_STEADY:
            self._before, self._minutes = 0.0, 0
        self._last_at = now

    def on_loss(self, now: float) -> Step:
        """Take note of a lost connection, or of a failed attempt to connect; return what to do."""
        is_first = self._first_at is not None
        self._first_at = None
        away = self.away(now)
        is_new = is_first and not self._before and self.limit > 0
        if away >= self.limit and not is_new:
            return "over"
        minutes = math.floor(away / _MINUTE)
        is_new_minute, self._minutes = minutes > self._minutes, minutes
        return "lost" if is_first else "away" if is_new_minute else "again"

    def away(self, now: float) -> float:
        """Return the seconds without a frame that count."""
        return self._before + (0.0 if self._last_at is None or self._first_at is not None else now - self._last_at)

    def unseen(self, now: float) -> float | None:
        """Return the seconds since the last frame; 0 while frames arrive, None if there was none."""
        if self._last_at is None:
            return None
        is_heard = self._first_at is not None and now - self._last_at < NODE0_SILENCE
        return 0.0 if is_heard else now - self._last_at

    def left(self, now: float) -> float:
        """Return the seconds until the call ends."""
        return max(0.0, self.limit - self.away(now))

    def notice(self, step: Step, name: str, reason: str, now: float) -> str:
        """Return what to tell the user; empty if nothing. `reason`: why node0 was lost."""
        left = rough_duration(self.left(now))
        if step == "lost":
            return f"{name}: {reason}; connecting again, for up to {left} (--reconnect)"
        if step == "away":
            return f"{name}: not reached for {rough_duration(self.away(now))}; connecting again, for up to {left} more"
        return ""

    def end_reason(self, run: str, reason: str) -> str:
        """Return why the call ends."""
        return f"not reached for {rough_duration(self.limit)} (--reconnect): {reason}; run {run} may still be running"
