"""Copies files from one host's store to all others: host to host if possible, else through the control machine."""

from __future__ import annotations

import secrets
import shlex
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from ipexctl.remote.command import Command, login_line
from ipexctl.remote.local import LocalSession
from ipexctl.remote.node_call import agent_command, agent_zip, call_line
from ipexctl.remote.outcome import Cancelled, HostError, TimedOut, Unreachable
from ipexctl.remote.transfer.peer_transfer import GIVE_UP, Servers, connect
from ipexctl.remote.transfer.relay import Relay
from ipexctl.remote.transfer.store_client import Damaged, TransferEvents, missing, push, refuse_damaged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ipexctl.hosts.host import Host
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.session import Session
    from ipexctl.remote.session_pool import SessionPool
    from ipexctl.remote.transfer.peer_transfer import Server
    from ipexctl.remote.transfer.store_client import StoredFile, StoreLocation

Route = Literal["there", "ssh", "server", "here"]
"""The way the files came: already there, by the source's ssh, from a host's server, through the control machine."""

_CHANNELS: Final = 4
"""Commands on the source at once: sshd allows ten per connection, and other steps need some of them."""

_CIPHERS: Final = "aes128-gcm@openssh.com,aes256-gcm@openssh.com,aes128-ctr,aes256-ctr,chacha20-poly1305@openssh.com"
_SSH: Final = ("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", "-o", f"Ciphers={_CIPHERS}", "--")

_ROUTE_NAMES: Final = {"ssh": "over ssh from {}", "server": "from {}'s server", "here": "through this machine"}


def _ignore(host: Host, done: int, total: int | None) -> None:
    """The default of `on_progress`."""


class Distributor:
    """Copies the blobs of one store to others. `bring` is called from each target's own thread, many at once."""

    def __init__(
        self,
        pool: SessionPool,
        source: StoreLocation,
        blobs: Sequence[StoredFile],
        *,
        ssh_config: str | None = None,
        on_progress: Callable[[Host, int, int | None], None] = _ignore,
    ) -> None:
        """`ssh_config`: the path, on the source, of the ssh config for reaching the others."""
        self._pool = pool
        self._source = source
        self._blobs = tuple(blobs)
        self._ssh_config = ssh_config
        self._on_progress = on_progress
        self._channels = threading.BoundedSemaphore(_CHANNELS)
        self._ssh_failures = 0
        self._exit_stack = ExitStack()
        self._lock = threading.Lock()
        self._servers: Servers | None = None
        self._relay: Relay | None = None
        self._removed: tuple[StoredFile, ...] = ()

    def __enter__(self) -> Distributor:
        return self

    def __exit__(self, *_: object) -> None:
        self._exit_stack.close()

    def bring(self, target: StoreLocation, session: Session, *, timeout: float | None = None) -> Route:
        """Copy the blobs that the target lacks and return the route. `timeout` limits the transfer of one route.

        Raises a HostError that names every route that was tried.
        """
        if (target.host, target.store) == (self._source.host, self._source.store):
            return "there"
        delivery = _Delivery(target, session, timeout, self._pool.cancel, self._on_progress)
        delivery.find_missing(self._blobs)
        if not delivery.need:
            return "there"
        failures: list[str] = []
        error = HostError("there is no way to bring the files there")
        for route, transfer in self._routes(target):
            try:
                transfer(delivery)
            except (Cancelled, TimedOut):
                raise
            except HostError as caught:
                error = caught
                failures.append(f"{_ROUTE_NAMES[route].format(self._source.host.name)}: {caught.reason}")
                if isinstance(caught, Damaged):
                    self._remove_damaged()
                delivery.find_missing(delivery.need)
                if delivery.need:
                    self._raise_if_removed()
                    continue
            delivery.finish()
            self._add_server(target, session)
            return route
        raise HostError("; ".join(failures) or error.reason, error.fix)

    def _routes(self, target: StoreLocation) -> Iterator[tuple[Route, Callable[[_Delivery], None]]]:
        if self._ssh_config and target.ssh_name and self._ssh_failures < GIVE_UP:
            yield "ssh", self._over_ssh
        if self._source.address:
            yield "server", self._from_server
        yield "here", self._through_control_machine

    @property
    def _source_session(self) -> Session:
        with _source_errors(self._source):
            return self._pool.session(self._source.host)

    @contextmanager
    def _channel(self) -> Iterator[Session]:
        """A slot for one of the few commands that may run on the source at once."""
        while not self._channels.acquire(timeout=0.2):
            if self._pool.cancel.thrown:
                raise Cancelled("stopped")
        try:
            with _source_errors(self._source):
                yield self._source_session
        finally:
            self._channels.release()

    def _over_ssh(self, delivery: _Delivery) -> None:
        assert self._ssh_config is not None
        assert delivery.target.ssh_name is not None
        with self._channel() as session:
            if self._ssh_failures >= GIVE_UP:
                raise HostError("its ssh didn't reach others either")
            events = TransferEvents(delivery.on_bytes)
            files = [blob.to_json() for blob in delivery.need]
            request = {
                "store": self._source.store,
                "files": files,
                "to": {"store": delivery.target.store, "files": files},
            }
            try:
                response = call_line(
                    session,
                    _ssh_pipe_command(self._source, self._ssh_config, delivery.target),
                    agent_zip("files"),
                    request,
                    on_event=events,
                    timeout=delivery.timeout,
                    cancel=self._pool.cancel,
                )
            except HostError:
                self._ssh_failures += not events.is_ready
                raise
        self._ssh_failures = 0
        refuse_damaged(response, f"{self._source.host.name}'s copy is damaged")

    def _from_server(self, delivery: _Delivery) -> None:
        with self._lock:
            if self._servers is None:
                self._servers = self._exit_stack.enter_context(Servers(self._blobs, self._pool.cancel))
                self._servers.add(self._source, self._source_session)
        self._servers.serve(lambda server: self._connect(server, delivery))

    def _connect(self, server: Server, delivery: _Delivery) -> None:
        connect(
            server,
            delivery.session,
            delivery.target,
            delivery.need,
            on_bytes=delivery.on_bytes,
            timeout=delivery.timeout,
            cancel=self._pool.cancel,
        )

    def _through_control_machine(self, delivery: _Delivery) -> None:
        push(
            delivery.session,
            delivery.target,
            self._local_files(delivery.need),
            on_bytes=delivery.on_bytes,
            timeout=delivery.timeout,
            cancel=self._pool.cancel,
        )

    def _local_files(self, blobs: Sequence[StoredFile]) -> Iterator[tuple[StoredFile, Path]]:
        if isinstance(self._source_session, LocalSession):
            return ((blob, Path(self._source.store, blob.sha256, blob.name)) for blob in blobs)
        with self._lock:
            if self._relay is None:
                self._relay = self._exit_stack.enter_context(Relay(self._source, self._channel, self._pool.cancel))
        return self._relay.files(blobs)

    def _add_server(self, target: StoreLocation, session: Session) -> None:
        """A target that has all blobs can serve others."""
        if self._servers is not None and target.address:
            self._servers.add(target, session)

    def _remove_damaged(self) -> None:
        """Verify the source's copies; damaged ones are removed there, so that the next command downloads them again."""
        with self._lock, self._channel() as session:
            damaged = missing(session, self._source, self._blobs, verify=True, cancel=self._pool.cancel)
            self._removed = damaged
        self._raise_if_removed()

    def _raise_if_removed(self) -> None:
        """Another target's transfer may have detected the damage: then a file is missing in this transfer."""
        with self._lock:
            damaged = self._removed
        if damaged:
            names = ", ".join(blob.name for blob in damaged)
            raise HostError(
                f"{self._source.host.name}'s copy of {names} was damaged, and was removed there", "run it again"
            )


