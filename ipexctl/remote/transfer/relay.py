"""A host's files on this machine, read from there once, for those that can't get them from it themselves."""

from __future__ import annotations

import io
import json
import os
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ipexctl.node.common.answer import AgentError
from ipexctl.node.files.store import receive
from ipexctl.remote.node_call import agent_command, agent_zip
from ipexctl.remote.outcome import Cancelled, HostError
from ipexctl.remote.transfer.store_client import refuse_damaged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.session import Session, Stream
    from ipexctl.remote.transfer.store_client import StoredFile, StoreLocation

_BUFFER: Final = 1 << 16


class Relay:
    """Files come as they are asked for, and can be handed on one by one while the next are on their way."""

    def __init__(
        self, source: StoreLocation, channel: Callable[[], AbstractContextManager[Session]], cancel: Cancel
    ) -> None:
        self._source = source
        self._channel = channel
        self._cancel = cancel
        self._changed = threading.Condition()
        self._asked: dict[str, HostError | None] = {}
        self._here: set[str] = set()
        self._readers: list[threading.Thread] = []

    def __enter__(self) -> Relay:
        try:
            self._directory = tempfile.TemporaryDirectory(prefix="ipexctl-")
        except OSError as error:
            raise HostError(
                f"no directory for it here: {error.strerror or error}", "name one with room: TMPDIR=DIR"
            ) from None
        return self

    def __exit__(self, *_: object) -> None:
        for reader in self._readers:
            reader.join()
        self._directory.cleanup()

    def files(self, blobs: Sequence[StoredFile]) -> Iterator[tuple[StoredFile, Path]]:
        """Each with where it lies here, as soon as it does."""
        self._ask(blobs)
        for blob in blobs:
            yield blob, self._wait(blob)

    def _ask(self, blobs: Sequence[StoredFile]) -> None:
        with self._changed:
            new = [blob for blob in blobs if blob.sha256 not in self._asked]
            self._asked.update((blob.sha256, None) for blob in new)
            if new:
                reader = threading.Thread(target=self._read, args=(new,), name="spool", daemon=True)
                self._readers.append(reader)
                reader.start()

    def _wait(self, blob: StoredFile) -> Path:
        with self._changed:
            while blob.sha256 not in self._here:
                error = self._asked[blob.sha256]
                if error is not None:
                    raise type(error)(error.reason, error.advice, option=error.option) from error
                if self._cancel.thrown:
                    raise Cancelled("stopped")
                self._changed.wait(0.5)
        return Path(self._directory.name, blob.sha256, blob.name)

    def _read(self, blobs: Sequence[StoredFile]) -> None:
        """Raises nothing: what goes wrong is for those who wait."""
        error = HostError("reading it broke off")
        try:
            with self._channel() as session:
                self._pipe(session, blobs)
        except HostError as caught:
            error = caught
        except OSError as caught:
            error = HostError(f"no pipe on this machine: {caught.strerror or caught}")
        finally:
            with self._changed:
                for blob in blobs:
                    self._asked[blob.sha256] = error
                self._changed.notify_all()

    def _pipe(self, session: Session, blobs: Sequence[StoredFile]) -> None:
        """The source's frames into a store on this machine, which checks every hash and reports what is whole."""
        files = [blob.to_json() for blob in blobs]
        outlet, inlet = os.pipe()
        received: list[dict[str, Any] | HostError] = []

        def take() -> None:
            try:
                with os.fdopen(outlet, "rb", buffering=_BUFFER) as stream:
                    received.append(receive({"store": self._directory.name, "files": files}, stream, self._on_event))
            except AgentError as error:
                received.append(HostError(error.reason, error.fix))

        taker = threading.Thread(target=take, name="spool-take", daemon=True)
        taker.start()
        complaint = b""

        def sink(stream: Stream, data: bytes) -> None:
            nonlocal complaint
            if stream == "stderr":
                complaint = (complaint + data)[-1000:]
                return
            left = memoryview(data)
            while left:
                left = left[os.write(inlet, left) :]

        request = {"store": self._source.store, "files": files}
        command = agent_command("files.store", "send", python=self._source.python)
        try:
            stdin = io.BytesIO(agent_zip("files") + json.dumps(request).encode() + b"\n")
            ended = session.run(command, sink, stdin=stdin, cancel=self._cancel)
        except BrokenPipeError:
            ended = None
        finally:
            os.close(inlet)
            taker.join()
        self._check(received[0] if received else None, complaint if ended is not None and not ended.ok else b"")

    def _check(self, received: dict[str, Any] | HostError | None, complaint: bytes) -> None:
        name = self._source.host.name
        if complaint:
            raise HostError(f"{name}: {complaint.decode(errors='replace').strip().splitlines()[-1]}")
        if received is None or isinstance(received, HostError):
            raise HostError(
                f"on this machine: {received.reason if received else 'it broke off'}", "another directory: TMPDIR=DIR"
            )
        refuse_damaged(received, f"{name}'s copy is damaged")

    def _on_event(self, event: str, **fields: Any) -> None:
        if event == "got":
            with self._changed:
                self._here.add(str(fields["sha256"]))
                self._changed.notify_all()
