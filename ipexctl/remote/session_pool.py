"""The hosts of one call, each with one connection that every step uses."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, TypeVar

from ipexctl.remote.fanout import fan_out
from ipexctl.remote.outcome import Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ipexctl.hosts.host import Host
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.connector import Connector
    from ipexctl.remote.fanout import HostOutcome
    from ipexctl.remote.session import Session

T = TypeVar("T")


class SessionPool:
    """Opens a host's session when a step first needs it, keeps it for the next, and closes all at the end.

    A host that could not be reached is not dialled a second time.
    """

    def __init__(self, connector: Connector, cancel: Cancel, *, forks: int) -> None:
        self.cancel = cancel
        self._reach = connector
        self._forks = forks
        self._lock = threading.Lock()
        self._opening: dict[str, threading.Lock] = {}
        self._sessions: dict[str, Session] = {}
        self._lost: dict[str, Unreachable] = {}

    def __enter__(self) -> SessionPool:
        return self

    def __exit__(self, *_: object) -> None:
        for session in tuple(self._sessions.values()):
            with contextlib.suppress(OSError, EOFError):
                session.close()

    def session(self, host: Host) -> Session:
        """The host's session; raises a HostError where there can be none. Two threads that ask get the same one."""
        with self._lock:
            opening = self._opening.setdefault(host.name, threading.Lock())
        with opening:
            if host.name in self._lost:
                raise self._lost[host.name]
            if host.name not in self._sessions:
                try:
                    self._sessions[host.name] = self._reach.open(host, self.cancel)
                except Unreachable as error:
                    self._lost[host.name] = error
                    raise
            return self._sessions[host.name]

    def warm(self, hosts: Sequence[Host]) -> None:
        """Begin to open their sessions; the caller may do something else. What fails is told to who needs it."""

        def open_all() -> None:
            for _ in fan_out(hosts, self.session, forks=self._forks, cancel=self.cancel):
                pass

        threading.Thread(target=open_all, name="warm", daemon=True).start()
        self._reach.load(hosts)

    def hand_over(self, host: Host) -> Session | None:
        """The host's session, where there is one, for somebody who closes it himself."""
        return self._sessions.pop(host.name, None)

    def each(self, hosts: Sequence[Host], work: Callable[[Host, Session], T]) -> Iterator[HostOutcome[T]]:
        """One step on many hosts at once, each host's end as it comes."""
        return fan_out(hosts, lambda host: work(host, self.session(host)), forks=self._forks, cancel=self.cancel)
