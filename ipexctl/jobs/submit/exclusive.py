"""Holds the hosts of a run for one call: `run --exclusive` refuses where another run is, `--wait S` waits for its end.

In: the hosts, the run's id, the seconds to wait; out: a `Claim` on all hosts, or a `StartError` that names the other
runs. `launch/other_runs.py: judge` has the rule and says why two calls never both start. A claim is a process on each
host (`facts/probe/claim.sh`) that every account sees and that ends with this call's connection, so a killed call holds
nothing. A call that waits has no claim and no place in a queue: it looks again every few seconds, and claims the hosts
once they are free.
"""

from __future__ import annotations

import os
import queue
import time
from concurrent.futures import wait
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final

from ipexctl.facts.live_runs import RunsOnHost, read_look
from ipexctl.facts.probe import claim_command, live_runs_command
from ipexctl.hosts.nodeset import fold
from ipexctl.jobs.submit.request import StartError, StartFailure
from ipexctl.launch.other_runs import OtherRun, describe_all, find_other_runs, judge
from ipexctl.limits import CLAIM_CONTEST, RUNS_LOOK
from ipexctl.remote.fanout import fan_out, run_in_background
from ipexctl.remote.outcome import Cancelled, HostError, TimedOut, Unreachable
from ipexctl.remote.session import MAX_OUTPUT, Session, StdinQueue, capture
from ipexctl.text import rough_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ipexctl.hosts.host import Host
    from ipexctl.node.common.frames import StreamName
    from ipexctl.remote.fanout import Outcome
    from ipexctl.remote.session_pool import SessionPool

POLL: Final = 3.0
"""Seconds between two looks at the hosts while they are not free."""
_CONTEST_POLL: Final = 0.3
_LOOKS: Final = 3
"""Attempts to see the own claim."""
_END_SECONDS: Final = 3.0
"""For the processes of a claim to end."""
_END_OF_LOOK: Final = b"looked yes\n"


class _HostClaim:
    """The process that holds one host."""

    def __init__(self, session: Session, run: str, stamp: int, pool: SessionPool) -> None:
        self._run = run
        self._stdin = StdinQueue()
        self._received = b""
        self._looks: queue.SimpleQueue[RunsOnHost | HostError] = queue.SimpleQueue()
        command = claim_command(run, stamp)

        def hold() -> None:
            try:
                session.run(command, self._sink, stdin=self._stdin, cancel=pool.cancel)
                self._looks.put(HostError("the process that holds the host has ended"))
            except HostError as error:
                self._looks.put(error)

        self.held = run_in_background(hold, "claim")

    def _sink(self, stream: StreamName, data: bytes) -> None:
        if stream != "stdout":
            return
        self._received += data
        if len(self._received) > MAX_OUTPUT:
            raise HostError("it lists runs without end")
        while _END_OF_LOOK in self._received:
            text, mark, self._received = self._received.partition(_END_OF_LOOK)
            self._looks.put(read_look((text + mark).decode(errors="replace")) or RunsOnHost())

    def read(self) -> RunsOnHost:
        """The next look. Raises a HostError.

        Each look must show this claim itself: on a host without awk, or without memory for another process, an empty
        answer does not mean that there is no run.
        """
        for _ in range(_LOOKS):
            try:
                look = self._looks.get(timeout=RUNS_LOOK)
            except queue.Empty:
                raise TimedOut(f"no look at its runs within {RUNS_LOOK:g} s") from None
            if isinstance(look, HostError):
                raise look
            if any(live.run == self._run for live in look.runs):
                return look
            self.ask()
        raise HostError(
            "its processes can't be listed, so that other runs are not seen",
            "without --exclusive and --wait, the run starts; ipexctl doctor may show what the host lacks",
        )

    def ask(self) -> None:
        self._stdin.send(b"look\n")

    def leave(self, rundir: str) -> None:
        """Let it stay until a program of the run is there, or has been."""
        self._stdin.send(b"started " + os.fsencode(rundir) + b"\n")

    def end(self) -> None:
        self._stdin.end()


class Claim:
    """The hold on all hosts of a run that is starting."""

    def __init__(self, hosts: Sequence[Host], run: str, pool: SessionPool) -> None:
        self._hosts, self._run, self._pool = hosts, run, pool
        self._stamp = time.time_ns() // 1000
        self._claims: dict[str, _HostClaim] = {}
        self.hiding: tuple[str, ...] = ()
        """The hosts that do not show the runs of other accounts."""
        self.has_waited = False
        """Whether the hosts were not free at first: what was known of them before is old."""

    def take(self) -> tuple[OtherRun, ...]:
        """Claim all hosts; returns the runs in the way, none if this one may start. Raises a StartError."""

        def claim(host: Host, session: Session) -> RunsOnHost:
            self._claims[host.name] = _HostClaim(session, self._run, self._stamp, self._pool)
            return self._claims[host.name].read()

        looks = _by_host(self._pool.each(self._hosts, claim))
        self.hiding = tuple(name for name, look in looks.items() if look.hides_others)
        others = find_other_runs(looks, self._run)
        until = time.monotonic() + CLAIM_CONTEST
        while judge(others, self._run, self._stamp) == "contested" and time.monotonic() < until:
            self._pool.cancel.sleep(_CONTEST_POLL)
            others = find_other_runs(self._look(), self._run)
        return others

    def _look(self) -> Mapping[str, RunsOnHost]:
        for claim in self._claims.values():
            claim.ask()
        return _by_host(self._pool.each(self._hosts, lambda host, _: self._claims[host.name].read()))

    def leave(self, rundir: str) -> None:
        """The run has started: hold each host until its programs are there."""
        for claim in self._claims.values():
            claim.leave(rundir)
        self._wait()

    def release(self) -> None:
        for claim in self._claims.values():
            claim.end()
        self._wait()

    def _wait(self) -> None:
        wait([claim.held for claim in self._claims.values()], _END_SECONDS)


