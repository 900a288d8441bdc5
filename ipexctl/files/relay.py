"""Reads files once to the control machine, for targets that can't get them from a host.

Targets request in their own threads and get local paths as files arrive. The temporary store checks hashes and goes
with the call. An error of the source is raised in all threads that wait for its files.
"""

from __future__ import annotations

import io
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import Future
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from ipexctl.files.store_client import StoredFile, StoreLocation, refuse_damaged
from ipexctl.limits import STEP_SILENCE
from ipexctl.node.common.answer import AgentError, Json
from ipexctl.node.common.frames import StreamName
from ipexctl.node.files.store import StoreFile, StoreRequest, receive
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.fanout import run_in_background
from ipexctl.remote.node_call import agent_and_request, agent_command
from ipexctl.remote.outcome import Cancelled, HostError
from ipexctl.remote.reply import Reply
from ipexctl.remote.session import Session

_BUFFER: Final = 1 << 16
_STDERR_KEPT: Final = 1000


class ArrivingFiles:
    def __init__(self, store: str, cancel: Cancel) -> None:
        self._store = store
        self._cancel = cancel
        self._changed = threading.Condition()
        self._arrived: set[str] = set()
        self._errors: dict[str, HostError] = {}

    def add(self, sha256: str) -> None:
        with self._changed:
            self._arrived.add(sha256)
            self._changed.notify_all()

    def end(self, files: Iterable[StoredFile], error: HostError) -> None:
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
    """A temporary store, filled from the source with the files that targets request."""

    def __init__(
        self, source: StoreLocation, session: Callable[[], AbstractContextManager[Session]], cancel: Cancel
    ) -> None:
        self._source = source
        self._session = session
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
        """Yield each file with its local path as it arrives; each is read from the source once."""
        with self._lock:
            new = [file for file in files if file.sha256 not in self._requested]
            self._requested.update(file.sha256 for file in new)
            if new:
                self._readers.append(run_in_background(lambda: self._relay_files(new), "relay"))
        return self._arriving.files(files)

    def _relay_files(self, files: Sequence[StoredFile]) -> None:
        error = HostError(f"{self._source.host.name} did not send all files")
        try:
            with self._session() as session:
                self._pipe(session, files)
        except HostError as caught:
            error = caught
        except OSError as caught:
            error = HostError(f"on this machine: {caught.strerror or caught}")
        finally:
            self._arriving.end(files, error)

    def _pipe(self, session: Session, files: Sequence[StoredFile]) -> None:
        request: StoreRequest = {"store": self._source.store, "files": [file.to_json() for file in files]}
        read_end, write_end = os.pipe()
        received = run_in_background(lambda: self._receive(request["files"], read_end), "relay-receive")
        stderr = b""

        def sink(stream: StreamName, data: bytes) -> None:
            nonlocal stderr
            if stream == "stderr":
                stderr = (stderr + data)[-_STDERR_KEPT:]
                return
            left = memoryview(data)
            while left:
                left = left[os.write(write_end, left) :]

        command = agent_command("files.store", "send", python=self._source.python)
        stdin = io.BytesIO(agent_and_request("files.store", request))
        name = self._source.host.name
        try:
            ended = session.run(command, sink, stdin=stdin, cancel=self._cancel, silence=STEP_SILENCE)
            if stderr.strip() and not ended.ok:
                raise HostError(f"{name}: {stderr.decode(errors='replace').strip().splitlines()[-1]}")
        except BrokenPipeError:
            pass  # the receiver ended early; its error follows
        finally:
            os.close(write_end)
            futures.wait([received])
        refuse_damaged(Reply(received.result()), f"{name}'s copy is damaged")

    def _receive(self, files: list[StoreFile], read_end: int) -> Json:
        try:
            with os.fdopen(read_end, "rb", buffering=_BUFFER) as stream:
                return receive({"store": self._store, "files": files}, stream, self._on_event)
        except AgentError as error:
            raise HostError(f"on this machine: {error.reason}", "use another directory: TMPDIR=DIR") from None

    def _on_event(self, event: str, **fields: Any) -> None:
        if event == "got":
            self._arriving.add(str(fields["sha256"]))
