"""Uploads much content once to the first host, and from there to the others.

Small files travel in one parcel, files of 1 MB and more by their own hash. They arrive in the stage of a tree or a push
(`node/files/place.py`), where a repeated call finds them.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from ipexctl.errors import Refusal, UserError, place_fix
from ipexctl.facts.facts import Facts, addresses_among
from ipexctl.files import store_client as stores
from ipexctl.files.distribute import Distributor
from ipexctl.files.store_client import StoredFile, StoreLocation
from ipexctl.files.stream import pack_file
from ipexctl.hosts.host import Host
from ipexctl.node.common.files import encode_name
from ipexctl.node.files.file_stream import END
from ipexctl.node.files.manifest import ManifestEntry
from ipexctl.node.files.place import CONTENT, PARCEL
from ipexctl.remote.local import LocalSession
from ipexctl.remote.outcome import BytesMoved, HostError, Notice, Watch
from ipexctl.remote.session import Session
from ipexctl.remote.session_pool import SessionPool

SEPARATE_SIZE: Final = 1_000_000
"""Smaller files go into one parcel."""


def addresses_for_transfer(
    hosts: Sequence[Host], pool: SessionPool, facts: dict[str, Facts], options: UploadOptions, watch: Watch
) -> Mapping[str, str]:
    """Host → address for other hosts; empty if files go through this machine. Completes `facts`."""
    unknown = [host for host in hosts if host.name not in facts]
    if unknown:
        from ipexctl.facts.gather import gather_facts  # slow to import, and seldom needed

        answers = gather_facts(unknown, pool, home=options.home, timeout=options.timeout)
        facts.update({answer.host.name: answer.facts for answer in answers if answer.facts is not None})
    internal = addresses_among(hosts, facts, options.iface)
    if isinstance(internal, Refusal):
        watch(Notice(f"files go through this machine: {internal.reason}. {internal.fix}"))
        return {}
    return internal


class UploadOptions(NamedTuple):
    home: str
    iface: str | None
    timeout: float | None


class Uploader:
    """Holds the parcel, the first host's copy and the distributor until all hosts have the files."""

    def __init__(
        self,
        root: Path,
        contents: Sequence[ManifestEntry],
        locations: Mapping[str, StoreLocation],
        pool: SessionPool,
        watch: Watch,
        timeout: float | None,
        *,
        needs: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        """`locations`: one host of each home; the first gets the files from this machine.

        `needs`: host → contents it lacks (default: all).
        """
        self._root, self._needs = os.fsencode(root), needs or {}
        self.source = next(iter(locations.values()))
        self._locations, self._pool, self._watch, self._timeout = locations, pool, watch, timeout
        self._exit_stack = ExitStack()
        self._large = [entry for entry in contents if entry.size >= SEPARATE_SIZE]
        self._small = [entry for entry in contents if entry.size < SEPARATE_SIZE]
        self._files: list[tuple[StoredFile, Path]] = []
        self.sent: dict[str, int] = {}

    def __enter__(self) -> Uploader:
        try:
            self._pack()
            self._push(self.source)
            self._distributor = self._exit_stack.enter_context(
                Distributor(self._pool, self.source, self._blobs, on_progress=self._moved, local=dict(self._files))
            )
        except BaseException:
            self._exit_stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._exit_stack.close()

    @property
    def _blobs(self) -> list[StoredFile]:
        return [blob for blob, _ in self._files]

    def bring(self, host: Host, session: Session) -> None:
        blobs = self.blobs_of(host)
        route = self._distributor.bring(self._locations[host.name], session, timeout=self._timeout, files=blobs)
        if route == "here" and not isinstance(session, LocalSession):
            self.sent[host.name] = sum(blob.size or 0 for blob in blobs)

    def failure_on(self, host: Host, error: HostError) -> HostError:
        first = self.source.host
        reason = f"{first.name}, which sends the files on, failed: {error.reason}"
        return error if host is first else HostError(reason, error.fix)

    @property
    def parcels(self) -> tuple[str, ...]:
        return tuple(blob.sha256 for blob in self._blobs if blob.name == PARCEL)

    def blobs_of(self, host: Host) -> list[StoredFile]:
        needs = self._needs.get(host.name)
        return [blob for blob in self._blobs if needs is None or blob.name == PARCEL or blob.sha256 in needs]

    def _pack(self) -> None:
        self._files = [(StoredFile(entry.content, CONTENT, entry.size), self._path(entry)) for entry in self._large]
        if not self._small:
            return
        try:
            directory = self._exit_stack.enter_context(tempfile.TemporaryDirectory(prefix="ipexctl-"))
            parcel, digest = Path(directory) / "parcel", hashlib.sha256()
            with parcel.open("wb") as file:
                for data in (*(pack_file(self._root, entry) for entry in self._small), END):
                    digest.update(data)
                    file.write(data)
        except OSError as error:
            raise UserError(
                f"files can't be packed in {tempfile.gettempdir()}: {error.strerror or error}",
                fix=place_fix(error, "set TMPDIR to another directory"),
            ) from None
        self._files.append((StoredFile(digest.hexdigest(), PARCEL, parcel.stat().st_size), parcel))

    def _path(self, entry: ManifestEntry) -> Path:
        return Path(os.fsdecode(os.path.join(self._root, encode_name(entry.path))))

    def _push(self, source: StoreLocation) -> None:
        host = source.host
        session = self._pool.session(host)
        missing = stores.missing(session, source, self._blobs, cancel=self._pool.cancel)
        total, paths = sum(blob.size or 0 for blob in missing), dict(self._files)
        stores.push(
            session,
            source,
            [(blob, paths[blob]) for blob in missing],
            on_bytes=lambda done: self._watch(BytesMoved(host.name, "receiving", done, total)),
            timeout=self._timeout,
            cancel=self._pool.cancel,
        )
        self.sent[host.name] = total

    def _moved(self, host: Host, done: int, total: int | None) -> None:
        self._watch(BytesMoved(host.name, "receiving", done, total))
