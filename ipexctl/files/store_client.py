"""Call the store of files on a host: ask what it has, let it download, upload, read. `node/files/store.py` is its side.

A store is a directory with a file for each hash, `SHA256/NAME`. The host checks each hash and moves complete files into
place; a repeated transfer continues a broken one. URLs and logins go on stdin. Callers tell by the error whose fault it
is: `NotInStore` if a file of this machine can't be read, `DamagedFile` if a file does not have its hash, any other
HostError for the host.
"""

from __future__ import annotations

import io
import os
import queue
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

from ipexctl.files.stream import stream_blobs
from ipexctl.hosts.host import Host
from ipexctl.limits import STEP_SILENCE
from ipexctl.node.common.answer import AgentError, Json
from ipexctl.node.common.frames import StreamName
from ipexctl.node.files.call_requests import HaveRequest, ReceiveRequest, StoreFile, StoreRequest
from ipexctl.node.files.file_stream import offset_of
from ipexctl.node.files.store import receive
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.fanout import run_in_background
from ipexctl.remote.node_call import AgentPlace, agent_and_request, agent_command, call
from ipexctl.remote.outcome import Cancelled, HostError, ignore_event
from ipexctl.remote.reply import Reply
from ipexctl.remote.session import ChunkStream, Readable, Session

if TYPE_CHECKING:
    from ipexctl.node.common.http import HttpSettings
    from ipexctl.node.files.download import DownloadRequest

_BUFFER: Final = 1 << 16
_STDERR_KEPT: Final = 1000
"""Bytes of the end of stderr that are kept for an error."""
_LABELS: Final = {  # action → what the user sees that it does
    "have": "look at its files",
    "receive": "receive files",
    "connect": "receive files from another host",
    "serve": "send files to other hosts",
    "fetch": "download files",
}


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in a store, or one that is to come there. Two with the same hash, name and size are equal."""

    sha256: str
    name: str
    size: int | None = None
    """Bytes; None if unknown."""
    have: int = field(default=0, compare=False)
    """Bytes that the target has, from an earlier transfer."""

    def to_json(self) -> StoreFile:
        """Return the file as the agent is told of it."""
        return {"sha256": self.sha256, "name": self.name, "size": self.size}

    def to_send(self) -> StoreFile:
        """Return the file for a request that sends it, from the byte on that the target lacks."""
        return {**self.to_json(), "offset": self.have}


def total_size(files: Iterable[StoredFile]) -> int | None:
    """Return the bytes of all files; None if a size is unknown."""
    sizes = [file.size for file in files]
    return None if None in sizes else sum(size or 0 for size in sizes)


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """Where a store is, and how a call of the agent there starts."""

    host: Host
    python: str
    """Path of a Python there; empty to look for one."""
    store: str
    """Path of the store."""
    address: str | None = None
    """Address of the host for other hosts; None if they do not reach it."""
    home: str = ""
    """ipexctl's directory there, with a copy of the agent. If empty, each call sends the agent."""
    is_guarded: bool = False
    """True if other accounts may change a parent directory: see `store.enter_store`."""
    is_of_path: bool = False
    """True if the store belongs to a push's PATH, so that a fix names another PATH, not another home."""


@dataclass(frozen=True, slots=True)
class DownloadItem:
    """A file for the host to download."""

    blob: StoredFile
    url: str
    headers: Mapping[str, str] | None = None
    """Such as a login; None for none."""


@dataclass(frozen=True, slots=True)
class DownloadResult:
    got: tuple[str, ...]
    """Hashes of the files that the store has now."""
    failed: Mapping[str, str]
    """Hash → why the file was not downloaded."""


