"""Run work in threads: the same work for many hosts, where no failure affects another host, or one call in the
background.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from typing import BinaryIO, Generic, TypeVar, cast

from ipexctl.errors import UserError
from ipexctl.hosts.host import Host
from ipexctl.node.common.frames import StreamName
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.command import Command
from ipexctl.remote.outcome import HostError, HostResult, NotStarted
from ipexctl.remote.session import Session


@dataclass(frozen=True, slots=True)
class ExecResult(HostResult):
    rc: int | None = None


def execute(
    hosts: Sequence[Host],
    command: Command,
    *,
    open_session: Callable[[Host, Cancel], Session],
    cancel: Cancel,
    sink_for: Callable[[Host], Callable[[StreamName, bytes], None]],
    forks: int,
    timeout: float | None,
    stdin_for: Callable[[], BinaryIO] | None,
) -> Iterator[ExecResult]:
    """Run the command on each host, in a session of its own, and yield each result as it arrives."""

    def work(host: Host) -> ExecResult:
        started = time.monotonic()
        try:
            with closing(open_session(host, cancel)) as session:
                stdin = stdin_for() if stdin_for else None
                ended = session.run(command, sink_for(host), stdin=stdin, timeout=timeout)
        except HostError as error:
            return ExecResult.of_error(host, error, seconds=time.monotonic() - started)
        seconds = time.monotonic() - started
        if ended.ok:
            return ExecResult(host, "ok", seconds=seconds, rc=ended.code)
        return ExecResult(host, "failed", str(ended), command.hint(ended.code), seconds, ended.code)

    for outcome in fan_out(hosts, work, forks=forks, cancel=cancel):
        yield outcome.result_or(ExecResult.of_error)


Item = TypeVar("Item")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Item, T]):
    item: Item
    result: T | None
    error: HostError | None = None

    @property
    def host(self: Outcome[Host, T]) -> Host:
        """The item of an outcome whose items are hosts."""
        return self.item

    def result_or(self, of_error: Callable[[Item, HostError], T]) -> T:
        """Return the result; for a host that failed, what `of_error` makes of its error."""
        return cast("T", self.result) if self.error is None else of_error(self.item, self.error)


def fan_out(
    items: Sequence[Item], work: Callable[[Item], T], *, forks: int, cancel: Cancel
) -> Iterator[Outcome[Item, T]]:
    """Yield each item's outcome as it arrives. An exception other than a HostError is a bug: it cancels the rest and is
    raised. The threads are daemons, so a hanging system call doesn't keep the process alive."""
    queued: queue.SimpleQueue[Item] = queue.SimpleQueue()
    for item in items:
        queued.put(item)
    finished: queue.SimpleQueue[Outcome[Item, T] | BaseException] = queue.SimpleQueue()

    def worker() -> None:
        while True:
            try:
                item = queued.get_nowait()
            except queue.Empty:
                return
            try:
                if cancel.thrown:
                    raise NotStarted("not started")
                finished.put(Outcome(item, work(item)))
            except HostError as error:
                finished.put(Outcome(item, None, error))
            except BaseException as error:  # noqa: BLE001  # raised in the caller's thread
                finished.put(error)

    for index in range(min(forks, len(items))):
        threading.Thread(target=worker, name=f"host-{index}", daemon=True).start()
    yield from _collect(finished, len(items), cancel)


def _collect(
    finished: queue.SimpleQueue[Outcome[Item, T] | BaseException], count: int, cancel: Cancel
) -> Iterator[Outcome[Item, T]]:
    """Yield the outcomes as they arrive, then raise the first unexpected exception. All items are waited for, even if
    the caller abandons this generator: it cancels the rest then."""
    pending, unexpected = count, None
    try:
        while pending:
            outcome = finished.get()
            pending -= 1
            if isinstance(outcome, BaseException):
                unexpected = unexpected or outcome
                if not isinstance(outcome, UserError):  # other steps of the call would report that they were stopped
                    cancel.throw()
            elif unexpected is None:
                yield outcome
    finally:
        # Also if the caller abandons this generator: no command keeps running on a host.
        if pending:
            cancel.throw()
        for _ in range(pending):
            finished.get()
    if unexpected is not None:
        raise unexpected


def run_in_background(work: Callable[[], T], name: str) -> Future[T]:
    """Start `work`; `result()` raises its error. Python joins a ThreadPoolExecutor's threads at exit, so hanging work
    would keep the process alive."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001  # raised by result()
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