class _Delivery:
    """The blobs one target still lacks, and the progress of their transfer."""

    def __init__(
        self,
        target: StoreLocation,
        session: Session,
        timeout: float | None,
        cancel: Cancel,
        on_progress: Callable[[Host, int, int | None], None],
    ) -> None:
        self.target = target
        self.session = session
        self.timeout = timeout
        self.need: tuple[StoredFile, ...] = ()
        self._cancel = cancel
        self._on_progress = on_progress
        self._total: int | None = None
        self._bytes_before = 0
        self._reported = 0
        self._is_first = True

    def find_missing(self, blobs: Sequence[StoredFile]) -> None:
        self.need = missing(self.session, self.target, blobs, cancel=self._cancel)
        left = _size(self.need)
        if self._is_first:
            self._total, self._is_first = left, False
        elif left is not None and self._total is not None:
            self._bytes_before = self._total - left

    def on_bytes(self, done: int) -> None:
        # A route that failed may have stopped in the middle of a file, which the next route begins again.
        self._reported = max(self._reported, self._bytes_before + done)
        self._on_progress(self.target.host, self._reported, self._total)

    def finish(self) -> None:
        if self._total is not None:
            self._on_progress(self.target.host, self._total, self._total)


def _size(blobs: Sequence[StoredFile]) -> int | None:
    sizes = [blob.size for blob in blobs if blob.size is not None]
    return sum(sizes) if len(sizes) == len(blobs) else None


@contextmanager
def _source_errors(source: StoreLocation) -> Iterator[None]:
    """Report a lost source as an error of the source, not as an unreachable target."""
    try:
        yield
    except Unreachable as error:
        raise HostError(f"{source.host.name}: {error.reason}", error.fix) from None


def _ssh_pipe_command(source: StoreLocation, ssh_config: str, target: StoreLocation) -> Command:
    """The command on the source that pipes frames of its store into the target's store, by ssh.

    The sender writes its own archive before the frames, so the agent's bytes also come from the source.
    """
    assert target.ssh_name is not None
    receive = login_line(agent_command("files.store", "receive", python=target.python), secrets.token_hex(8))
    ssh = shlex.join(["ssh", "-F", ssh_config, *_SSH, target.ssh_name, receive])
    send = agent_command("files.store", "send", python=source.python)
    return Command(f"{{ {send.script}}} | {ssh}", "send by ssh")
