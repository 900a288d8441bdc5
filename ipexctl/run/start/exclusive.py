"""Holds the hosts of a run for one call: `run --exclusive` refuses other runs, `--wait S` waits for their end.

- A lock (`facts/probe/host_lock.sh`) is a process on the host. Every account sees it, and it ends with its call's
  connection.
- All calls take the locks of their hosts in the order of the machines, and stop at the first that another call holds.
  So of two calls with common hosts exactly one starts.
- A run without these options may begin in spite of the locks. A waiting call keeps its locks until that run has ended.
- Any process can hold a lock. One that is no start of ipexctl is named, and after PASS_AFTER seconds the first call in
  the queue starts in spite of it, visible to all calls.
- A waiting call tries the locks once no call is before it in the hosts' queues: first come, first served, over all
  accounts. A position in a queue is a process, too (`facts/probe/host_wait.sh`). The order is that of the processes'
  starts, as the kernel knows them. A call takes the entry locks of all its hosts before its positions begin, so no two
  calls wait for each other.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import ExitStack
from typing import Final, NamedTuple

from ipexctl.facts.live_runs import NO_DETAILS, CallDetails, HostSnapshot, LockHolder, WaitingCall, read_host_snapshot
from ipexctl.facts.probe import live_runs_command, lock_command, wait_command
from ipexctl.hosts.host import Host
from ipexctl.hosts.nodeset import fold
from ipexctl.launch.other_runs import describe_all, find_other_runs, find_waiting
from ipexctl.limits import PASS_AFTER, PATIENCE
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.frames import StreamName
from ipexctl.node.common.plan import OtherRun
from ipexctl.remote.command import Command
from ipexctl.remote.connector import SessionPool
from ipexctl.remote.fanout import Outcome, run_in_background
from ipexctl.remote.outcome import Cancelled, HostError, TimedOut, Unreachable
from ipexctl.remote.session import CommandEnd, OutputCollector, Session, StdinQueue, capture
from ipexctl.run.start.start_request import StartError, StartFailure
from ipexctl.text import rough_duration

POLL: Final = 3.0
"""Seconds between two looks at the hosts while they are not free."""
_WITHOUT: Final = "without --exclusive and --wait, the run starts"
_HIDES_PROCESSES: Final = HostError(
    "its processes can't be listed, so ipexctl does not see other runs",
    Fix(f"{_WITHOUT}; `ipexctl doctor` may show what the host lacks"),
)


class Obstacles(NamedTuple):
    """Why the hosts are not free. False if nothing is in the way: `any(obstacles)`."""

    others: tuple[OtherRun, ...] = ()
    """Runs on the hosts, and calls that wait there since before this one."""
    away: Mapping[str, HostError] = {}
    """Host → why it gave no usable answer."""
    locked: str = ""
    """Name of the first host whose lock another process holds; empty if there is none."""
    holder: LockHolder | None = None
    """The process that holds the lock, if it is no start of ipexctl."""


class HostLocks:
    """The locks of one call on all its hosts: it holds all of them or none."""

    def __init__(
        self,
        hosts: Sequence[Host],
        run: str,
        seconds: float,
        pool: SessionPool,
        on_step: Callable[[str], None],
        call: bytes,
    ) -> None:
        self.hosts, self._run, self._pool, self._on_step, self._call = hosts, run, pool, on_step, call
        self._seconds, self._deadline = seconds, time.monotonic() + seconds
        self._queue = HostQueue(hosts, run, pool, call)
        self._processes: list[HeldProcess] = []
        self._held_by: dict[str, tuple[LockHolder | None, float]] = {}
        """Host → the process that holds its lock and is no start of ipexctl, and since when this call has seen it."""
        self._passes = False
        """True while this call holds a host in spite of another process's lock."""
        self._snapshots: Mapping[str, HostSnapshot] = {}
        self.hiding: tuple[str, ...] = ()
        """Hosts that do not show the runs of other accounts."""
        self.has_waited = False
        """True if the hosts were not free at first: what was known of them before is old."""

    def wait_until_free(self) -> None:
        """Take the locks, and wait until no run is on the hosts. Raises a StartError if that takes too long; this call
        then holds no lock.

        It is called again if a run without --exclusive has begun meanwhile: the locks are kept, and the wait ends when
        it would have ended.
        """
        began = time.monotonic()
        with ExitStack() as undo:
            undo.callback(self.release)
            try:
                is_waiting = self._wait()
            except Cancelled as error:
                raise StartError.because(error.reason, error.fix) from None
            finally:
                self._queue.leave()
            undo.pop_all()
        if is_waiting:
            self.has_waited = True
            self._on_step(f"the hosts are free after {rough_duration(time.monotonic() - began)}")

    def _wait(self) -> bool:
        """Return False if the hosts were free at once, True after a wait. Tell `on_step` what the call waits for."""
        reported = None
        while any(obstacles := self._take()):
            if self._pool.cancel.thrown:
                raise Cancelled("stopped")
            left = self._deadline - time.monotonic()
            if left <= 0 or (obstacles.away and reported is None):
                raise StartError(refusal(obstacles, self._seconds, now=time.time()))
            for process in self._processes:
                process.send(STILL_HERE)
            if not self._queue.holds(self._snapshots) and not self._processes:
                self._queue.enter(self._snapshots, left)
            # Hosts answer in another order at each look, which is no news.
            runs = {(other.id, other.account, frozenset(other.hosts), other.state) for other in obstacles.others}
            if reported != (news := (runs, set(obstacles.away), obstacles.locked, obstacles.holder)):
                reported = news
                parts = [_describe(obstacles, time.time())] if obstacles.others or obstacles.locked else []
                first_away = list(obstacles.away.items())[:1]
                parts += [f"{name} does not answer ({error.reason})" for name, error in first_away]
                self._on_step(f"waiting up to {rough_duration(left)}: {'; '.join(parts)}")
            self._pool.cancel.sleep(min(POLL, left))
        return reported is not None

    def _take(self) -> Obstacles:
        """Take all locks or none, and return what is in the way.

        The locks are kept while a run is on the hosts that began in spite of them: this call was first, and the calls
        that wait stay behind it."""
        if not self._processes or any(process.is_over for process in self._processes):
            self.release()
            if any(obstacles := self._inspect()) or any(obstacles := self._lock_all()):
                return obstacles
        obstacles = self._inspect()
        self.hiding = tuple(name for name, snapshot in self._snapshots.items() if snapshot.runs.hides_others)
        # A snapshot must show this call itself: without awk, or memory for a process, it shows nothing.
        blind = [
            name
            for name, snapshot in self._snapshots.items()
            if self._run not in [live.run for live in snapshot.runs.runs]
        ]
        # Another call that is starting there has met these locks; one that waits will. But it may have taken a lock
        # that this call passed over.
        states = ("running", "starting") if self._passes else ("running",)
        others = tuple(other for other in obstacles.others if other.state in states)
        away = {**obstacles.away, **dict.fromkeys(blind, _HIDES_PROCESSES)}
        if away or (others and self._passes):
            self.release()
        return Obstacles(others, away)

    def _inspect(self) -> Obstacles:
        """Look at the processes of all hosts: runs, calls that wait before this one, and hosts that give no answer."""
        snapshots: dict[str, HostSnapshot] = {}
        away: dict[str, HostError] = {}
        for outcome in inspect_hosts(self.hosts, self._pool):
            if outcome.result is not None:
                snapshots[outcome.host.name] = outcome.result
            elif outcome.error is not None:
                away[outcome.host.name] = outcome.error
            if isinstance(outcome.error, Unreachable):  # a wait for hours must survive the reboot of a switch
                self._pool.forget(outcome.host)
        self._snapshots = snapshots
        runs = {name: snapshot.runs for name, snapshot in snapshots.items()}
        before = find_waiting(runs, self._queue.places(snapshots))
        return Obstacles((*find_other_runs(runs, self._run), *before), away)

    def _lock_all(self) -> Obstacles:
        """Take the locks in the order of the machines; release all of them at the first that is held."""
        machines = {self._snapshots[host.name].machine: host for host in self.hosts}
        for _, host in sorted(machines.items()):
            try:
                if self._lock(host):
                    continue
                obstacles = self._inspect()
                if not any(obstacles) and self._may_pass(host) and self._lock(host, passes=True):
                    continue
            except HostError as error:
                self.release()
                return Obstacles(away={host.name: error})
            self.release()
            snapshot = self._snapshots.get(host.name)
            return obstacles._replace(locked=host.name, holder=snapshot and snapshot.runs.holder)
        return Obstacles()

    def _may_pass(self, host: Host) -> bool:
        """True if one process, no start of ipexctl, has held the lock for PASS_AFTER, and this call is in the queue."""
        seen, now = self._snapshots[host.name].runs, time.monotonic()
        before = self._held_by.pop(host.name, None)
        if seen.holder is None and seen.may_be_starting:
            return False
        since = before[1] if before is not None and before[0] == seen.holder else now
        self._held_by[host.name] = seen.holder, since
        return now - since >= PASS_AFTER and self._queue.holds(self._snapshots)

    def _lock(self, host: Host, *, passes: bool = False) -> bool:
        """Take the lock of a host; return False if another process holds it. `passes`: hold the host all the same.
        Raises a HostError if the lock can neither be taken nor be refused."""
        process = HeldProcess(self._pool.session(host), lock_command(self._run, passes=passes))
        process.send(self._call)
        self._processes.append(process)
        self._passes |= passes
        if process.wait_for(b"held\n", PATIENCE):
            return True
        if (ended := process.ended) is None:
            raise TimedOut(f"flock has not taken its lock within {PATIENCE:g} s", _WITHOUT)
        if ended.code != 1:
            raise HostError(f"its lock can't be taken by flock, of the package util-linux ({ended})", _WITHOUT)
        self._processes.remove(process)
        return False

    def leave(self, rundir: str) -> None:
        """Release the locks once the run has started: each host stays locked until the run's programs are seen there,
        or have ended."""
        for process in self._processes:
            process.send(os.fsencode(rundir) + b"\n")
        self.release()

    def release(self) -> None:
        """End the locks' processes at once."""
        end_all(self._processes)
        self._processes, self._passes = [], False


