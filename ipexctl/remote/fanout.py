"""The same work on many hosts at once, bounded; what one host does never holds up or ends another."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from ipexctl.remote.outcome import Cancelled, HostError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ipexctl.hosts.host import Host
    from ipexctl.remote.cancel import Cancel

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HostOutcome(Generic[T]):
    """One host's result, or the error that stands in its place."""

    host: Host
    result: T | None
    error: HostError | None = None


def fan_out(
    hosts: Sequence[Host], work: Callable[[Host], T], *, forks: int, cancel: Cancel
) -> Iterator[HostOutcome[T]]:
    """Yield each host's end as it comes. A HostError is that host's; any other exception is ours: the switch is
    thrown, the others are waited for, and it is raised.

    The threads are daemons: one that hangs in a system call doesn't keep the process from ending.
    """
    waiting: queue.SimpleQueue[Host] = queue.SimpleQueue()
    for host in hosts:
        waiting.put(host)
    finished: queue.SimpleQueue[HostOutcome[T] | BaseException] = queue.SimpleQueue()

    def worker() -> None:
        while True:
            try:
                host = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                if cancel.thrown:
                    raise Cancelled("not started")
                finished.put(HostOutcome(host, work(host)))
            except HostError as error:
                finished.put(HostOutcome(host, None, error))
            except BaseException as error:  # noqa: BLE001  # carried to the caller's thread and raised there
                finished.put(error)

    for index in range(min(forks, len(hosts))):
        threading.Thread(target=worker, name=f"host-{index}", daemon=True).start()
    yield from _collected(finished, len(hosts), cancel)


def _collected(
    finished: queue.SimpleQueue[HostOutcome[T] | BaseException], count: int, cancel: Cancel
) -> Iterator[HostOutcome[T]]:
    left, ours = count, None
    try:
        while left:
            done = finished.get()
            left -= 1
            if isinstance(done, BaseException):
                ours = ours or done
                cancel.throw()
            elif ours is None:
                yield done
    finally:
        # Also when our caller has given up on us: nothing that was begun on a host is left behind.
        if left:
            cancel.throw()
        for _ in range(left):
            finished.get()
    if ours is not None:
        raise ours
