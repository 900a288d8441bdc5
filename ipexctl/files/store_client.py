"""Calls to one host's store of files: query, download, upload. `node/files/store.py` is the host's side.

The host checks each hash and moves complete files into place; a repeated transfer continues a broken one. URLs and
logins go on stdin. An unreadable local file is `NotInStore`, no failure of the target; a wrong hash is `Damaged`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipexctl.files.stream import stream_blobs
from ipexctl.hosts.host import Host
from ipexctl.node.files.file_stream import offset_of
from ipexctl.node.files.store import HaveRequest, ReceiveRequest, StoreFile
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.node_call import call
from ipexctl.remote.outcome import HostError, ignore_event
from ipexctl.remote.reply import Reply
from ipexctl.remote.session import ChunkStream, Readable, Session

if TYPE_CHECKING:
    from ipexctl.node.common.http import HttpSettings
    from ipexctl.node.files.download import DownloadRequest


@dataclass(frozen=True, slots=True)
class StoredFile:
    sha256: str
    name: str
    size: int | None = None
    have: int = field(default=0, compare=False)
    """Bytes that the target has, from an earlier transfer."""

    def to_json(self) -> StoreFile:
        return {"sha256": self.sha256, "name": self.name, "size": self.size}


@dataclass(frozen=True, slots=True)
class StoreLocation:
    host: Host
    python: str
    store: str
    address: str | None = None
    home: str = ""
    """ipexctl's directory there, with a copy of the agent. If empty, each call sends the agent."""
    is_guarded: bool = False
    """Other accounts may change a parent directory: see `store.entered`."""

    def call(
        self,
        session: Session,
        command: str,
        action: str,
        request: Mapping[str, Any],
        *,
        stdin: Readable | None = None,
        on_event: Callable[[Reply], None] = ignore_event,
        timeout: float | None = None,
        cancel: Cancel | None = None,
    ) -> Reply:
        return call(
            session,
            command,
            action,
            {**request, **self._options()},
            python=self.python,
            home=self.home,
            cached=bool(self.home),
            stdin=stdin,
            on_event=on_event,
            timeout=timeout,
            cancel=cancel,
        )

    def _options(self) -> dict[str, object]:
        options = {"home": self.home, "guarded": self.is_guarded}
        return {name: value for name, value in options.items() if value}


@dataclass(frozen=True, slots=True)
class Download:
    blob: StoredFile
    url: str
    headers: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class DownloadResult:
    got: tuple[str, ...]
    failed: Mapping[str, str]


class TransferEvents:
    """Counts received bytes and complete files of a transfer."""

    def __init__(self, on_bytes: Callable[[int], None], on_got: Callable[[str], None] = ignore_event) -> None:
        self.is_ready = False
        """True once the receiver has started: the connection works."""
        self._on_bytes = on_bytes
        self._on_got = on_got

    def __call__(self, event: Reply) -> None:
        kind = event.get("event")
        if kind == "progress":
            self._on_bytes(event.integer("done"))
        elif kind == "got":
            self._on_got(event.text("sha256"))
        elif kind == "ready":
            self.is_ready = True


def missing(
    session: Session,
    location: StoreLocation,
    blobs: Sequence[StoredFile],
    *,
    verify: bool = False,
    timeout: float | None = None,
    cancel: Cancel | None = None,
) -> tuple[StoredFile, ...]:
    """Blobs that the store lacks. `verify` reads all its bytes and removes damaged files first."""
    if not blobs:
        return ()
    request: HaveRequest = {"store": location.store, "files": [blob.to_json() for blob in blobs], "verify": verify}
    response = location.call(session, "files.store", "have", request, timeout=timeout, cancel=cancel)
    present, left = set(response.texts("have")), response.record("unfinished")
    unfinished = {prefix: left.integer(prefix) for prefix in left}
    return tuple(
        replace(blob, have=offset_of(blob.to_json(), unfinished)) for blob in blobs if blob.sha256 not in present
    )