class OtherRunBegan(StartError):
    """A run without --exclusive began on the hosts although this call holds their locks."""


def check_alone(others: Iterable[OtherRun], locks: HostLocks) -> None:
    """Raise an `OtherRunBegan` if a run without --exclusive has begun since the hosts were locked; a StartError if it
    is on a host that this call has not locked."""
    running = tuple(other for other in others if other.state == "running")
    if running:
        locked = {host.name for host in locks.hosts}
        error = OtherRunBegan if any(locked.intersection(other.hosts) for other in running) else StartError
        raise error(refusal(Obstacles(running), now=time.time()))


def notes_on_hiding(hosts: Collection[str]) -> Iterator[str]:
    """Warn that these hosts do not show the runs of other accounts."""
    if hosts:
        yield (
            f"{fold(hosts)}: /proc hides the processes of other accounts (hidepid), so that their runs are not seen "
            "there"
        )


def inspect_hosts(
    hosts: Sequence[Host], pool: SessionPool, *, with_programs: bool = False, timeout: float | None = None
) -> Iterator[Outcome[Host, HostSnapshot]]:
    """Yield each host's runs, locks and waiting calls, as its processes show them. `with_programs`: also the programs
    of the runs. `timeout`: seconds for one host; None for no limit but the wait for a silent one."""
    command = live_runs_command(with_programs=with_programs)
    return pool.each(hosts, lambda _, session: _inspect_host(session, command, timeout))


