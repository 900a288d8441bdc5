"""Downloads into the content store, as pip on this host would make them; one that breaks off is resumed."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import urllib.error
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, BinaryIO

from ipexctl.node.common.answer import AgentError, answer
from ipexctl.node.common.http import HttpClient, HttpSettings, explain, is_final, without_login
from ipexctl.node.files.store import (
    CHUNK,
    HashMismatch,
    PartialFile,
    Progress,
    clear,
    emit_or_end,
    end_on_signals,
    total_of,
)

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json

_AT_ONCE = 4
_TRIES = 3
_PAUSE = 0.5
_WORTH = 1 << 20
"""Bytes that make a try count as none, however it ended."""
_TIMEOUT = 30.0


class _BrokenOff(Exception):
    """A try failed; another may not."""


class _Refused(Exception):
    """There is no use in trying again."""


class Download:
    """One file on its way from an index into the store."""

    def __init__(self, store: str, item: Json, client: HttpClient, timeout: float, progress: Progress) -> None:
        self._store = store
        self._item = item
        self._client = client
        self._timeout = timeout
        self._progress = progress
        self._shown = without_login(item["url"])

    def run(self) -> None:
        """Raises an AgentError where the file can't be had."""
        mismatch = self._try_all()
        if mismatch is None:
            return
        # The pieces may have been of two versions of the file: once more, in one piece.
        again = self._try_all()
        if again is not None:
            raise again

    def _try_all(self) -> HashMismatch | None:
        """None, or a wrong hash that a second go might mend."""
        with PartialFile(self._store, self._item) as part:
            pieces = self._fill(part)
            try:
                part.adopt()
            except HashMismatch as mismatch:
                if pieces > 1:
                    return mismatch
                raise
        return None

    def _fill(self, part: PartialFile) -> int:
        """Until the part is whole; returns how many pieces that took."""
        tries, pieces = 0, 0
        while True:
            before = part.done
            try:
                self._read_piece(part)
                return pieces + 1
            except _Refused as error:
                raise AgentError(f"{self._shown}: {error}") from None
            except (_BrokenOff, OSError, HTTPException, ValueError) as error:
                if isinstance(error, urllib.error.HTTPError):
                    error.close()
                pieces += 1
                tries = 0 if part.done - before >= _WORTH else tries + 1
                if tries >= _TRIES or is_final(error):
                    raise AgentError(f"{self._shown}: {explain(error, self._timeout)}") from None
            time.sleep(_PAUSE * tries)

    def _read_piece(self, part: PartialFile) -> None:
        start = part.done
        headers = {"Accept-Encoding": "identity", **(self._item.get("headers") or {})}
        if start:
            headers["Range"] = f"bytes={start}-"
        with self._client.open(self._item["url"], timeout=self._timeout, headers=headers) as response:
            partial = response.getcode() == 206
            if partial:
                _check_range(response, start)
            skip = 0 if partial else start
            expected = _length(response)
            buffer = memoryview(bytearray(CHUNK))
            arrived = 0
            while True:
                count = response.readinto(buffer) if hasattr(response, "readinto") else 0
                if not count:
                    break
                arrived += count
                fresh = buffer[min(count, skip) : count]
                skip -= count - len(fresh)
                self._write(part, fresh)
        if expected is not None and arrived < expected:
            raise _BrokenOff(f"it broke off after {part.done} bytes")
        if part.size is not None and part.done < part.size:
            raise _BrokenOff(f"it has {part.done} bytes where {part.size} were expected")

    def _write(self, part: PartialFile, fresh: memoryview) -> None:
        if part.size is not None and part.done + len(fresh) > part.size:
            raise _Refused(f"it has more than the {part.size} bytes that were expected")
        part.write(fresh)
        self._progress.add(len(fresh), self._item["name"])


def _check_range(response: Any, start: int) -> None:
    sent = response.headers.get("Content-Range", "")
    if not sent.startswith(f"bytes {start}-"):
        raise _BrokenOff(f"asked for the bytes from {start} on, it sent {sent[:60] or 'others'}")


def _length(response: Any) -> int | None:
    length = response.headers.get("Content-Length")
    return int(length) if length and length.isdigit() else None


def settings_of(request: Json) -> HttpSettings:
    return HttpSettings(
        request.get("proxies") or {},
        request.get("cafile") or "",
        request.get("client_cert") or "",
        tuple(request.get("trusted_hosts") or ()),
    )


def fetch(request: Json, _: BinaryIO) -> Json:
    """Several files at once; one that can't be had doesn't keep the others."""
    files: list[Json] = request["files"]
    timeout: float = request.get("timeout") or _TIMEOUT
    clear(request["store"])
    client = HttpClient(settings_of(request), allow_plain_redirects=True)  # each file's hash is known
    if any(item["url"].lower().startswith("https:") for item in files):
        client.load_certificates()
    progress = Progress(total_of(files))
    waiting: queue.SimpleQueue[Json] = queue.SimpleQueue()
    # The largest first: it takes longest, and the others are loaded beside it.
    for item in sorted(files, key=lambda item: -(item.get("size") or 0)):
        waiting.put(item)
    got: list[str] = []
    failed: list[dict[str, str]] = []
    broken: list[BaseException] = []

    def work() -> None:
        with contextlib.suppress(queue.Empty):
            while not broken:
                item = waiting.get_nowait()
                try:
                    Download(request["store"], item, client, timeout, progress).run()
                except AgentError as error:
                    kind = "hash" if isinstance(error, HashMismatch) else "other"
                    failed.append({"sha256": item["sha256"], "reason": error.reason, "fix": error.fix, "kind": kind})
                except BaseException as error:  # noqa: BLE001  # carried to the main thread and raised there
                    broken.append(error)
                else:
                    got.append(item["sha256"])
                    emit_or_end("got", sha256=item["sha256"])

    workers = [threading.Thread(target=work, daemon=True) for _ in range(min(_AT_ONCE, len(files)))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if broken:
        raise broken[0]
    return {"got": got, "failed": failed}


def main(action: str) -> int:
    end_on_signals()
    return answer({"fetch": fetch}[action])
