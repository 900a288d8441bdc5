"""What all modules of one call share: the way to the hosts, the options of the call, somebody who listens."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ipexctl.playbook.vars_dirs import VarsDirs
from ipexctl.remote.fanout import fan_out

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from ipexctl.hosts.host import Host
    from ipexctl.playbook.report import Watch
    from ipexctl.playbook.templater import Templater
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.command import Command
    from ipexctl.remote.connector import Connector
    from ipexctl.remote.fanout import HostOutcome
    from ipexctl.remote.session import Ended, Session, Stream
    from ipexctl.remote.session_pool import SessionPool

HERE: Final = ("localhost", "127.0.0.1")
LOCAL: Final = "--local lets this playbook run its tasks for localhost on this machine"


@dataclass(frozen=True, slots=True)
class Options:
    """What the call says, beside the playbook and the hosts."""

    home: str = "~/.ipexctl"
    iface: str | None = None
    forks: int = 32
    timeout: float | None = None
    check: bool = False
    diff: bool = False
    verbose: int = 0
    host_keys: str | None = None
    connect_timeout: float = 10.0
    local: bool = False
    """Whether tasks may be delegated to this machine."""
    vars_dirs: VarsDirs = field(default_factory=VarsDirs)
    extra: Sequence[Mapping[str, Any]] = ()
    """-e, the later over the earlier."""


@dataclass
class PlayContext:
    pool: SessionPool
    connector: Connector
    cancel: Cancel
    templater: Templater
    options: Options
    watch: Watch
    hosts: Sequence[Host]
    """Those of the call; the first is node0."""
    cwd: Path
    every: Sequence[Host] = ()
    """All that the hostfile names, whatever --limit leaves of them."""
    projects: dict[Path, tuple[str, ...]] = field(default_factory=dict)
    """Those that runs of this playbook have brought to hosts, and what of them stays behind."""
    mended: set[str] = field(default_factory=set)
    """Findings of the doctor that earlier tasks have mended, or would have without --check."""
    _locks: dict[str, threading.Lock] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def known(self) -> Sequence[Host]:
        return self.every or self.hosts

    @contextmanager
    def session(self, host: Host) -> Iterator[Session]:
        """A host's one session, for as long as nobody else has it: several tasks may be delegated to one host."""
        with self._lock:
            lock = self._locks.setdefault(host.name, threading.Lock())
        with lock:
            yield self.pool.session(host)

    def each(self, hosts: Sequence[Host], work: Callable[[Host], Any]) -> Iterator[HostOutcome[Any]]:
        return fan_out(hosts, work, forks=self.options.forks, cancel=self.cancel)

    def lent(self, host: Host, cancel: Cancel) -> Session:
        """The crew's session for somebody who would open and close one himself."""
        del cancel
        return LentSession(self.pool.session(host))


class LentSession:
    """Closing it gives it back."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.host = session.host
        self.server_key = session.server_key

    def run(
        self,
        command: Command,
        sink: Callable[[Stream, bytes], None],
        *,
        stdin: Any = None,
        timeout: float | None = None,
        cancel: Cancel | None = None,
    ) -> Ended:
        return self._session.run(command, sink, stdin=stdin, timeout=timeout, cancel=cancel)

    def close(self) -> None:
        """It is the crew's, who closes it at the end."""
