"""Open sessions with the command's connection options: local on this machine, else over ssh or srun.

A pool holds one session per host, which all steps of a command share. A caller that opens and closes sessions itself
borrows the pool's (`borrow`). paramiko is slow to import, so it is imported while `ssh -G` runs.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

from ipexctl.hosts.host import Host
from ipexctl.node.common.frames import StreamName
from ipexctl.node.common.macos import is_linux
from ipexctl.node.common.processes import allow_many_files
from ipexctl.option_declaration import CONNECT_SECONDS, DEFAULT_HOME, NO_OPTIONS, CallOptions
from ipexctl.remote.cancel import Cancel, Deadline
from ipexctl.remote.command import Command
from ipexctl.remote.fanout import Outcome, fan_out, run_in_background
from ipexctl.remote.host_keys import HostKeys
from ipexctl.remote.local import LocalSession, is_this_machine
from ipexctl.remote.openssh import SshMasters
from ipexctl.remote.outcome import LoginRefused, UnknownKey, Unreachable
from ipexctl.remote.session import CommandEnd, Readable, Session, SlowHosts
from ipexctl.remote.ssh_config import Endpoint, Resolver
from ipexctl.remote.tcp import DialedSocket, connect_tcp
from ipexctl.transports import OVER_SSH, Transport

if TYPE_CHECKING:
    from ipexctl.remote.host_keys import Policy
    from ipexctl.remote.srun import StepServer
    from ipexctl.remote.ssh import SshSessions


def _import_ssh() -> None:
    """Import fabric and paramiko, which a call on this machine does not need."""
    import ipexctl.remote.ssh  # noqa: F401


OnStep: TypeAlias = "Callable[[Host, Command | None, float], None]"
"""Called with the seconds of each connection (no command) and of each finished command."""


class ConnectOptions(NamedTuple):
    connect_timeout: float = CONNECT_SECONDS
    host_keys: Policy | None = None
    on_step: OnStep | None = None
    on_warning: Callable[[str], None] | None = None
    """Called for the first host that the ssh program reaches without being asked for, and for hosts that are slow."""
    transport: Transport = OVER_SSH
    timeout: float | None = None
    """As `Session.timeout`, for the sessions that are opened."""
    job: str = ""
    """Slurm job whose nodes srun reaches; empty for this call's own job."""
    stays_on: frozenset[str] = frozenset()
    """Hosts on which a run may be started over srun, whose supervisor outlives the session."""
    shared: str = ""
    """A directory on that job's nodes. If this machine has it too, it replaces the nodes once the job is over."""


def _check_own_kernel() -> None:
    """Refuse this machine as a host unless it runs Linux."""
    if not is_linux():
        raise Unreachable(
            "it is this machine, which can't be a host, because hosts run Linux",
            "name Linux hosts that ssh reaches: --hosts NAME,… or --hostfile FILE",
        )