def _inspect_host(session: Session, command: Command, timeout: float | None) -> HostSnapshot:
    done = capture(session, command, timeout=timeout, silence=PATIENCE)
    snapshot = read_host_snapshot(done.stdout.decode(errors="replace"))
    if snapshot is None:
        raise HostError(
            f"its processes can't be listed, so ipexctl does not see its runs ({done.ended})",
            Fix("`ipexctl doctor` may show what the host lacks"),
        )
    return snapshot


def lock_hosts(
    hosts: Sequence[Host],
    run: str,
    seconds: float | None,
    pool: SessionPool,
    on_step: Callable[[str], None],
    call: CallDetails = NO_DETAILS,
) -> HostLocks:
    """Take the locks, waiting up to `seconds` (None: not at all), and tell `on_step` what the call waits for. Raises a
    StartError if the hosts are not free by then. `call`: what others see of this call."""
    by = {} if call.by is None else call.by._asdict()
    line = json.dumps({**by, "script": call.script, "tag": call.tag}).encode() + b"\n"
    locks = HostLocks(hosts, run, seconds or 0.0, pool, on_step, line)
    locks.wait_until_free()
    return locks


def refusal(obstacles: Obstacles, seconds: float = 0, *, now: float) -> StartFailure:
    """Return why the run does not start. `seconds`: how long the call has waited. `now`: UNIX time. Pure."""
    if not obstacles.others and not obstacles.locked:
        return StartFailure.of_host(*next(iter(obstacles.away.items())))
    hosts_of_others = dict.fromkeys(host for other in obstacles.others for host in other.hosts)
    names = tuple(hosts_of_others) or (obstacles.locked,)
    waited = f" after a wait of {rough_duration(seconds)}" if seconds else ""
    end = "a longer --wait S waits for its end" if waited else "--wait 3600 waits an hour for its end"
    if obstacles.holder is not None and not obstacles.others:
        end = "--wait 60 starts in spite of it"
    return StartFailure(
        f"{fold(names)} {'is' if len(names) == 1 else 'are'} not free{waited}: {_describe(obstacles, now)}",
        f"{end}; without --exclusive and --wait, the run starts anyway",
        names,
        exit_code=3,
        other_runs=obstacles.others,
    )


