"""Files by hash from one host's store to every other's: host to host where that can be, through this machine else.

What one store does is `stores`; the server that hosts open for one another is `handover`.
"""

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

Way = Literal["there", "ssh", "server", "here"]

_CHANNELS: Final = 4
"""Commands on the source at once: sshd allows ten a connection, and the rest of the call has its own."""

_CIPHERS: Final = "aes128-gcm@openssh.com,aes256-gcm@openssh.com,aes128-ctr,aes256-ctr,chacha20-poly1305@openssh.com"
_SSH: Final = ("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", "-o", f"Ciphers={_CIPHERS}", "--")

_NAMES: Final = {"ssh": "over ssh from {}", "server": "from {}'s server", "here": "through this machine"}


def _ignore(host: Host, done: int, total: int | None) -> None:
    """Nobody follows."""


class Distributor:
    """Brings the blobs of one store to others. `bring` is called from each target's own thread, many at once."""

    def __init__(
        self,
        pool: SessionPool,
        source: StoreLocation,
        blobs: Sequence[StoredFile],
        *,
        ssh_config: str | None = None,
        on_progress: Callable[[Host, int, int | None], None] = _ignore,
    ) -> None:
        """`ssh_config`: the path, on the source, of the config by which its ssh reaches the others."""
        self._crew = pool
        self._source = source
        self._blobs = tuple(blobs)
        self._ssh_config = ssh_config
        self._on_progress = on_progress
        self._channels = threading.BoundedSemaphore(_CHANNELS)
        self._in_vain = 0
        self._ends = ExitStack()
        self._lock = threading.Lock()
        self._servers: Servers | None = None
        self._spool: Relay | None = None
        self._removed: tuple[StoredFile, ...] = ()

    def __enter__(self) -> Distributor:
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def bring(self, target: StoreLocation, session: Session, *, timeout: float | None = None) -> Way:
        """Make the target have all blobs, and say how they came. `timeout` is for one way's transfer.

        Raises a HostError that names every way that was tried.
        """
        if (target.host, target.store) == (self._source.host, self._source.store):
            return "there"
        carried = _Relayed(target, session, timeout, self._crew.cancel, self._on_progress)
        carried.look(self._blobs)
        if not carried.need:
            return "there"
        failures: list[str] = []
        error = HostError("there is no way to bring the files there")
        for way, go in self._ways(target):
            try:
                go(carried)
            except (Cancelled, TimedOut):
                raise
            except HostError as caught:
                error = caught
                failures.append(f"{_NAMES[way].format(self._source.host.name)}: {caught.reason}")
                if isinstance(caught, Damaged):
                    self._heal()
                carried.look(carried.need)
                if carried.need:
                    self._raise_if_removed()
                    continue
            carried.all_is_there()
            self._now_whole(target, session)
            return way
        raise HostError("; ".join(failures) or error.reason, error.fix)

    def _ways(self, target: StoreLocation) -> Iterator[tuple[Way, Callable[[_Relayed], None]]]:
        if self._ssh_config and target.word and self._in_vain < GIVE_UP:
            yield "ssh", self._over_ssh
        if self._source.address:
            yield "server", self._from_server
        yield "here", self._through_here

    @property
    def _source_session(self) -> Session:
        with _of_source(self._source):
            return self._crew.session(self._source.host)

    @contextmanager
    def _channel(self) -> Iterator[Session]:
        """One of the few commands that may run on the source at once."""
        while not self._channels.acquire(timeout=0.2):
            if self._crew.cancel.thrown:
                raise Cancelled("stopped")
        try:
            with _of_source(self._source):
                yield self._source_session
        finally:
            self._channels.release()

    def _over_ssh(self, carried: _Relayed) -> None:
        assert self._ssh_config is not None
        assert carried.target.word is not None
        with self._channel() as session:
            if self._in_vain >= GIVE_UP:
                raise HostError("its ssh didn't reach others either")
            heard = TransferEvents(carried.arrived)
            files = [blob.to_json() for blob in carried.need]
            request = {
                "store": self._source.store,
                "files": files,
                "to": {"store": carried.target.store, "files": files},
            }
            try:
                answer = call_line(
                    session,
                    _relay(self._source, self._ssh_config, carried.target),
                    agent_zip("files"),
                    request,
                    on_event=heard,
                    timeout=carried.timeout,
                    cancel=self._crew.cancel,
                )
            except HostError:
                self._in_vain += not heard.is_ready
                raise
        self._in_vain = 0
        refuse_damaged(answer, f"{self._source.host.name}'s copy is damaged")

    def _from_server(self, carried: _Relayed) -> None:
        with self._lock:
            if self._servers is None:
                self._servers = self._ends.enter_context(Servers(self._blobs, self._crew.cancel))
                self._servers.add(self._source, self._source_session)
        self._servers.serve(lambda server: self._connect(server, carried))

    def _connect(self, server: Server, carried: _Relayed) -> None:
        connect(
            server,
            carried.session,
            carried.target,
            carried.need,
            on_bytes=carried.arrived,
            timeout=carried.timeout,
            cancel=self._crew.cancel,
        )

    def _through_here(self, carried: _Relayed) -> None:
        push(
            carried.session,
            carried.target,
            self._files_here(carried.need),
            on_bytes=carried.arrived,
            timeout=carried.timeout,
            cancel=self._crew.cancel,
        )

    def _files_here(self, blobs: Sequence[StoredFile]) -> Iterator[tuple[StoredFile, Path]]:
        if isinstance(self._source_session, LocalSession):
            return ((blob, Path(self._source.store, blob.sha256, blob.name)) for blob in blobs)
        with self._lock:
            if self._spool is None:
                self._spool = self._ends.enter_context(Relay(self._source, self._channel, self._crew.cancel))
        return self._spool.files(blobs)

    def _now_whole(self, target: StoreLocation, session: Session) -> None:
        """Who has just got everything can hand it on."""
        if self._servers is not None and target.address:
            self._servers.add(target, session)

    def _heal(self) -> None:
        """Have the source read its copies; what is damaged is removed there, so that the next call gets it anew."""
        with self._lock, self._channel() as session:
            lost = missing(session, self._source, self._blobs, verify=True, cancel=self._crew.cancel)
            self._removed = lost
        self._raise_if_removed()

    def _raise_if_removed(self) -> None:
        """Another target's transfer may have found the damage: then a file is missing in this one's."""
        with self._lock:
            lost = self._removed
        if lost:
            names = ", ".join(blob.name for blob in lost)
            raise HostError(
                f"{self._source.host.name}'s copy of {names} was damaged, and was removed there", "run it again"
            )


