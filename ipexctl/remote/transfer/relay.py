"""Files of the source read once to the control machine, for targets that can't get them from a host."""

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
    """A temporary store. Files are read when requested, and sent on one by one while the next ones are read."""

    def __init__(
        self, source: StoreLocation, channel: Callable[[], AbstractContextManager[Session]], cancel: Cancel
    ) -> None:
        self._source = source
        self._channel = channel
        self._cancel = cancel
        self._changed = threading.Condition()
        self._errors: dict[str, HostError | None] = {}
        self._arrived: set[str] = set()
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
        """Yield each file with its local path as soon as it has arrived."""
        self._request(blobs)
        for blob in blobs:
            yield blob, self._wait_for(blob)

    def _request(self, blobs: Sequence[StoredFile]) -> None:
        with self._changed:
            new = [blob for blob in blobs if blob.sha256 not in self._errors]
            self._errors.update((blob.sha256, None) for blob in new)
            if new:
                reader = threading.Thread(target=self._read, args=(new,), name="relay", daemon=True)
                self._readers.append(reader)
                reader.start()

    def _wait_for(self, blob: StoredFile) -> Path:
        with self._changed:
            while blob.sha256 not in self._arrived:
                error = self._errors[blob.sha256]
                if error is not None:
                    raise type(error)(error.reason, error.advice, option=error.option) from error
                if self._cancel.thrown:
                    raise Cancelled("stopped")
                self._changed.wait(0.5)
        return Path(self._directory.name, blob.sha256, blob.name)

    def _read(self, blobs: Sequence[StoredFile]) -> None:
        """Read the files; errors are raised in the threads that wait for them."""
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
                    self._errors[blob.sha256] = error
                self._changed.notify_all()

    def _pipe(self, session: Session, blobs: Sequence[StoredFile]) -> None:
        """Pipe the source's frames into the local store, which checks every hash and reports complete files."""
        files = [blob.to_json() for blob in blobs]
        read_end, write_end = os.pipe()
        received: list[dict[str, Any] | HostError] = []

        def take_frames() -> None:
            try:
                with os.fdopen(read_end, "rb", buffering=_BUFFER) as stream:
                    received.append(receive({"store": self._directory.name, "files": files}, stream, self._on_event))
            except AgentError as error:
                received.append(HostError(error.reason, error.fix))

        receiver = threading.Thread(target=take_frames, name="relay-receive", daemon=True)
        receiver.start()
        stderr = b""

        def sink(stream: Stream, data: bytes) -> None:
            nonlocal stderr
            if stream == "stderr":
                stderr = (stderr + data)[-1000:]
                return
            left = memoryview(data)
            while left:
                left = left[os.write(write_end, left) :]

        request = {"store": self._source.store, "files": files}
        command = agent_command("files.store", "send", python=self._source.python)
        try:
            stdin = io.BytesIO(agent_zip("files") + json.dumps(request).encode() + b"\n")
            ended = session.run(command, sink, stdin=stdin, cancel=self._cancel)
        except BrokenPipeError:
            ended = None
        finally:
            os.close(write_end)
            receiver.join()
        self._check(received[0] if received else None, stderr if ended is not None and not ended.ok else b"")

    def _check(self, received: dict[str, Any] | HostError | None, stderr: bytes) -> None:
        name = self._source.host.name
        if stderr:
            raise HostError(f"{name}: {stderr.decode(errors='replace').strip().splitlines()[-1]}")
        if received is None or isinstance(received, HostError):
            raise HostError(
                f"on this machine: {received.reason if received else 'it broke off'}", "another directory: TMPDIR=DIR"
            )
        refuse_damaged(received, f"{name}'s copy is damaged")

    def _on_event(self, event: str, **fields: Any) -> None:
        if event == "got":
            with self._changed:
                self._arrived.add(str(fields["sha256"]))
                self._changed.notify_all()