class StoreClient(NamedTuple):
    """Calls to one store, over one session."""

    location: StoreLocation
    session: Session
    timeout: float | None = None
    """Seconds for each call; None for no limit."""

    def call(
        self,
        command: str,
        action: str,
        request: Mapping[str, Any],
        *,
        stdin: Readable | None = None,
        on_event: Callable[[Reply], None] = ignore_event,
    ) -> Reply:
        """Call a command of the agent with what it must know about this store."""
        at = self.location
        options = {"home": at.home, "guarded": at.is_guarded, "is_of_path": at.is_of_path}
        return call(
            self.session,
            command,
            action,
            {**request, **{name: value for name, value in options.items() if value}},
            AgentPlace(at.python, at.home),
            cached=bool(at.home),
            label=_LABELS.get(action, ""),
            stdin=stdin,
            on_event=on_event,
            timeout=self.timeout,
        )

    def missing(self, blobs: Sequence[StoredFile], *, verify: bool = False) -> tuple[StoredFile, ...]:
        """Return those of the files that the store lacks, with the bytes that it has of each.

        `verify`: True to read all bytes of the store first, and to remove damaged files.
        """
        if not blobs:
            return ()
        request: HaveRequest = {
            "store": self.location.store,
            "files": [blob.to_json() for blob in blobs],
            "verify": verify,
        }
        reply = self.call("files.store", "have", request)
        present, left = set(reply.texts("have")), reply.record("unfinished")
        unfinished = {prefix: left.integer(prefix) for prefix in left}
        return tuple(
            replace(blob, have=offset_of(blob.to_json(), unfinished)) for blob in blobs if blob.sha256 not in present
        )

    def fetch(
        self,
        downloads: Sequence[DownloadItem],
        *,
        settings: HttpSettings | None = None,
        on_bytes: Callable[[int], None] = ignore_event,
        on_got: Callable[[str], None] = ignore_event,
    ) -> DownloadResult:
        """Let the host download files.

        `settings`: certificates and proxy; None for none. `on_bytes` is called with the bytes received so far, `on_got`
        with the hash of each complete file.
        """
        if not downloads:
            return DownloadResult((), {})
        request: DownloadRequest = {
            "store": self.location.store,
            "files": [{**item.blob.to_json(), "url": item.url, "headers": item.headers or {}} for item in downloads],
            "settings": settings or {},
        }
        reply = self.call("files.download", "fetch", request, on_event=report_events(on_bytes, on_got))
        failed = {item.text("sha256"): item.text("reason") for item in reply.records("failed")}
        return DownloadResult(reply.texts("got"), failed)

    def push(
        self,
        files: Iterable[tuple[StoredFile, Path]],
        *,
        expected: Sequence[StoredFile] | None = None,
        on_lacking: Callable[[Reply], object] | None = None,
        on_bytes: Callable[[int], None] = ignore_event,
    ) -> tuple[str, ...]:
        """Upload files in one stream, and return the hashes that arrived.

        The iterable may block until a file is available, while earlier ones are sent. Its errors are raised here. The
        host first checks that it has room for the `expected` files. `on_lacking` gets the host's answer what it lacks
        of them, before the iterable is read; without it, all files are sent. Raises a DamagedFile if a file does not
        have its hash, and a LostClaim if it must be asked again what it lacks.
        """
        answers: queue.SimpleQueue[bool] = queue.SimpleQueue()

        def blobs() -> Iterator[tuple[StoreFile, Path]]:
            if on_lacking is None or answers.get():
                yield from ((blob.to_send(), path) for blob, path in files)

        report = report_events(on_bytes)

        def on_event(event: Reply) -> None:
            if event.get("event") == "lacking" and on_lacking is not None:
                on_lacking(event)
                answers.put(True)
            report(event)

        request: ReceiveRequest = {
            "store": self.location.store,
            "files": None if expected is None else [blob.to_send() for blob in expected],
            "asks": on_lacking is not None,
        }
        stream = ChunkStream(stream_blobs(blobs()))
        try:
            reply = self.call("files.store", "receive", request, stdin=stream, on_event=on_event)
        except HostError as error:
            if stream.error is not None:
                raise stream.error from error
            raise
        finally:
            answers.put(False)  # so that the stream's reader ends if the call ends without an answer
        refuse_damaged(reply, "the copy on this machine is damaged")
        return reply.texts("got")

    def read_all(self, files: Sequence[StoredFile], receive_files: Callable[[StoreRequest, BinaryIO], Json]) -> Reply:
        """Let the host send files, and return what `receive_files` returns, which reads the stream in another thread.

        Raises the error of `receive_files`, and a HostError if the host's program fails.
        """
        request: StoreRequest = {"store": self.location.store, "files": [file.to_json() for file in files]}
        read_end, write_end = os.pipe()

        def receive_stream() -> Json:
            with os.fdopen(read_end, "rb", buffering=_BUFFER) as stream:
                return receive_files(request, stream)

        received = run_in_background(receive_stream, "receive")
        stderr = b""

        def sink(stream: StreamName, data: bytes) -> None:
            nonlocal stderr
            if stream == "stderr":
                stderr = (stderr + data)[-_STDERR_KEPT:]
                return
            left = memoryview(data)
            while left:
                left = left[os.write(write_end, left) :]

        command = agent_command("files.store", "send", AgentPlace(self.location.python))
        stdin = io.BytesIO(agent_and_request("files.store", request))
        try:
            ended = self.session.run(command, sink, stdin=stdin, silence=STEP_SILENCE)
            if stderr.strip() and not ended.ok:
                name = self.location.host.name
                raise HostError(f"{name}: {stderr.decode(errors='replace').strip().splitlines()[-1]}")
        except BrokenPipeError:
            pass  # the receiver ended early; its error follows
        finally:
            os.close(write_end)
            futures.wait([received])
        return Reply(received.result())


def report_events(
    on_bytes: Callable[[int], None], on_got: Callable[[str], None] = ignore_event
) -> Callable[[Reply], None]:
    """Return a handler of events that reports received bytes and the hashes of complete files."""

    def on_event(event: Reply) -> None:
        kind = event.get("event")
        if kind == "progress":
            on_bytes(event.integer("done"))
        elif kind == "got":
            on_got(event.text("sha256"))

    return on_event


