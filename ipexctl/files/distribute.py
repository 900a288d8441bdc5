"""Copies files from one host's store to all others.

From a host over TCP, so the control machine's uplink carries nothing; else through the control machine, which reads
each file once over the open ssh connections, or has it.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ipexctl.files.peer_servers import Servers
from ipexctl.files.relay import Relay
from ipexctl.files.store_client import Damaged, Delivery, missing, push
from ipexctl.remote.local import LocalSession
from ipexctl.remote.outcome import Cancelled, HostError, TimedOut, Unreachable
from ipexctl.remote.progress import ignore_event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ipexctl.files.store_client import StoredFile, StoreLocation
    from ipexctl.hosts.host import Host
    from ipexctl.remote.session import Session
    from ipexctl.remote.session_pool import SessionPool

Route = Literal["there", "server", "here"]
"""Source of the files: present already, a host's server, or through the control machine."""


class Distributor:
    """`bring` is called from each target's own thread, many at once."""

    def __init__(
        self,
        pool: SessionPool,
        source: StoreLocation,
        files: Sequence[StoredFile],
        *,
        on_progress: Callable[[Host, int, int | None], None] = ignore_event,
        local: Mapping[StoredFile, Path] | None = None,
    ) -> None:
        self._local = local
        self._pool = pool
        self._source = source
        self._files = tuple(files)
        self._on_progress = on_progress
        self._exit_stack = ExitStack()
        self._lock = threading.Lock()
        self._servers: Servers | None = None
        self._relay: Relay | None = None
        self._damaged: tuple[StoredFile, ...] = ()

    def __enter__(self) -> Distributor:
        return self

    def __exit__(self, *_: object) -> None:
        self._exit_stack.close()

    def bring(
        self,
        target: StoreLocation,
        session: Session,
        *,
        timeout: float | None = None,
        files: Sequence[StoredFile] | None = None,
    ) -> Route:
        """Copy the files that the target lacks; returns the route. `timeout` limits one route.

        `files`: those the target needs (default: all). Raises a HostError naming every route tried.
        """
        if (target.host, target.store) == (self._source.host, self._source.store):
            return "there"
        wanted = self._files if files is None else tuple(files)
        delivery = Delivery(target, session, wanted, timeout, self._pool.cancel, self._on_progress)
        if not self._source.address:
            delivery.find_missing()
            if delivery.had_all:
                return "there"
        failures: list[str] = []
        fix = ""
        for route, name, transfer in self._routes():
            try:
                transfer(delivery)
            except (Cancelled, TimedOut):
                raise
            except HostError as error:
                failures.append(f"{name}: {error.reason}")
                fix = error.fix
                if isinstance(error, Damaged):
                    self._verify_source()
                delivery.find_missing()
                if delivery.need:
                    self._refuse_damaged_source()
                    continue
            delivery.finish()
            if self._servers is not None and target.address and wanted == self._files:
                self._servers.add(target, session)  # it has all files now, and can serve others
            return "there" if delivery.had_all else route
        raise HostError("; ".join(failures), fix)

    def _routes(self) -> Iterator[tuple[Route, str, Callable[[Delivery], None]]]:
        if self._source.address:
            yield "server", f"from {self._source.host.name}'s server", self._from_server
        yield "here", "through this machine", self._through_control_machine

    def _from_server(self, delivery: Delivery) -> None:
        with self._lock:
            if self._servers is None:
                with self._source_session() as session:
                    servers = Servers(self._files, self._pool.cancel)
                    servers.add(self._source, session)
                self._servers = self._exit_stack.enter_context(servers)
        self._servers.send(delivery)

    def _through_control_machine(self, delivery: Delivery) -> None:
        push(
            delivery.session,
            delivery.target,
            self._local_files(delivery.need),
            on_bytes=delivery.on_bytes,
            timeout=delivery.timeout,
            cancel=self._pool.cancel,
        )

    def _local_files(self, files: Sequence[StoredFile]) -> Iterator[tuple[StoredFile, Path]]:
        if self._local is not None:
            return ((file, self._local[file]) for file in files)
        with self._source_session() as session:
            if isinstance(session, LocalSession):
                return ((file, Path(self._source.store, file.sha256, file.name)) for file in files)
        with self._lock:
            if self._relay is None:
                relay = Relay(self._source, self._source_session, self._pool.cancel)
                self._relay = self._exit_stack.enter_context(relay)
        return self._relay.files(files)

    @contextmanager
    def _source_session(self) -> Iterator[Session]:
        """The source's session. Losing it is the source's error: the target is not unreachable."""
        try:
            yield self._pool.session(self._source.host)
        except Unreachable as error:
            raise HostError(f"{self._source.host.name}: {error.reason}", error.fix) from None

    def _verify_source(self) -> None:
        """Remove damaged copies at the source, so that the next command downloads them again."""
        with self._lock, self._source_session() as session:
            cancel = self._pool.cancel
            self._damaged = missing(session, self._source, self._files, verify=True, cancel=cancel)

    def _refuse_damaged_source(self) -> None:
        """Another transfer may have detected the damage: then a file is missing here."""
        with self._lock:
            damaged = self._damaged
        if damaged:
            names = ", ".join(file.name for file in damaged)
            raise HostError(
                f"{self._source.host.name}'s copy of {names} was damaged, and was removed there", "run it again"
            )
