"""Bring to the hosts the files that they lack, for a push and a large sync.

One host, the source, gets all files first, and the others get them from there (`routes.py`), so that the link of this
machine carries each byte once. A push goes in groups: the source sends a group on while the next one arrives.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from concurrent import futures
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cached_property
from itertools import chain, zip_longest
from pathlib import Path
from typing import IO, Final

from ipexctl.errors import Refusal, UserError, place_fix
from ipexctl.facts.facts import Facts, addresses_among
from ipexctl.files.routes import Distributor, Route
from ipexctl.files.store_client import (
    DamagedFile,
    StoredFile,
    StoreLocation,
    total_size,
)
from ipexctl.files.stream import NotInStore, stream_entries
from ipexctl.hosts.host import Host
from ipexctl.node.common.files import encode_name
from ipexctl.node.files.file_stream import END
from ipexctl.node.files.manifest import ManifestEntry
from ipexctl.node.files.place import CONTENT, PARCEL
from ipexctl.remote.connector import OpenHosts
from ipexctl.remote.fanout import run_in_background
from ipexctl.remote.outcome import (
    BytesMoved,
    Cancelled,
    HostError,
    Notice,
    ProgressEvent,
    Watch,
)
from ipexctl.remote.session import Session

SEPARATE_SIZE: Final = 1_000_000
"""Bytes; smaller files go into one parcel."""
_SMALLEST_GROUP: Final = 64_000_000
"""Bytes."""
_MOST_GROUPS: Final = 8
"""The source gets one group of files while it sends the group before to the others."""


class FileTransfer:
    """Brings to the store of each home the contents it needs. One host has them first, and sends them on."""

    def __init__(
        self,
        stores: Iterable[StoreLocation],
        needs: Mapping[str, Collection[str]],
        opened: OpenHosts,
        facts: dict[str, Facts],
        watch: Watch,
        sender: Host | None = None,
    ) -> None:
        """Choose the source; nothing is sent yet.

        `stores`: one host of each home. `needs`: host → the hashes it lacks. `facts`: host → known facts, to which
        this adds those of other hosts if it needs them. `sender`: a host that has all files; without one, the host that
        lacks most is the source.
        """
        self.sent: dict[str, int] = {}
        """Host → bytes from this machine."""
        self.parcels: tuple[str, ...] = ()
        """Hashes of files that contain several."""
        self.opened, self.pool, self.watch = opened, opened.pool, watch
        self._facts = facts
        self._needs = needs
        self.contents = sorted(set[str]().union(*needs.values()))
        """Hashes that any host lacks."""
        self._ordered_stores = sorted(stores, key=lambda store: -len(needs[store.host.name]))
        self._hosts = [store.host for store in self._ordered_stores]
        """Hosts that have not failed; the source, unless it is a sender, is among them."""
        self.source, self._has_sender = sender or self._hosts[0], sender is not None

    @cached_property
    def stores(self) -> Mapping[str, StoreLocation]:
        """Host → its store, with the address for other hosts."""
        stores = ((store.host.name, store) for store in self._ordered_stores)
        return {name: replace(store, address=self.addresses.get(name)) for name, store in stores}

    @cached_property
    def addresses(self) -> Mapping[str, str]:
        """Host → its address for other hosts; empty if there is one host, or if files go through this machine.

        Probes hosts whose facts are not known.
        """
        facts, hosts = self._facts, list(dict.fromkeys([self.source, *self._hosts]))
        if len(hosts) == 1:
            return {}
        if unknown := [host for host in hosts if host.name not in facts]:
            from ipexctl.facts.gather import gather_facts  # slow to import, and seldom needed

            answers = gather_facts(self.opened.only(unknown))
            facts.update({answer.host.name: answer.facts for answer in answers if answer.facts is not None})
        addresses = addresses_among(hosts, facts, self.opened.iface)
        if isinstance(addresses, Refusal):
            self.watch(Notice(f"files go through this machine: {addresses.reason}. " + addresses.fix))
            return {}
        return addresses

    def bring_all(self, origin: Origin, fail: Callable[[Host, HostError], None]) -> list[Host]:
        """Bring all files to all hosts, and return the hosts that have everything; `fail` is called for the others.

        If the source fails, another host becomes the source. That is no help if the cause is on this machine, or if the
        source is the only host that has the files: then all hosts fail.
        """
        while self.contents and self._hosts:
            try:
                with ExitStack() as held:
                    self._bring_groups(origin(self, held), held, fail)
                break
            except HostError as error:
                is_here = isinstance(error, (Cancelled, NotInStore, DamagedFile))
                for host in tuple(self._hosts) if is_here or self._has_sender else (self.source,):
                    reason = f"{self.source.name}, which sends the files on, failed: {error.reason}"
                    self._hosts.remove(host)
                    fail(host, error if is_here or host == self.source else HostError(reason, error.fix))
                self.source = self._hosts[0] if self._hosts else self.source
        return self._hosts

    def _bring_groups(
        self, groups: Sequence[Distributor], held: ExitStack, fail: Callable[[Host, HostError], None]
    ) -> None:
        """Bring one group after the other. Raises a HostError if the source fails."""
        files = chain.from_iterable(group.files for group in groups)
        self.parcels = tuple(file.sha256 for file in files if file.name == PARCEL)
        for group in held.enter_context(closing(_filled(groups))):
            with group:
                self._bring(group, fail)
            for name, size in group.sent.items():
                self.sent[name] = self.sent.get(name, 0) + size
            if not self._hosts:
                break

    def _bring(self, group: Distributor, fail: Callable[[Host, HostError], None]) -> None:
        """Bring a group to all hosts at once; one that fails gets no further group."""

        def bring(host: Host, session: Session) -> Route:
            return group.bring(self.stores[host.name], session, self._wanted(host.name, group.files))

        for done in self.pool.each(tuple(self._hosts), bring):
            if done.error is not None:
                self._hosts.remove(done.host)
                fail(done.host, done.error)

    def _wanted(self, host: str, files: Sequence[StoredFile]) -> Sequence[StoredFile]:
        """Return the files that a host lacks, and all parcels, because any may contain some."""
        wanted = {*self._needs[host], *self.parcels}
        return [file for file in files if file.sha256 in wanted]

    def watch_group(self, before: Sequence[StoredFile], files: Sequence[StoredFile]) -> Watch:
        """Return a watcher for one group that reports its bytes as part of all files.

        `before`: the files of earlier groups. `files`: those of all groups.
        """

        def watch(event: ProgressEvent) -> None:
            if isinstance(event, BytesMoved):
                is_source = event.host == self.source.name
                done, total = (
                    total_size(part if is_source else self._wanted(event.host, part)) for part in (before, files)
                )
                event = replace(event, done=event.done + (done or 0), total=total)
            self.watch(event)

        return watch


def _filled(groups: Sequence[Distributor]) -> Generator[Distributor, None, None]:
    """Yield each group once the source has it. Meanwhile, as the caller distributes a group, the source gets the next.

    Raises the HostError of the source. It must be closed: then it waits until nothing is sent any more.
    """
    filling = run_in_background(groups[0].fill_source, "fill")
    try:
        for group, following in zip_longest(groups, groups[1:]):
            filling.result()
            if following is not None:
                filling = run_in_background(following.fill_source, "fill")
            yield group
    finally:
        futures.wait([filling])


def _split(files: Sequence[StoredFile]) -> list[list[StoredFile]]:
    """Return the files in at most `_MOST_GROUPS` groups, none but the last smaller than `_SMALLEST_GROUP`."""
    least = max(_SMALLEST_GROUP, (total_size(files) or 0) / _MOST_GROUPS)
    groups: list[list[StoredFile]] = [[]]
    for file in files:
        if (total_size(groups[-1]) or 0) >= least:
            groups.append([])
        groups[-1].append(file)
    return groups


def _open_temporary(held: ExitStack) -> tuple[IO[bytes], Path]:
    """Return a file to write, and its path. On Linux it has no name, so that a killed call leaves nothing.

    It lasts until `held` is closed.
    """
    if os.path.isdir("/proc/self/fd"):
        file = held.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        return file, Path(f"/proc/self/fd/{file.fileno()}")
    path = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="ipexctl-")), "parcel")
    return held.enter_context(path.open("wb")), path


Origin = Callable[[FileTransfer, ExitStack], Sequence[Distributor]]
"""Makes the distributors of a transfer's files, each for one group. What the function enters in the stack lasts as long
as the transfer."""


def local_files(root: Path, entry_of: Callable[[str], ManifestEntry], *, in_groups: bool) -> Origin:
    """Return the origin of files of this machine: small ones in one parcel, larger ones by their own hash.

    They arrive in the stage of a tree or a push (`node/files/place.py`), where a repeated call finds them. `entry_of`:
    hash → the file's entry. `in_groups`: True to send group by group; the hosts must have said that there is room for
    all.
    """
    base = os.fsencode(root)

    def path_of(entry: ManifestEntry) -> Path:
        return Path(os.fsdecode(os.path.join(base, encode_name(entry.path))))

    def pack(held: ExitStack, small: Sequence[ManifestEntry]) -> tuple[StoredFile, Path]:
        """Write the files into one parcel; return what it is in a store, and its path."""
        digest = hashlib.sha256()
        try:
            file, parcel = _open_temporary(held)
            for data in chain(stream_entries(base, small), (END,)):
                digest.update(data)
                file.write(data)
            file.flush()
        except OSError as error:
            raise UserError(
                f"files can't be packed in {tempfile.gettempdir()}: {error.strerror or error}",
                fix=place_fix(error, "set TMPDIR to another directory"),
            ) from None
        return StoredFile(digest.hexdigest(), PARCEL, parcel.stat().st_size), parcel

    def send(transfer: FileTransfer, held: ExitStack) -> list[Distributor]:
        contents = [entry_of(sha256) for sha256 in transfer.contents]
        large = [entry for entry in contents if entry.size >= SEPARATE_SIZE]
        small = [entry for entry in contents if entry.size < SEPARATE_SIZE]
        local = {StoredFile(entry.content, CONTENT, entry.size): path_of(entry) for entry in large}
        if small:
            local.update([pack(held, small)])
        source, timeout = transfer.stores[transfer.source.name], transfer.opened.timeout
        files, distributors = list(local), []
        for group in _split(files) if in_groups and source.address else [files]:
            before = files[: files.index(group[0])]
            watch = transfer.watch_group(before, files)
            distributors.append(Distributor(transfer.pool, source, group, watch, timeout=timeout, local=local))
        return distributors

    return send