class DamagedFile(HostError):
    """Raised if a file that was sent, `sha256`, does not have that hash."""

    sha256 = ""


class LostClaim(HostError):
    """Raised if another process took over what an earlier transfer had left: the host must be asked again."""


def refuse_damaged(reply: Reply, subject: str) -> None:
    """Raise the error of a file that failed: a DamagedFile before a LostClaim or HostError. Nothing if none failed.

    `subject`: whose fault a wrong hash is, such as `the copy on this machine is damaged`.
    """
    failed = reply.records("failed")
    if wrong := [item for item in failed if item.get("kind") == "hash"]:
        error = DamagedFile(f"{subject}: {wrong[0].text('reason')}")
        error.sha256 = wrong[0].text("sha256")
        raise error
    if failed:
        kind = LostClaim if all(item.get("kind") == "claim" for item in failed) else HostError
        raise kind(failed[0].text("reason"), "run it again")


class ArrivingFiles:
    """Files that come into a store of this machine, for the threads that wait for them."""

    def __init__(self, store: str, cancel: Cancel) -> None:
        self._store = store
        self._cancel = cancel
        self._changed = threading.Condition()
        self._arrived: set[str] = set()
        self._errors: dict[str, HostError] = {}

    def add(self, sha256: str) -> None:
        """Note that a file is complete."""
        with self._changed:
            self._arrived.add(sha256)
            self._changed.notify_all()

    def end(self, files: Iterable[StoredFile], error: HostError) -> None:
        """Note that nothing more of these files comes. Threads that still wait for one raise the error."""
        with self._changed:
            self._errors.update((file.sha256, error) for file in files)
            self._changed.notify_all()

    def files(self, files: Sequence[StoredFile]) -> Iterator[tuple[StoredFile, Path]]:
        """Yield each file with its local path as soon as it arrives."""
        left = {file.sha256: file for file in files}
        while left:
            for sha256 in self._wait(left):
                file = left.pop(sha256)
                yield file, Path(self._store, sha256, file.name)

    def _wait(self, wanted: Iterable[str]) -> list[str]:
        """Wait until at least one of these hashes has arrived, and return those that have."""
        with self._changed:
            while not (arrived := [sha256 for sha256 in wanted if sha256 in self._arrived]):
                if self._cancel.thrown:
                    raise Cancelled("stopped")
                error = next((self._errors[sha256] for sha256 in wanted if sha256 in self._errors), None)
                if error is not None:
                    raise type(error)(error.reason, error.advice, option=error.option) from error
                self._changed.wait(0.5)
            return arrived


class Relay:
    """A temporary store on this machine, filled from a host's store with what targets request, each file once.

    Targets request in their own threads. An error of the host is raised in all threads that wait for its files.
    """

    def __init__(self, source: Callable[[], AbstractContextManager[StoreClient]], cancel: Cancel) -> None:
        self._source = source
        self._cancel = cancel
        self._lock = threading.Lock()
        self._requested: set[str] = set()
        self._readers: list[Future[None]] = []

    def __enter__(self) -> Relay:
        try:
            self._directory = tempfile.TemporaryDirectory(prefix="ipexctl-")
        except OSError as error:
            raise HostError(
                f"no temporary directory can be made on this machine: {error.strerror or error}",
                "name a directory with free space: TMPDIR=DIR",
            ) from None
        self._store = f"{self._directory.name}/store"  # a store closes its parent directory to others
        self._arriving = ArrivingFiles(self._store, self._cancel)
        return self

    def __exit__(self, *_: object) -> None:
        futures.wait(self._readers)
        self._directory.cleanup()

    def files(self, files: Sequence[StoredFile]) -> Iterator[tuple[StoredFile, Path]]:
        """Yield each file with its local path as it arrives."""
        with self._lock:
            new = [file for file in files if file.sha256 not in self._requested]
            self._requested.update(file.sha256 for file in new)
            if new:
                self._readers.append(run_in_background(lambda: self._read(new), "relay"))
        return self._arriving.files(files)

    def _read(self, files: Sequence[StoredFile]) -> None:
        """Read files from the host; at the end, threads that still wait for one get the error. Runs in a thread."""
        error = HostError("the source is lost")
        try:
            with self._source() as source:
                name = source.location.host.name
                error = HostError(f"{name} did not send all files")
                refuse_damaged(source.read_all(files, self._receive), f"{name}'s copy is damaged")
        except HostError as caught:
            error = caught
        except OSError as caught:
            error = HostError(f"on this machine: {caught.strerror or caught}")
        finally:
            self._arriving.end(files, error)

    def _receive(self, request: StoreRequest, stream: BinaryIO) -> Json:
        try:
            return receive({"store": self._store, "files": request["files"]}, stream, self._on_event)
        except AgentError as error:
            raise HostError(f"on this machine: {error.reason}", "use another directory: TMPDIR=DIR") from None

    def _on_event(self, event: str, **fields: Any) -> None:
        if event == "got":
            self._arriving.add(str(fields["sha256"]))
