"""Decides what a host starter does. Pure; `__main__.py` acts.

An attempt, or a line of mpirun, is started once, even if the supervisor repeats its order. A starter that never reached
its supervisor exits as soon as the port is closed. One that loses its supervisor, by the limits of a rank wrapper, ends
the wrappers first.
"""

from __future__ import annotations

import signal
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Tuple, Union

from ipexctl.node.common.node_limits import OUTPUT_DRAIN, STARTER_WAIT, TERM_GRACE
from ipexctl.node.run.connection.supervisor_contact import BEAT_INTERVAL

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json
    from ipexctl.node.run.connection.supervisor_contact import Contact

NEVER = float("inf")
BUSY_TURN = 0.5


class StarterAct(Enum):
    KILL_PROCESSES = "kill what remains of the attempt's wrappers and lines"
    SEND_BEAT = "send the supervisor a heartbeat"
    REPEAT_ENDS = "report ended wrappers and lines again: the first report may have been lost"


class StartWrappers(NamedTuple):
    attempt: int
    ranks: tuple[int, ...]
    """Empty if mpirun starts the ranks."""
    job: str = ""
    """Text of the job file, if each attempt has its own."""


class SignalProcesses(NamedTuple):
    """Send a signal to the attempt's wrappers and lines."""

    number: int


class StartShell(NamedTuple):
    """Run a line of mpirun."""

    id: int
    line: str


class EndShell(NamedTuple):
    id: int


class FindGoneWrappers(NamedTuple):
    """Report which of these rank wrappers are gone."""

    wrappers: tuple[tuple[int, int, int, str], ...]
    """Rank, pid, start and scope of each, as in `messages.Hello`."""


Command = Union[StarterAct, StartWrappers, SignalProcesses, StartShell, EndShell, FindGoneWrappers]
Step = Tuple["HostStarterState", Tuple[Command, ...]]


class HostStarterState(NamedTuple):
    attempt: int | None = None
    has_met: bool = False
    is_lost: bool = False
    """True once the supervisor no longer answers."""
    is_over: bool = False
    rejoins: bool = False
    wait_until: float = NEVER
    beat_at: float = 0.0
    kill_at: float = NEVER
    shells: frozenset[int] = frozenset()
    """Lines that were started."""

    def on_welcome(self, welcome: Json) -> Step:
        """Handle the first welcome or a reconnect. Orders that were missed follow. Exit if the host has a starter."""
        if welcome.get("is_taken"):
            return self._replace(is_over=True), ()
        return self._replace(has_met=True, is_lost=False, beat_at=0.0), (StarterAct.REPEAT_ENDS,)

    def on_message(self, message: Json) -> Step:
        """Handle an order of the supervisor, which is proven already. Other messages change nothing."""
        kind = message.get("t")
        if kind == "start":
            return self._start(message)
        if kind == "signal" and isinstance(message.get("number"), int):
            return self, (SignalProcesses(message["number"]),)
        if kind == "shell":
            return self._start_shell(message["id"], message["line"])
        if kind == "end-shell":
            return self, (EndShell(message["id"]),)
        if kind == "ask":
            return self, (FindGoneWrappers(tuple(map(tuple, message["wrappers"]))),)
        if kind == "dismiss":
            return self._replace(is_over=True), ()
        return self, ()

    def on_turn(self, contact: Contact, now: float, *, is_idle: bool) -> Step:
        """Decide what time alone makes due: a beat, or the end if the supervisor is lost. `is_idle`: no wrapper or line
        is running."""
        if self.is_lost:
            return self._wait(contact, now, is_idle=is_idle)
        is_lost = contact.is_lost(now) or (contact.is_refused and not self.has_met)
        if is_lost:
            state = self._replace(is_lost=True, kill_at=now + TERM_GRACE + OUTPUT_DRAIN, wait_until=now + STARTER_WAIT)
            return state, () if is_idle else (SignalProcesses(signal.SIGTERM),)
        if contact.is_up and now >= self.beat_at:
            return self._replace(beat_at=now + BEAT_INTERVAL), (StarterAct.SEND_BEAT,)
        return self, ()

    def seconds_to_turn(self, contact: Contact, now: float) -> float:
        """Return the seconds until the next turn is due, if nothing happens before."""
        if self.is_lost or not contact.is_up:
            return BUSY_TURN
        return max(0.0, self.beat_at - now)

    def _wait(self, contact: Contact, now: float, *, is_idle: bool) -> Step:
        """Take a turn without a supervisor. It may come back, unless its port is closed."""
        may_be_back = self.rejoins and self.has_met and not contact.is_refused and now < self.wait_until
        if not is_idle and now < self.kill_at:
            return self, ()
        return self._replace(is_over=not may_be_back), () if is_idle else (StarterAct.KILL_PROCESSES,)

    def _start_shell(self, number: int, line: str) -> Step:
        if self.is_lost or number in self.shells:
            return self, ()
        return self._replace(shells=self.shells | {number}), (StartShell(number, line),)

    def _start(self, order: Json) -> Step:
        attempt, ranks, job = order.get("attempt"), order.get("ranks") or (), order.get("job")
        if not isinstance(attempt, int) or self.is_lost or (self.attempt is not None and attempt <= self.attempt):
            return self, ()
        numbers = tuple(rank for rank in ranks if isinstance(rank, int))
        return self._replace(attempt=attempt), (StartWrappers(attempt, numbers, job if isinstance(job, str) else ""),)
