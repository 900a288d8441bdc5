"""Asking hosts what they are: one command each, in one round trip. What the answer means is `parse`'s."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipexctl.facts.parse import parse
from ipexctl.facts.probe import probe_command
from ipexctl.remote.outcome import HostError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ipexctl.facts.facts import Facts
    from ipexctl.hosts.host import Host
    from ipexctl.remote.outcome import Status
    from ipexctl.remote.session import Session, Stream
    from ipexctl.remote.session_pool import SessionPool


@dataclass(frozen=True, slots=True)
class Skew:
    """How far a host's clock is ahead of ours, in seconds, give or take."""

    seconds: float
    uncertainty: float


def skew(clock: float, sent: float, heard: float) -> Skew:
    """The host read its clock at some moment between our sending the question and our hearing its first word."""
    half = max(0.0, heard - sent) / 2
    return Skew(clock - sent - half, half)


@dataclass(frozen=True, slots=True)
class HostFacts:
    """One host's answer, or why there is none, or not all of it."""

    host: Host
    status: Status
    seconds: float
    """From the call's beginning until we had it."""
    facts: Facts | None = None
    reason: str = ""
    fix: str = ""
    sent: float | None = None
    """Our own clock when the probe was sent, in seconds since 1970."""
    heard: float | None = None
    """Our own clock at the first of the answer, which carries the host's clock."""

    @property
    def skew(self) -> Skew | None:
        if self.facts is None or self.facts.clock is None or self.sent is None or self.heard is None:
            return None
        return skew(self.facts.clock, self.sent, self.heard)


class _Answer:
    """Collects what a host prints, and notes when it began."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.heard: float | None = None

    def sink(self, stream: Stream, data: bytes) -> None:
        if stream == "stdout":
            if self.heard is None:
                self.heard = time.time()
            self.pieces.append(data)

    @property
    def text(self) -> str:
        return b"".join(self.pieces).decode("utf-8", "replace")


def _ignore_step(host: Host, step: str, seconds: float) -> None:
    """Nobody asked to see the steps."""


def gather(
    hosts: Sequence[Host],
    pool: SessionPool,
    *,
    home: str | None = None,
    timeout: float | None = None,
    on_step: Callable[[Host, str, float], None] = _ignore_step,
) -> Iterator[HostFacts]:
    """Probe every host, yielding each answer as it comes. Every host is asked for the names of all.

    Where the time is up or the connection lost, the facts are those that had come, beside the reason.
    """
    command = probe_command(tuple(dict.fromkeys(name for host in hosts for name in names_of(host))), home)
    began = time.monotonic()

    def work(host: Host, session: Session) -> HostFacts:
        answer = _Answer()
        asked = time.monotonic()
        sent = time.time()
        status: Status = "ok"
        reason = fix = ""
        try:
            ended = session.run(command, answer.sink, timeout=timeout, cancel=pool.cancel)
        except HostError as error:
            status, reason, fix = error.status, error.reason, error.fix
        else:
            if not answer.pieces:
                status, reason = "failed", f"the probe printed nothing ({ended})"
        on_step(host, "probed", time.monotonic() - asked)
        facts = parse(answer.text) if answer.pieces else None
        return HostFacts(host, status, time.monotonic() - began, facts, reason, fix, sent=sent, heard=answer.heard)

    for done in pool.each(hosts, work):
        if done.result is not None:
            yield done.result
        elif done.error is not None:
            error = done.error
            yield HostFacts(done.host, error.status, time.monotonic() - began, reason=error.reason, fix=error.fix)


def names_of(host: Host) -> tuple[str, ...]:
    """What the other hosts may know it by: its name, and its internal address where that is a name."""
    return tuple(name for name in (host.name, host.internal) if name)
