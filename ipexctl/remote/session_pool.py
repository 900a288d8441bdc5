"""One session per host, shared by all steps of a command and closed at its end."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from ipexctl.hosts.host import Host
from ipexctl.node.common.frames import StreamName
from ipexctl.remote.cancel import Cancel, Deadline
from ipexctl.remote.command import Command
from ipexctl.remote.connector import Connector
from ipexctl.remote.fanout import Outcome, fan_out
from ipexctl.remote.outcome import Unreachable
from ipexctl.remote.session import Ended, Readable, Session

T = TypeVar("T")


class SessionPool:
    """Opens a session on first use. A host that could not be reached is not tried again."""

    def __init__(self, connector: Connector, cancel: Cancel, *, forks: int) -> None:
        self.cancel = cancel
        self.connector = connector
        self.forks = forks
        self._lock = threading.Lock()
        self._opening: dict[str, threading.Lock] = {}
        self._sessions: dict[str, Session] = {}
        self._unreachable: dict[str, Unreachable] = {}

    def __enter__(self) -> SessionPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close open sessions, in threads if they have a proxy, because each waits for its proxy to exit."""

        def close(session: Session) -> None:
            with contextlib.suppress(OSError, EOFError):
                session.close()

        sessions = [session for name in list(self._sessions) if (session := self._sessions.pop(name, None))]
        for session in sessions:
            if not session.has_proxy:
                close(session)
        proxied = [session for session in sessions if session.has_proxy]
        for _ in fan_out(proxied, close, forks=self.forks, cancel=Cancel()):
            pass

    def session(self, host: Host) -> Session:
        with self._lock:
            opening = self._opening.setdefault(host.name, threading.Lock())
        with opening:
            if host.name in self._unreachable:
                raise self._unreachable[host.name]
            if host.name not in self._sessions:
                try:
                    self._sessions[host.name] = self.connector.open(host, self.cancel)
                except Unreachable as error:
                    self._unreachable[host.name] = error
                    raise
            return self._sessions[host.name]

    def opened(self, host: Host) -> Session | None:
        return self._sessions.get(host.name)

    def warm(self, hosts: Sequence[Host]) -> None:
        def open_all() -> None:
            for _ in fan_out(hosts, self.session, forks=self.forks, cancel=self.cancel):
                pass

        threading.Thread(target=open_all, name="warm", daemon=True).start()
        self.connector.load(hosts)

    def detach(self, host: Host) -> Session | None:
        """Take the host's session out of the pool; the caller closes it."""
        return self._sessions.pop(host.name, None)

    def forget(self, host: Host) -> None:
        self._unreachable.pop(host.name, None)
        if (lost := self.detach(host)) is not None:
            with contextlib.suppress(OSError, EOFError):
                lost.close()

    def attach(self, session: Session) -> None:
        if self._sessions.setdefault(session.host.name, session) is not session:
            session.close()

    def borrow(self, host: Host, cancel: Cancel) -> Session:
        """The pool's session, or a new one, for a caller that opens and closes sessions itself, such as a fetch."""
        return BorrowedSession(self, self.detach(host) or self.connector.open(host, cancel))

    def each(self, hosts: Sequence[Host], work: Callable[[Host, Session], T]) -> Iterator[Outcome[Host, T]]:
        return fan_out(hosts, lambda host: work(host, self.session(host)), forks=self.forks, cancel=self.cancel)


class BorrowedSession(Session):
    """Returns to the pool when closed, unless a command on it did not finish."""

    def __init__(self, pool: SessionPool, session: Session) -> None:
        self._pool = pool
        self._session = session
        self._is_lost = False
        self.host = session.host
        self.on_command = session.on_command

    @property
    def server_key(self) -> tuple[str, bytes] | None:
        return self._session.server_key

    def _run(
        self, command: Command, sink: Callable[[StreamName, bytes], None], stdin: Readable | None, deadline: Deadline
    ) -> Ended:
        self._is_lost = True  # until the command ends, because `close` may be called before
        ended = self._session._run(command, sink, stdin, deadline)
        self._is_lost = False
        return ended

    def close(self) -> None:
        if self._is_lost:
            self._session.close()
        else:
            self._pool.attach(self._session)
