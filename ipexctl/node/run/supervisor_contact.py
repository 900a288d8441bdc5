"""Decides about a rank's connection to its supervisor: when to connect, when to replace it, and when it is lost. Pure.

`supervisor_client.py` acts, and `rank_machine.py` ends the rank of a lost supervisor. A silent connection is replaced
before its supervisor counts as lost. A port that takes connections is waited for longest, a closed one shortest. Time
in which this process itself was suspended does not count as silence.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ipexctl.node.common.limits import SUPERVISOR_AT_EXIT, SUPERVISOR_BUSY, SUPERVISOR_REFUSED, SUPERVISOR_SILENCE

BEAT_INTERVAL = 4.0
"""Seconds between two messages, which the supervisor answers: they show it that a rank or a starter lives."""
SILENCE_LIMIT = 12.0
"""Seconds of silence before the rank reconnects."""
CONNECT_LIMIT = 5.0
SUSPENDED = 8.0
"""Like `machine.SUSPENDED`, for a rank, which may check the time only when it reports, every four seconds."""
RETRY_INTERVAL = 0.5


class Stage(Enum):
    NONE = "there is none; the next try is at `retry_at`"
    CONNECTING = "the port has not taken it yet"
    UNANSWERED = "the port has taken it, and the two ends have not proven the token yet"
    UP = "the two ends have proven it"


class Due(Enum):
    NOTHING = "go on"
    CONNECT = "connect"
    DROP = "drop a connection that is not answered"
    LEAVE = "drop one that works: without a message the supervisor takes this process for killed"


class Contact(NamedTuple):
    """What is known of the connection; each method returns the next `Contact`."""

    addresses: tuple[tuple[str, int], ...]
    """Hosts with ports. On node0 the first is a local one, not used again after a connection there failed to
    authenticate."""
    last_received: float
    """When the supervisor's last message arrived, or could not be missed."""
    turned_at: float
    stage: Stage = Stage.NONE
    why: str = "it has not answered"
    is_refused: bool = False
    """The supervisor's port is closed."""
    began_at: float = 0.0
    retry_at: float = 0.0
    taken_at: float = float("-inf")
    """Last time the port accepted a connection. The kernel accepts for as long as the supervisor process lives."""

    @property
    def is_up(self) -> bool:
        return self.stage is Stage.UP

    def on_turn(self, now: float) -> Contact:
        """While this process itself was suspended, it could not receive what the supervisor sent."""
        was_suspended = now - self.turned_at > SUSPENDED
        last = now if was_suspended else self.last_received
        taken = now if self.stage is Stage.UNANSWERED else self.taken_at
        return self._replace(turned_at=now, last_received=last, taken_at=taken)

    def due(self, now: float) -> Due:
        if self.stage is Stage.NONE:
            return Due.CONNECT if now >= self.retry_at else Due.NOTHING
        if self.stage is Stage.UP:
            return Due.LEAVE if now - self.last_received > SILENCE_LIMIT else Due.NOTHING
        # At its only address, a port that accepted may yet answer. More connections would fill the port's queue.
        may_answer = self.stage is Stage.UNANSWERED and len(self.addresses) == 1
        return Due.DROP if now - self.began_at > (SUPERVISOR_BUSY if may_answer else CONNECT_LIMIT) else Due.NOTHING

    def on_connecting(self, now: float) -> Contact:
        return self._replace(stage=Stage.CONNECTING, began_at=now, is_refused=False)

    def on_taken(self) -> Contact:
        return self._replace(stage=Stage.UNANSWERED)

    def on_stranger(self) -> Contact:
        """Another program has this port: that it accepts connections means nothing."""
        return self._replace(taken_at=float("-inf"))

    def on_welcome(self, now: float) -> Contact:
        return self._replace(stage=Stage.UP, last_received=now)

    def on_message(self, now: float) -> Contact:
        return self._replace(last_received=now)

    def after_work(self, now: float) -> Contact:
        """The wrapper did something that takes time, and received nothing meanwhile."""
        return self._replace(last_received=now, turned_at=now)

    def on_break(self, why: str, now: float, *, is_refused: bool = False) -> Contact:
        was_answered = self.stage in (Stage.NONE, Stage.UP)
        return self._replace(
            stage=Stage.NONE,
            why=why,
            is_refused=is_refused,
            retry_at=now + RETRY_INTERVAL,
            addresses=self.addresses if was_answered else self.addresses[-1:],
        )

    def is_lost(self, now: float, *, at_exit: bool) -> bool:
        """True if the supervisor counts as lost. `at_exit`: mpirun sent a signal and the command has exited."""
        if at_exit:
            limit = SUPERVISOR_AT_EXIT
        elif self.is_refused:
            limit = SUPERVISOR_REFUSED
        else:
            limit = SUPERVISOR_BUSY if now - self.taken_at < SUPERVISOR_SILENCE else SUPERVISOR_SILENCE
        return now - self.last_received > limit
