"""Decides about a rank's connection to its supervisor: when to connect, when to replace it, and when it is lost.

In come what the sockets have seen (a port that took the connection, a welcome, a message, a break) and the time; out
come the next `Contact` and, at each turn of the loop, what is due. `supervisor_client.py` acts, and `rank_machine.py`
ends the rank of a lost supervisor. The rules: a silent connection is replaced before its supervisor counts as lost; a
port that takes connections is waited for longest, and a closed one shortest; time in which this process was itself
suspended is no silence. It touches no socket and no clock.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ipexctl.node.common.limits import SUPERVISOR_AT_EXIT, SUPERVISOR_BUSY, SUPERVISOR_REFUSED, SUPERVISOR_SILENCE

BEAT_INTERVAL = 4.0
"""Seconds between two messages, which the supervisor answers: by these it sees that a rank or a starter lives."""
SILENCE_LIMIT = 12.0
"""Seconds of silence until the rank reconnects."""
CONNECT_LIMIT = 5.0
"""Seconds to connect and authenticate."""
SUSPENDED = 8.0
"""Like `machine.SUSPENDED`, for a rank: it may look at the time only when it reports, every four seconds."""
RETRY_INTERVAL = 0.5


class Stage(Enum):
    """How far the connection is."""

    NONE = "there is none; the next try is at `retry_at`"
    CONNECTING = "the port has not taken it yet"
    UNANSWERED = "the port has taken it, and the two ends have not proven the token yet"
    UP = "the two ends have proven it"


class Due(Enum):
    """What the client does now."""

    NOTHING = "go on"
    CONNECT = "connect"
    DROP = "drop a connection that is not answered"
    LEAVE = "drop one that works: without a message the supervisor takes this process for killed"


class Contact(NamedTuple):
    """What is known of the connection; each method returns what is known after it."""

    addresses: tuple[tuple[str, int], ...]
    """Hosts with ports. On node0 the first is a local one, which is not used again after a connection there that was
    not authenticated."""
    last_received: float
    """When the last message of the supervisor arrived, or could not be missed."""
    turned_at: float
    """When the loop had its last turn."""
    stage: Stage = Stage.NONE
    why: str = "it has not answered"
    """The reason of the last break."""
    is_refused: bool = False
    """The supervisor's port is closed."""
    began_at: float = 0.0
    retry_at: float = 0.0
    taken_at: float = float("-inf")
    """When its port last had taken a connection, which the kernel does while the supervisor's process exists."""

    @property
    def is_up(self) -> bool:
        return self.stage is Stage.UP

    def on_turn(self, now: float) -> Contact:
        """While this process was itself suspended, it could not receive what the supervisor sent."""
        was_suspended = now - self.turned_at > SUSPENDED
        last = now if was_suspended else self.last_received
        taken = now if self.stage is Stage.UNANSWERED else self.taken_at
        return self._replace(turned_at=now, last_received=last, taken_at=taken)

    def due(self, now: float) -> Due:
        if self.stage is Stage.NONE:
            return Due.CONNECT if now >= self.retry_at else Due.NOTHING
        if self.stage is Stage.UP:
            return Due.LEAVE if now - self.last_received > SILENCE_LIMIT else Due.NOTHING
        # At its only address, a port that has taken it may yet answer. More connections would fill the port's queue.
        may_answer = self.stage is Stage.UNANSWERED and len(self.addresses) == 1
        return Due.DROP if now - self.began_at > (SUPERVISOR_BUSY if may_answer else CONNECT_LIMIT) else Due.NOTHING

    def on_connecting(self, now: float) -> Contact:
        return self._replace(stage=Stage.CONNECTING, began_at=now, is_refused=False)

    def on_taken(self) -> Contact:
        return self._replace(stage=Stage.UNANSWERED)

    def on_stranger(self) -> Contact:
        """Another program has this port: that it takes connections means nothing."""
        return self._replace(taken_at=float("-inf"))

    def on_welcome(self, now: float) -> Contact:
        return self._replace(stage=Stage.UP, last_received=now)

    def on_message(self, now: float) -> Contact:
        return self._replace(last_received=now)

    def after_work(self, now: float) -> Contact:
        """The wrapper has done something that takes time, in which it has received nothing."""
        return self._replace(last_received=now, turned_at=now)

    def on_break(self, why: str, now: float, *, is_refused: bool = False) -> Contact:
        """The connection, or the try to make one, has failed."""
        was_answered = self.stage in (Stage.NONE, Stage.UP)
        return self._replace(
            stage=Stage.NONE,
            why=why,
            is_refused=is_refused,
            retry_at=now + RETRY_INTERVAL,
            addresses=self.addresses if was_answered else self.addresses[-1:],
        )

    def is_lost(self, now: float, *, at_exit: bool) -> bool:
        """Whether the supervisor counts as lost. `at_exit`: mpirun has sent a signal and the command has ended."""
        if at_exit:
            limit = SUPERVISOR_AT_EXIT
        elif self.is_refused:
            limit = SUPERVISOR_REFUSED
        else:
            limit = SUPERVISOR_BUSY if now - self.taken_at < SUPERVISOR_SILENCE else SUPERVISOR_SILENCE
        return now - self.last_received > limit
