"""Decides when a rank or a host starter connects to its supervisor, when it reconnects, and when the supervisor counts
as lost. Pure.

A silent connection is replaced before the supervisor counts as lost. A rank waits longest if the port accepts
connections, and shortest if it is closed.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ipexctl.node.common.node_limits import SUPERVISOR_BUSY, SUPERVISOR_REFUSED, SUPERVISOR_SILENCE

BEAT_INTERVAL = 4.0
"""Seconds between two signs of life of a rank or a host starter. The supervisor answers each."""
SILENCE_LIMIT = 12.0
"""Seconds of silence before the rank reconnects."""
CONNECT_LIMIT = 5.0
SUSPENDED = 8.0
"""Seconds between two turns after which a rank was suspended. Longer than `supervisor_machine.SUSPENDED`, because
a rank may take a turn only every four seconds."""
RETRY_INTERVAL = 0.5
MOST_BREAKS = 100
"""Connections in a row that broke within SILENCE_LIMIT, after which the supervisor counts as lost."""


class Stage(Enum):
    NONE = "not connected; the next attempt is at `retry_at`"
    CONNECTING = "the port has not accepted the connection yet"
    UNANSWERED = "the port accepted the connection; the handshake is not complete"
    UP = "the handshake is complete"


class Due(Enum):
    NOTHING = "nothing"
    CONNECT = "connect"
    DROP = "drop a connection without an answer"
    LEAVE = "announce and drop a silent connection; unannounced, the rank would look killed"


class Contact(NamedTuple):
    """The connection of a rank or a host starter to its supervisor. Each `on_…` method returns the next `Contact`."""

    addresses: tuple[tuple[str, int], ...]
    """Addresses with ports. On node0 the first is local, and is dropped once a connection there failed to authenticate.
    """
    last_received: float
    """When the last message arrived, or when this process was last unable to receive one."""
    turned_at: float
    stage: Stage = Stage.NONE
    reason: str = "it has not answered"
    is_refused: bool = False
    began_at: float = 0.0
    retry_at: float = 0.0
    taken_at: float = float("-inf")
    """Last time the port accepted a connection. The kernel accepts for as long as the supervisor process lives."""
    up_since: float = 0.0
    breaks: int = 0
    """Connections in a row that broke soon after the welcome."""

    @property
    def is_up(self) -> bool:
        """True if the handshake is complete."""
        return self.stage is Stage.UP

    def on_turn(self, now: float) -> Contact:
        """Note that this process takes a turn. If it was suspended before, the silence of that time does not count."""
        was_suspended = now - self.turned_at > SUSPENDED
        last = now if was_suspended else self.last_received
        taken = now if self.stage is Stage.UNANSWERED else self.taken_at
        return self._replace(turned_at=now, last_received=last, taken_at=taken)

    def due(self, now: float) -> Due:
        """Return what is to be done about the connection now."""
        if self.stage is Stage.NONE:
            return Due.CONNECT if now >= self.retry_at else Due.NOTHING
        if self.stage is Stage.UP:
            return Due.LEAVE if now - self.last_received > SILENCE_LIMIT else Due.NOTHING
        # With one address, a port that accepted may still answer. More connections would only fill the port's queue.
        may_answer = self.stage is Stage.UNANSWERED and len(self.addresses) == 1
        return Due.DROP if now - self.began_at > (SUPERVISOR_BUSY if may_answer else CONNECT_LIMIT) else Due.NOTHING

    def on_connecting(self, now: float) -> Contact:
        """Note that a connection is being made."""
        return self._replace(stage=Stage.CONNECTING, began_at=now, is_refused=False)

    def on_taken(self) -> Contact:
        """Note that the port has accepted the connection."""
        return self._replace(stage=Stage.UNANSWERED)

    def on_stranger(self) -> Contact:
        """Note that another program answers at the port, so that an accepted connection shows no supervisor."""
        return self._replace(taken_at=float("-inf"))

    def on_welcome(self, now: float) -> Contact:
        """Note that the supervisor has proven the token."""
        return self._replace(stage=Stage.UP, last_received=now, up_since=now)

    def on_message(self, now: float) -> Contact:
        """Note that a message has come. After a whole limit of silence in contact, earlier breaks do not count."""
        return self._replace(last_received=now, breaks=self.breaks if now - self.up_since < SILENCE_LIMIT else 0)

    def after_work(self, now: float) -> Contact:
        """Note that this process worked so long that it could not receive, which is no silence of the supervisor."""
        return self._replace(last_received=now, turned_at=now)

    def on_break(self, reason: str, now: float, *, is_refused: bool = False) -> Contact:
        """Note that the connection broke, or could not be made; the next attempt is RETRY_INTERVAL seconds later.

        If it broke before its handshake was complete, only the last address is tried from then on.
        """
        was_answered = self.stage in (Stage.NONE, Stage.UP)
        return self._replace(
            stage=Stage.NONE,
            reason=reason,
            breaks=self.breaks + (self.stage is Stage.UP),
            is_refused=is_refused,
            retry_at=now + RETRY_INTERVAL,
            addresses=self.addresses if was_answered else self.addresses[-1:],
        )

    def is_lost(self, now: float) -> bool:
        """Return True if the supervisor has been silent for too long: for the shortest time if its port is closed, for
        the longest if the port has accepted a connection lately."""
        if self.is_refused:
            limit = SUPERVISOR_REFUSED
        else:
            limit = SUPERVISOR_BUSY if now - self.taken_at < SUPERVISOR_SILENCE else SUPERVISOR_SILENCE
        return now - self.last_received > limit or self.breaks > MOST_BREAKS
