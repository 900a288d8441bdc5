"""Context shared by all modules of one call: sessions, options, event callback, and what tasks pass to later tasks.

Each host has one connection per call, with one task at a time on it, because several tasks may be delegated to one
host. Modules that open and close sessions themselves, such as run, borrow one (`SessionPool.lend`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ipexctl.api.open_hosts import OpenHosts
from ipexctl.extras.play.result import Call, PlayWatch
from ipexctl.extras.play.templater import Templater
from ipexctl.extras.play.variables import VarsDirs
from ipexctl.hosts.host import Host
from ipexctl.hosts.names import did_you_mean, quoted
from ipexctl.option_declaration import DEFAULT_HOME
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.outcome import Cancelled
from ipexctl.remote.session import Session
from ipexctl.remote.session_pool import SessionPool

LOCALHOST: Final = ("localhost", "127.0.0.1")


def unknown_delegate(name: str, known: Iterable[str]) -> tuple[str, str]:
    fix = "--local allows this playbook to run tasks on this machine"
    if name not in LOCALHOST:
        fix = did_you_mean(name, known, "node0 is the first host")
    return f"delegate_to: {quoted(name)} is not one of the hosts", fix


@dataclass(frozen=True, slots=True)
class Options:
    home: str = DEFAULT_HOME
    iface: str | None = None
    timeout: float | None = None
    check: bool = False
    diff: bool = False
    verbose: int = 0
    local: bool = False
    vars_dirs: VarsDirs = field(default_factory=dict)
    extra: Sequence[Mapping[str, Any]] = ()


@dataclass
class PlayContext:
    pool: SessionPool
    templater: Templater
    options: Options
    watch: PlayWatch
    hosts: Sequence[Host]
    all_hosts: Sequence[Host]
    cwd: Path
    fixed: set[str] = field(default_factory=set)
    """Ids of doctor findings that earlier tasks fixed, or would have fixed without --check."""
    not_run: set[tuple[str, str]] = field(default_factory=set)
    """(host, variable) pairs registered by a task that --check did not run, so their values are unknown."""
    _locks: dict[str, threading.Lock] = field(default_factory=dict)

    @property
    def cancel(self) -> Cancel:
        return self.pool.cancel

    @contextmanager
    def session(self, host: Host) -> Iterator[Session]:
        """The host's session, locked against other tasks delegated to it."""
        with self._locks.setdefault(host.name, threading.Lock()):  # setdefault is atomic
            yield self.pool.session(host)

    def opened(self, call: Call, hosts: Sequence[Host]) -> OpenHosts:
        return OpenHosts(tuple(hosts), self.pool, self.options.home, self.options.iface, call.timeout)

    def sleep(self, seconds: float) -> None:
        """Return early on cancellation."""
        with suppress(Cancelled):
            self.cancel.sleep(seconds)