def hold_hosts(
    hosts: Sequence[Host], run: str, seconds: float | None, pool: SessionPool, notify: Callable[[str], None]
) -> Claim:
    """Claim the hosts, and wait so many seconds for that. Raises a StartError.

    `notify` gets what the call waits for, at once and whenever that changes.
    """
    wait_ = _Wait(hosts, run, seconds, pool, notify)
    try:
        while True:
            claim = Claim(hosts, run, pool)
            with ExitStack() as undo:
                undo.callback(claim.release)
                others = claim.take()
                if not others:
                    undo.pop_all()
                    claim.has_waited = wait_.has_begun
                    return claim
            wait_.until_free(others)
    except Cancelled as error:
        raise StartError(StartFailure(error.reason, error.fix)) from None


class _Wait:
    """The wait of one call: looks at the hosts, and says what it waits for."""

    def __init__(
        self,
        hosts: Sequence[Host],
        run: str,
        seconds: float | None,
        pool: SessionPool,
        notify: Callable[[str], None],
    ) -> None:
        self._hosts, self._run, self._pool, self._notify = hosts, run, pool, notify
        self._seconds = seconds
        self._began = time.monotonic()
        self._told: object = None

    @property
    def has_begun(self) -> bool:
        return self._told is not None

    def until_free(self, others: Sequence[OtherRun]) -> None:
        """Return once a look shows no other run; raises a StartError when the time is over."""
        away: dict[str, HostError] = {}
        while others or away:
            left = self._began + (self._seconds or 0) - time.monotonic()
            if left <= 0:
                raise StartError(self._refusal(others, away))
            self._tell(others, away, left)
            self._pool.cancel.sleep(min(POLL, left))
            others, away = self._look()
        self._notify(f"the hosts are free after {rough_duration(time.monotonic() - self._began)}")

    def _look(self) -> tuple[Sequence[OtherRun], dict[str, HostError]]:
        looks: dict[str, RunsOnHost] = {}
        away: dict[str, HostError] = {}
        pool = self._pool
        for outcome in fan_out(self._hosts, self._look_at, forks=pool.forks, cancel=pool.cancel):
            if outcome.error is not None:
                away[outcome.host.name] = outcome.error
            elif outcome.result is not None:
                looks[outcome.host.name] = outcome.result
        if pool.cancel.thrown:
            raise Cancelled("stopped")
        return find_other_runs(looks, self._run), away

    def _look_at(self, host: Host) -> RunsOnHost:
        """Over a new connection if the last one was lost: a wait for hours must survive the reboot of a switch."""
        pool = self._pool
        if (session := pool.opened(host)) is None:
            session = pool.connector.open(host, pool.cancel)
            pool.attach(session)
        try:
            return look_at(session)
        except Unreachable:
            if (lost := pool.detach(host)) is not None:
                with suppress(OSError, EOFError):
                    lost.close()
            raise

    def _tell(self, others: Sequence[OtherRun], away: Mapping[str, HostError], left: float) -> None:
        # Hosts answer in another order at each look, which is no news.
        news = {(other.id, other.account, frozenset(other.hosts), other.is_starting) for other in others}, set(away)
        if news == self._told:
            return
        parts = [describe_all(others, time.time())] if others else []
        parts += [f"{name} does not answer ({error.reason})" for name, error in list(away.items())[:1]]
        self._notify(f"waiting up to {rough_duration(left)}: {'; '.join(parts)}")
        self._told = news

    def _refusal(self, others: Sequence[OtherRun], away: Mapping[str, HostError]) -> StartFailure:
        if not others:
            name, error = next(iter(away.items()))
            return StartFailure.of_host(name, error)
        return refusal(
            others, "after a wait of " + rough_duration(self._seconds) if self._seconds else "", now=time.time()
        )


def refusal(others: Sequence[OtherRun], waited: str = "", *, now: float) -> StartFailure:
    """Why a run that is to have its hosts for itself does not start."""
    names = tuple(dict.fromkeys(host for other in others for host in other.hosts))
    return StartFailure(
        f"{fold(names)} {'is' if len(names) == 1 else 'are'} not free{' ' if waited else ''}{waited}: "
        + describe_all(others, now),
        f"{'a longer --wait S waits' if waited else '--wait 3600 waits an hour'} for its end; without --exclusive and "
        "--wait, the run starts beside it",
        names,
        other_runs=tuple(others),
    )


def _by_host(outcomes: Iterable[Outcome[Host, RunsOnHost]]) -> dict[str, RunsOnHost]:
    """What was seen on each host; raises a StartError if one did not answer."""
    looks: dict[str, RunsOnHost] = {}
    failures: list[StartFailure] = []
    for outcome in outcomes:
        if isinstance(outcome.error, Cancelled):
            failures.insert(0, StartFailure(outcome.error.reason))
        elif outcome.error is not None:
            failures.append(StartFailure.of_host(outcome.host.name, outcome.error))
        elif outcome.result is not None:
            looks[outcome.host.name] = outcome.result
    if failures:
        raise StartError(failures[0])
    return looks


def look_at(session: Session) -> RunsOnHost:
    """The runs that are alive on a host. Raises a HostError."""
    done = capture(session, live_runs_command(), timeout=RUNS_LOOK)
    look = read_look(done.stdout.decode(errors="replace"))
    if look is None:
        raise HostError(f"the look at its runs failed ({done.ended})")
    return look