def fetch(
    session: Session,
    location: StoreLocation,
    downloads: Sequence[Download],
    *,
    settings: HttpSettings | None = None,
    on_bytes: Callable[[int], None] = ignore_event,
    on_got: Callable[[str], None] = ignore_event,
    timeout: float | None = None,
    cancel: Cancel | None = None,
) -> DownloadResult:
    """Let the host download with these pip settings or its own. URLs and credentials go on stdin."""
    if not downloads:
        return DownloadResult((), {})
    request: DownloadRequest = {
        "store": location.store,
        "files": [{**item.blob.to_json(), "url": item.url, "headers": item.headers or {}} for item in downloads],
        "settings": settings or {},
    }
    response = location.call(
        session,
        "files.download",
        "fetch",
        request,
        on_event=TransferEvents(on_bytes, on_got),
        timeout=timeout,
        cancel=cancel,
    )
    return DownloadResult(
        response.texts("got"), {item.text("sha256"): item.text("reason") for item in response.records("failed")}
    )


def push(
    session: Session,
    location: StoreLocation,
    files: Iterable[tuple[StoredFile, Path]],
    *,
    on_bytes: Callable[[int], None] = ignore_event,
    timeout: float | None = None,
    cancel: Cancel | None = None,
) -> tuple[str, ...]:
    """Upload files in one stream; returns the hashes that arrived.

    The iterable may block until a file is available, while earlier ones are sent. Its errors are raised here. A wrong
    hash is a HostError.
    """
    request: ReceiveRequest = {"store": location.store, "files": None}
    stream = ChunkStream(stream_blobs(({**blob.to_json(), "offset": blob.have}, path) for blob, path in files))
    try:
        response = location.call(
            session,
            "files.store",
            "receive",
            request,
            stdin=stream,
            on_event=TransferEvents(on_bytes),
            timeout=timeout,
            cancel=cancel,
        )
    except HostError as error:
        if stream.error is not None:
            raise stream.error from error
        raise
    refuse_damaged(response, "the copy on this machine is damaged")
    return response.texts("got")


class Delivery:
    def __init__(
        self,
        target: StoreLocation,
        session: Session,
        files: Sequence[StoredFile],
        timeout: float | None,
        cancel: Cancel,
        on_progress: Callable[[Host, int, int | None], None],
    ) -> None:
        self.target = target
        self.session = session
        self.timeout = timeout
        self.need = tuple(files)
        """All files until the target has said what it lacks."""
        self.is_asked = self.had_all = False
        self._cancel = cancel
        self._on_progress = on_progress
        self._total: int | None = None
        self._bytes_before = 0
        self._reported = 0

    def find_missing(self) -> None:
        self._set_missing(missing(self.session, self.target, self.need, cancel=self._cancel))

    def set_missing(self, hashes: Iterable[str]) -> None:
        lacking = set(hashes)
        self._set_missing(tuple(blob for blob in self.need if blob.sha256 in lacking))

    def _set_missing(self, need: tuple[StoredFile, ...]) -> None:
        self.need = need
        left = _size(self.need)
        if not self.is_asked:
            self._total, self.is_asked, self.had_all = left, True, not self.need
        elif left is not None and self._total is not None:
            self._bytes_before = self._total - left

    def on_bytes(self, done: int) -> None:
        # A failed route may have stopped in the middle of a file, which the next route restarts.
        self._reported = max(self._reported, self._bytes_before + done)
        self._on_progress(self.target.host, self._reported, self._total)

    def finish(self) -> None:
        if self._total:
            self._on_progress(self.target.host, self._total, self._total)


def _size(files: Sequence[StoredFile]) -> int | None:
    sizes = [file.size for file in files if file.size is not None]
    return sum(sizes) if len(sizes) == len(files) else None


class Damaged(HostError):
    """A sent file doesn't match its hash."""


def refuse_damaged(response: Reply, subject: str) -> None:
    failed = response.records("failed")
    if any(item.get("kind") == "hash" for item in failed):
        raise Damaged(f"{subject}: {failed[0].text('reason')}")
    if failed:
        raise HostError(failed[0].text("reason"))
