"""One host's store of files by hash, as seen from here: what it has, downloads and is sent. `spread` is for many.

On the host, `node/files/store.py` does the work.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from ipexctl.remote.node_call import call
from ipexctl.remote.outcome import HostError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from ipexctl.hosts.host import Host
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.session import Session


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file by what is in it, and the name it goes by."""

    sha256: str
    name: str
    size: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {"sha256": self.sha256, "name": self.name, "size": self.size}


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """A store on a host, and how the host is used and found by others."""

    host: Host
    python: str
    store: str
    """An absolute path there."""
    address: str | None = None
    """Where the other hosts reach it."""
    word: str | None = None
    """What the first host's ssh config calls it, where there is one."""


@dataclass(frozen=True, slots=True)
class Download:
    """A blob, and where it can be had."""

    blob: StoredFile
    url: str
    headers: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class DownloadResult:
    """What became of downloads: the hashes that are in the store now, and why the others aren't."""

    got: tuple[str, ...]
    failed: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class WebSettings:
    """What a download needs to know beside the address; what isn't said is taken from the host's environment."""

    proxies: Mapping[str, str] | None = None
    cafile: str | None = None
    client_cert: str | None = None
    trusted_hosts: tuple[str, ...] = ()
    silence: float = 30.0
    """Seconds without a byte after which a server counts as gone."""


def _ignore(_: object) -> None:
    """Nobody follows."""


class TransferEvents:
    """What a script says while it works: the bytes that have arrived, and the hash of each file that is whole."""

    def __init__(self, on_bytes: Callable[[int], None], on_got: Callable[[str], None] = _ignore) -> None:
        self.is_ready = False
        """Whether who receives has begun, which is when a way to it is known to be one."""
        self._on_bytes = on_bytes
        self._on_got = on_got

    def __call__(self, event: dict[str, Any]) -> None:
        kind = event.get("event")
        if kind == "progress":
            self._on_bytes(int(event["done"]))
        elif kind == "got":
            self._on_got(str(event["sha256"]))
        elif kind == "ready":
            self.is_ready = True


def missing(
    session: Session,
    place: StoreLocation,
    blobs: Sequence[StoredFile],
    *,
    verify: bool = False,
    timeout: float | None = None,
    cancel: Cancel | None = None,
) -> tuple[StoredFile, ...]:
    """Those the store doesn't have. With `verify` all its bytes are read, and what is damaged is removed."""
    if not blobs:
        return ()
    request = {"store": place.store, "files": [blob.to_json() for blob in blobs], "verify": verify}
    answer = call(session, "files.store", "have", request, python=place.python, timeout=timeout, cancel=cancel)
    there = set(answer["have"])
    return tuple(blob for blob in blobs if blob.sha256 not in there)


def fetch(
    session: Session,
    place: StoreLocation,
    downloads: Sequence[Download],
    *,
    web: WebSettings | None = None,
    on_bytes: Callable[[int], None] = _ignore,
    on_got: Callable[[str], None] = _ignore,
    timeout: float | None = None,
    cancel: Cancel | None = None,
) -> DownloadResult:
    """The host downloads into its store. Addresses and logins travel by stdin; none is in what comes back."""
    if not downloads:
        return DownloadResult((), {})
    web = web or WebSettings()
    request = {
        "store": place.store,
        "files": [{**item.blob.to_json(), "url": item.url, "headers": dict(item.headers or {})} for item in downloads],
        "proxies": dict(web.proxies) if web.proxies is not None else None,
        "cafile": web.cafile,
        "client_cert": web.client_cert,
        "trusted_hosts": list(web.trusted_hosts),
        "timeout": web.silence,
    }
    answer = call(
        session,
        "files.download",
        "fetch",
        request,
        python=place.python,
        on_event=TransferEvents(on_bytes, on_got),
        timeout=timeout,
        cancel=cancel,
    )
    return DownloadResult(tuple(answer["got"]), {item["sha256"]: str(item["reason"]) for item in answer["failed"]})


def push(
    session: Session,
    place: StoreLocation,
    files: Iterable[tuple[StoredFile, Path]],
    *,
    on_bytes: Callable[[int], None] = _ignore,
    timeout: float | None = None,
    cancel: Cancel | None = None,
) -> tuple[str, ...]:
    """Files of this machine into the host's store, in one stream; returns the hashes that have arrived.

    The iterable may wait for a file that is still on its way here: those before it are under way meanwhile. What
    it raises is raised here. A file that isn't what its hash says is refused there, and is a HostError.
    """
    frames = _Frames(iter(files))
    try:
        answer = call(
            session,
            "files.store",
            "receive",
            {"store": place.store},
            python=place.python,
            stdin=cast("BinaryIO", frames),
            on_event=TransferEvents(on_bytes),
            timeout=timeout,
            cancel=cancel,
        )
    except HostError as error:
        if frames.error is not None:
            raise frames.error from error
        raise
    refuse_damaged(answer, "the copy on this machine is damaged")
    return tuple(answer["got"])


def drop(session: Session, place: StoreLocation, blobs: Sequence[StoredFile], *, cancel: Cancel | None = None) -> None:
    """Remove them from the store; those that aren't there are removed already."""
    request = {"store": place.store, "files": [blob.to_json() for blob in blobs]}
    call(session, "files.store", "drop", request, python=place.python, cancel=cancel)


class NotInStore(HostError):
    """What was to be sent can't be had on this machine: no fault of the host it was for."""


class Damaged(HostError):
    """What was sent wasn't what its hash says."""


def refuse_damaged(answer: Mapping[str, Any], whose: str) -> None:
    """Raise where not every file of a transfer was taken in."""
    failed = answer["failed"]
    if any(item.get("kind") == "hash" for item in failed):
        raise Damaged(f"{whose}: {failed[0]['reason']}")
    if failed:
        raise HostError(str(failed[0]["reason"]))


class _Frames(io.RawIOBase):
    """Files as one stream of frames, each opened when it is its turn."""

    def __init__(self, files: Iterator[tuple[StoredFile, Path]]) -> None:
        self._files = files
        self._open: BinaryIO | None = None
        self._left = 0
        self._ended = False
        self.error: Exception | None = None
        """What ended the stream early; the host only sees that it did."""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if self._ended:
            return b""
        try:
            return self._body(size) if self._open is not None else self._header()
        except Exception as error:  # noqa: BLE001  # raised where the push was called
            self._ended = True
            self.error = error
            return b""

    def _header(self) -> bytes:
        found = next(self._files, None)
        if found is None:
            self._ended = True
            return b'{"end": true}\n'
        blob, path = found
        try:
            size = path.stat().st_size
            self._open = path.open("rb", buffering=0)
        except OSError as error:
            raise NotInStore(f"{path} on this machine can't be read: {error.strerror or error}") from None
        self._left = size
        self._close_if_read()
        return json.dumps({**blob.to_json(), "size": size}).encode() + b"\n"

    def _body(self, size: int) -> bytes:
        assert self._open is not None
        data = self._open.read(min(self._left, size if size > 0 else self._left))
        if not data:
            raise NotInStore(f"{self._open.name} changed while it was read", "run it again")
        self._left -= len(data)
        self._close_if_read()
        return data

    def _close_if_read(self) -> None:
        if self._open is not None and not self._left:
            self._open.close()
            self._open = None
