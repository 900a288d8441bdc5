"""The hosts of one call, each with one connection that every step uses."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, TypeVar

from ipexctl.remote.fanout import fan_out

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ipexctl.hosts.host import Host
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.fanout import Done
    from ipexctl.remote.reach import Reach
    from ipexctl.remote.session import Session

T = TypeVar("T")


class Crew:
    """Opens a host's session when a step first needs it, keeps it for the next, and closes all at the end."""

    def __init__(self, reach: Reach, cancel: Cancel, *, forks: int) -> None:
        self.cancel = cancel
        self._reach = reach
        self._forks = forks
        self._lock = threading.Lock()
        self._opening: dict[str, threading.Lock] = {}
        self._sessions: dict[str, Session] = {}

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for session in self._sessions.values():
            with contextlib.suppress(OSError, EOFError):
                session.close()

    def session(self, host: Host) -> Session:
        """The host's session; raises a HostError where there can be none. Two threads that ask get the same one."""
        with self._lock:
            opening = self._opening.setdefault(host.name, threading.Lock())
        with opening:
            if host.name not in self._sessions:
                self._sessions[host.name] = self._reach.open(host, self.cancel)
            return self._sessions[host.name]

    def each(self, hosts: Sequence[Host], work: Callable[[Host, Session], T]) -> Iterator[Done[T]]:
        """One step on many hosts at once, each host's end as it comes."""
        return fan_out(hosts, lambda host: work(host, self.session(host)), forks=self._forks, cancel=self.cancel)
