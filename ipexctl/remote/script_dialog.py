"""Work on many hosts until a common deadline, and talk with programs that print events and read lines.

A program on a host ends when its stdin does, so none outlives the call.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Final, TypeVar

from ipexctl.hosts.host import Host
from ipexctl.remote.cancel import Cancel, Deadline
from ipexctl.remote.command import Command
from ipexctl.remote.connector import SessionPool
from ipexctl.remote.fanout import run_in_background
from ipexctl.remote.outcome import HostError, TimedOut
from ipexctl.remote.reply import EventLimits, EventReader, Reply
from ipexctl.remote.session import Session, StdinQueue

T = TypeVar("T")
_LIMITS: Final = EventLimits(line=1 << 16, total=1 << 20)


def on_hosts(work: Callable[[Host], T], hosts: Sequence[Host], until: float) -> dict[str, T | HostError]:
    """Return what `work` returned on each host, or its HostError; a TimedOut for a host that has not answered when the
    time is up."""
    futures = {host.name: run_in_background(partial(work, host), f"dialog-{host.name}") for host in hosts}
    return results_until(futures, until)


def open_sessions(
    pool: SessionPool, hosts: Sequence[Host], until: float
) -> tuple[dict[str, Session], dict[str, HostError]]:
    """Return the sessions of the hosts, and the errors of hosts whose session could not be opened in time."""
    opened = {host.name: session for host in hosts if (session := pool.opened(host)) is not None}
    results = on_hosts(pool.session, [host for host in hosts if host.name not in opened], until)
    errors = {name: result for name, result in results.items() if isinstance(result, HostError)}
    opened.update({name: result for name, result in results.items() if not isinstance(result, HostError)})
    return opened, errors


def results_until(futures: Mapping[str, Future[T]], until: float) -> dict[str, T | HostError]:
    """Return each result or HostError; a TimedOut for work that is not done in time, which goes on in the
    background."""
    wait(futures.values(), timeout=max(0.0, until - time.monotonic()))
    results: dict[str, T | HostError] = {}
    for name, future in futures.items():
        try:
            results[name] = future.result() if future.done() else TimedOut("no answer in time")
        except HostError as error:
            results[name] = error
    return results


class ScriptDialog:
    def __init__(self, cancel: Cancel) -> None:
        self._cancel = cancel
        self._received: queue.SimpleQueue[tuple[str, Reply | HostError | None]] = queue.SimpleQueue()
        self._stdin: dict[str, StdinQueue] = {}
        self._running: set[str] = set()
        self._bug: BaseException | None = None

    @property
    def running(self) -> frozenset[str]:
        """The hosts whose program has not ended."""
        return frozenset(self._running)

    def start(self, name: str, session: Session, command: Command, *, timeout: float, stdin: bytes = b"") -> None:
        """Start a program on a host in the background. `stdin`: its first input; more comes by `send`."""
        self._stdin[name] = StdinQueue()
        if stdin:
            self._stdin[name].send(stdin)
        self._running.add(name)
        args = (name, session, command, timeout)
        threading.Thread(target=self._run, args=args, name=f"dialog-{name}", daemon=True).start()

    def send(self, name: str, data: bytes) -> None:
        """Write to the stdin of the host's program."""
        self._stdin[name].send(data)

    def receive(self, until: float) -> tuple[str, Reply | HostError | None] | None:
        """Return the next host and its event; a HostError if its program failed, None if its program exited. Return
        None instead of both if the time is up, the call is cancelled, or no program runs."""
        while self._running and not self._cancel.thrown:
            left = until - time.monotonic()
            if left <= 0:
                return None
            try:
                name, event = self._received.get(timeout=min(left, 0.2))
            except queue.Empty:
                continue
            if self._bug is not None:
                raise self._bug
            if event is None or isinstance(event, HostError):
                self._running.discard(name)
            return name, event
        return None

    def end(self, until: float) -> None:
        """Close the stdin of all programs, and drop their events until all have ended, or the time is up."""
        for stdin in self._stdin.values():
            stdin.end()
        while self.receive(until) is not None:
            pass

    def _run(self, name: str, session: Session, command: Command, timeout: float) -> None:
        """Run a program to its end in a thread. Its events and its end are queued for `receive`; a bug is raised
        there."""
        output = EventReader(lambda event: self._received.put((name, event)), _LIMITS)
        error: HostError | None = None
        try:
            session.run(command, output.sink, stdin=self._stdin[name], deadline=Deadline(timeout, self._cancel))
        except HostError as host_error:
            error = host_error
        except BaseException as bug:  # noqa: BLE001  # passed to the caller's thread and raised there
            self._bug = bug
        finally:
            self._stdin[name].end()
            self._received.put((name, error))