class Connector:
    def __init__(self, options: ConnectOptions) -> None:
        allow_many_files()  # a connection takes several descriptors
        self.options = options
        self.resolver = Resolver()
        self._host_keys = HostKeys(options.host_keys)
        self._masters = SshMasters(options.host_keys, self._host_keys)
        self._has_said = False
        self._slow = SlowHosts(options.on_warning)
        self._lock = threading.Lock()
        self._imported: Future[None] | None = None
        self._ssh: SshSessions | None = None
        self._steps: StepServer | None = None

    def _import(self) -> Future[None]:
        with self._lock:
            if self._imported is None:
                self._imported = run_in_background(_import_ssh, "import")
            return self._imported

    def _ssh_sessions(self) -> SshSessions:
        """Return the opener of ssh sessions, made at the first call."""
        from ipexctl.remote.ssh import SshSessions  # imported by _import_ssh

        with self._lock:
            if self._ssh is None:
                self._ssh = SshSessions(self._host_keys)
            return self._ssh

    def load(self, hosts: Sequence[Host]) -> None:
        """Import what the connections to these hosts need; returns once that is done."""
        transport = self.options.transport
        if transport.uses_ssh and not transport.is_program and not all(is_this_machine(host) for host in hosts):
            self._import().result()

    def open(self, host: Host, cancel: Cancel) -> Session:
        """Open a session to the host: local, over ssh or over srun. Raises an Unreachable. The caller closes it."""
        started = time.monotonic()
        session: Session
        if is_this_machine(host):
            _check_own_kernel()

            session = LocalSession(host)
        elif self.options.transport.uses_ssh:
            session = self._over_ssh(host, cancel)
        else:
            session = self._over_srun(host, cancel)
        session.cancel, session.slow, session.timeout = cancel, self._slow, self.options.timeout
        if on_step := self.options.on_step:
            on_step(host, None, time.monotonic() - started)
            session.on_command = partial(on_step, host)
        return session

    def _over_srun(self, host: Host, cancel: Cancel) -> Session:
        """Open a session over srun; once the job is over, a local one if this machine shares the nodes' home."""
        from ipexctl.remote.srun import SrunSession, StepServer, srun_ports

        with self._lock:
            if self._steps is None:
                self._steps = StepServer(srun_ports())
        options = self.options
        deadline = Deadline(options.connect_timeout, cancel)
        try:
            return SrunSession(host, self._steps, deadline, job=options.job, stays=host.name in options.stays_on)
        except Unreachable:
            if options.shared and Path(options.shared).is_dir():
                return LocalSession(host)
            raise

    def _over_ssh(self, host: Host, cancel: Cancel) -> Session:
        """Open a session by paramiko. The ssh program does it instead if the user asks for it, if only the program can
        do what the ssh config says, or if paramiko can't log in."""
        imported = None if self.options.transport.is_program else self._import()
        endpoint = self.resolver.resolve(host)
        reason = self._masters.reason(endpoint)
        if imported is None or endpoint.jump or endpoint.proxy or reason:
            return self._by_program(host, endpoint, cancel, "" if imported is None else reason)
        dialed = self._dial(endpoint, cancel)
        imported.result()
        try:
            with self._slow.waiting(host, "log in", cancel, dialed.deadline.is_of_host):
                return self._ssh_sessions().open(host, dialed, partial(self._dial, endpoint))
        except LoginRefused as refusal:
            is_key = isinstance(refusal, UnknownKey)
            why = "its host key is new or certified" if is_key else "ipexctl's own login was refused"
            try:
                return self._by_program(host, endpoint, cancel, why)
            except Unreachable as error:
                raise (error if is_key else refusal) from None

    def _by_program(self, host: Host, endpoint: Endpoint, cancel: Cancel, why: str) -> Session:
        """Open a session by the ssh program. `why` is told to the user, for the first host only; it is empty if the
        user asked for the program."""
        deadline = Deadline(self.options.connect_timeout, cancel)
        with self._slow.waiting(host, "log in", cancel, deadline.is_of_host):
            session = self._masters.open(host, endpoint, deadline)
        with self._lock:
            is_first = bool(why) and not self._has_said
            self._has_said = self._has_said or is_first
        if is_first and self.options.on_warning is not None:
            self.options.on_warning(f"{host.name} is reached by the ssh program: {why} (always: --transport openssh)")
        return session

    def _dial(self, endpoint: Endpoint, cancel: Cancel) -> DialedSocket:
        """Connect to the port of the host's sshd. From then on, the deadline limits only the silence of the host."""
        deadline = Deadline(self.options.connect_timeout, cancel)
        sock = connect_tcp(endpoint.hostname, endpoint.port, deadline, endpoint.family)
        deadline.answered()
        sock.on_data = deadline.restart
        return DialedSocket(endpoint, sock, deadline)

    def __enter__(self) -> Connector:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._masters.close()
        if self._steps is not None:
            self._steps.close()


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
        """Return the host's session, opened by the first thread that asks.

        Raises the Unreachable of an earlier attempt again.
        """
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
        """Return the host's session if it is open, without opening one; else None."""
        return self._sessions.get(host.name)

    def warm(self, hosts: Sequence[Host]) -> None:
        """Begin to open the sessions in the background, and import what they need meanwhile."""

        def open_all() -> None:
            for _ in fan_out(hosts, self.session, forks=self.forks, cancel=self.cancel):
                pass

        threading.Thread(target=open_all, name="warm", daemon=True).start()
        self.connector.load(hosts)

    def detach(self, host: Host) -> Session | None:
        """Take the host's session out of the pool; the caller closes it."""
        return self._sessions.pop(host.name, None)

    def forget(self, host: Host) -> None:
        """Close the host's session, and let the next caller try again, also if the host could not be reached."""
        self._unreachable.pop(host.name, None)
        if (lost := self.detach(host)) is not None:
            with contextlib.suppress(OSError, EOFError):
                lost.close()

    def attach(self, session: Session) -> None:
        """Take the session into the pool; close it if the pool already has one to that host."""
        if self._sessions.setdefault(session.host.name, session) is not session:
            session.close()

    def borrow(self, host: Host, cancel: Cancel) -> Session:
        """Return the pool's session, or a new one, for a caller that opens and closes sessions itself, such as a
        fetch."""
        return BorrowedSession(self, self.detach(host) or self.connector.open(host, cancel), cancel)

    def each(self, hosts: Sequence[Host], work: Callable[[Host, Session], T]) -> Iterator[Outcome[Host, T]]:
        """Yield the outcome of `work` on each host as it arrives."""
        return fan_out(hosts, lambda host: work(host, self.session(host)), forks=self.forks, cancel=self.cancel)


@dataclass(frozen=True, slots=True)
class OpenHosts:
    """The hosts of a call, with its sessions to them and its options for each step on them."""

    hosts: tuple[Host, ...]
    pool: SessionPool
    home: str = DEFAULT_HOME
    iface: str | None = None
    timeout: float | None = None
    options: CallOptions = NO_OPTIONS

    def only(self, hosts: Iterable[Host]) -> OpenHosts:
        """Return these hosts with the same sessions and options, for a step on them only."""
        return replace(self, hosts=tuple(hosts))

    def warm(self) -> None:
        """Begin to open the sessions to these hosts in the background."""
        self.pool.warm(self.hosts)

    def each(self, work: Callable[[Host, Session], T]) -> Iterator[Outcome[Host, T]]:
        """Yield the outcome of `work` on each of these hosts as it arrives."""
        return self.pool.each(self.hosts, work)


class BorrowedSession(Session):
    """A session that returns to the pool when it is closed, unless a command on it did not finish."""

    def __init__(self, pool: SessionPool, session: Session, cancel: Cancel) -> None:
        self._pool = pool
        self._session = session
        self.cancel = cancel
        self._is_lost = False
        self.host = session.host
        self.on_command, self.slow, self.timeout = session.on_command, session.slow, session.timeout
        self.is_login = session.is_login

    def _run(
        self, command: Command, sink: Callable[[StreamName, bytes], None], stdin: Readable | None, deadline: Deadline
    ) -> CommandEnd:
        """Run the command. Until it ends, the session counts as lost, so `close` does not give it back to the pool."""
        self._is_lost = True  # until the command ends, because `close` may be called before
        ended = self._session._run(command, sink, stdin, deadline)
        self._is_lost = False
        return ended

    def close(self) -> None:
        """Give the session back to the pool; close it if its last command did not end."""
        if self._is_lost:
            self._session.close()
        else:
            self._pool.attach(self._session)