def _describe(obstacles: Obstacles, now: float) -> str:
    if obstacles.others:
        return describe_all(obstacles.others, now)
    if obstacles.holder is not None:
        return f"{obstacles.holder} holds the lock of {obstacles.locked}"
    # The holder has just ended, is hidden, or got the lock from a process that has ended.
    return f"a process that is not seen holds the lock of {obstacles.locked}"


STILL_HERE: Final = b"still here\n"
"""Renews a place, or a lock, whose script ends a while after the last line."""
_END_SECONDS: Final = 3.0


class HeldProcess:
    """A program on a host that holds something until its stdin ends."""

    def __init__(self, session: Session, command: Command) -> None:
        self._stdin, self._output, self._news = StdinQueue(), OutputCollector(), threading.Event()

        def sink(stream: StreamName, data: bytes) -> None:
            self._output.sink(stream, data)
            self._news.set()

        def hold() -> CommandEnd:
            try:
                return session.run(command, sink, stdin=self._stdin)
            finally:
                self.is_over = True
                self._news.set()

        self.is_over = False
        self.process = run_in_background(hold, command.label)

    def wait_for(self, line: bytes, seconds: float) -> bool:
        """True once it has printed this line; False after `seconds`, or if it ended."""
        deadline = time.monotonic() + seconds
        while not (is_printed := line in self._output.stdout) and not self.is_over:
            if not self._news.wait(max(0.0, deadline - time.monotonic())):
                return False
            self._news.clear()
        return is_printed

    @property
    def ended(self) -> CommandEnd | None:
        """None while it runs. Raises the HostError of a lost connection."""
        return self.process.result() if self.is_over else None

    def send(self, line: bytes) -> None:
        """Write a line to its stdin."""
        self._stdin.send(line)

    def end(self) -> None:
        """Close its stdin, at which it ends. `ended` says when it has."""
        self._stdin.end()


def end_all(processes: Iterable[HeldProcess]) -> None:
    """Ask all to end first, and then wait for all together, `_END_SECONDS` at most."""
    processes = list(processes)
    for process in processes:
        process.end()
    wait([process.process for process in processes], _END_SECONDS)


class HostQueue:
    def __init__(self, hosts: Sequence[Host], run: str, pool: SessionPool, call: bytes) -> None:
        self._hosts, self._run, self._pool, self._call = hosts, run, pool, call
        self._processes: list[HeldProcess] = []

    def places(self, snapshots: Mapping[str, HostSnapshot]) -> dict[str, WaitingCall | None]:
        """This call's own place on each host. Another account may use the id of this run."""
        return {
            name: next(
                (call for call in snapshot.runs.waiting if (call.run, call.uid) == (self._run, snapshot.uid)), None
            )
            for name, snapshot in snapshots.items()
        }

    def holds(self, snapshots: Mapping[str, HostSnapshot]) -> bool:
        """True if it has a place on all these hosts, and it keeps them for another minute."""
        for process in self._processes:
            process.send(STILL_HERE)
        return bool(self._processes) and None not in self.places(snapshots).values()

    def enter(self, snapshots: Mapping[str, HostSnapshot], seconds: float) -> None:
        """Take a place on every host, at the end of its queue, for at most `seconds`; none if some host is away."""
        self.leave()
        if any(host.name not in snapshots for host in self._hosts):
            return
        machines = {snapshots[host.name].machine: host for host in self._hosts}
        try:
            for _, host in sorted(machines.items()):
                process = HeldProcess(self._pool.session(host), wait_command(self._run, seconds))
                self._processes.append(process)
                if not process.wait_for(b"entered\n", PATIENCE):
                    break
            else:
                for process in self._processes:
                    process.send(self._call)
                if all(process.wait_for(b"placed\n", PATIENCE) for process in self._processes):
                    return
        except HostError:
            pass
        self.leave()

    def leave(self) -> None:
        """Give up the places on all hosts; does nothing if there are none."""
        end_all(self._processes)
        self._processes = []
