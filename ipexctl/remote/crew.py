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
        self._sessions: dict[str, Session] = {}

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for session in self._sessions.values():
            with contextlib.suppress(OSError, EOFError):
                session.close()

    def session(self, host: Host) -> Session:
        """The host's session; raises a HostError where there can be none."""
        with self._lock:
            known = self._sessions.get(host.name)
        if known is not None:
            return known
        opened = self._reach.open(host, self.cancel)
        with self._lock:
            self._sessions[host.name] = opened
        return opened

    def each(self, hosts: Sequence[Host], work: Callable[[Host, Session], T]) -> Iterator[Done[T]]:
        """One step on many hosts at once, each host's end as it comes."""
        return fan_out(hosts, lambda host: work(host, self.session(host)), forks=self._forks, cancel=self.cancel)