class _Relayed:
    """What one target still lacks, and how far that is."""

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
        self._before = 0
        self._reported = 0
        self._is_first = True

    def look(self, blobs: Sequence[StoredFile]) -> None:
        self.need = missing(self.session, self.target, blobs, cancel=self._cancel)
        left = _size(self.need)
        if self._is_first:
            self._total, self._is_first = left, False
        elif left is not None and self._total is not None:
            self._before = self._total - left

    def arrived(self, done: int) -> None:
        # A way that failed may have been in the middle of a file, which the next one begins again.
        self._reported = max(self._reported, self._before + done)
        self._on_progress(self.target.host, self._reported, self._total)

    def all_is_there(self) -> None:
        if self._total is not None:
            self._on_progress(self.target.host, self._total, self._total)


def _size(blobs: Sequence[StoredFile]) -> int | None:
    sizes = [blob.size for blob in blobs if blob.size is not None]
    return sum(sizes) if len(sizes) == len(blobs) else None


@contextmanager
def _of_source(source: StoreLocation) -> Iterator[None]:
    """That the source is lost is not to be said of the target."""
    try:
        yield
    except Unreachable as error:
        raise HostError(f"{source.host.name}: {error.reason}", error.fix) from None


def _relay(source: StoreLocation, ssh_config: str, target: StoreLocation) -> Command:
    """On the source: its store's frames into the target's, through its ssh and the login shell there.

    The sender writes its own archive before the frames, so the agent's bytes come from the source, too.
    """
    assert target.word is not None
    receive = login_line(agent_command("files.store", "receive", python=target.python), secrets.token_hex(8))
    ssh = shlex.join(["ssh", "-F", ssh_config, *_SSH, target.word, receive])
    send = agent_command("files.store", "send", python=source.python)
    return Command(f"{{ {send.script}}} | {ssh}", "send by ssh")
