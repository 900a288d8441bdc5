"""Downloads files into the content store with this host's pip settings, and resumes interrupted downloads.

A file enters the store only with the right hash. Partial files stay, and the next try or call continues them; a try
that brought 1 MB counts as progress, not as a failure. The largest file comes first, because it takes longest.
"""

from __future__ import annotations

import contextlib
import time
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import TYPE_CHECKING, BinaryIO, Mapping, TypedDict

from ipexctl.node.common.answer import AgentError, Json, answer
from ipexctl.node.common.http import HttpClient, HttpSettings, explain, is_final
from ipexctl.node.common.node_limits import DOWNLOAD_SILENCE
from ipexctl.node.common.urls import strip_login
from ipexctl.node.files.call_requests import StoreFile
from ipexctl.node.files.file_stream import CHUNK, offset_of
from ipexctl.node.files.store import (
    HashMismatch,
    PartialFile,
    Progress,
    clear,
    emit_or_end,
    end_on_signals,
    total_of,
    unfinished,
)

if TYPE_CHECKING:
    from typing_extensions import NotRequired

_MAX_PARALLEL = 4
_MAX_TRIES = 3
_PAUSE = 0.5
_PROGRESS_BYTES = 1 << 20


class RemoteFile(StoreFile):
    url: str
    headers: Mapping[str, str]


class DownloadRequest(TypedDict):
    store: str
    home: NotRequired[str]
    files: list[RemoteFile]
    settings: HttpSettings


class FileDownload:
    def __init__(self, store: str, file: RemoteFile, client: HttpClient, progress: Progress, home: str = "") -> None:
        self._store, self._home = store, home
        self._file = file
        self._client = client
        self._progress = progress
        self._display_url = strip_login(file["url"])

    def run(self) -> None:
        """Download the file into the store. Raises an AgentError if that is impossible."""
        for is_last in (False, True):
            offset = 0 if is_last else offset_of(self._file, unfinished(self._store))
            with self._begin(offset) as part:
                offset = part.done
                self._progress.add(offset, self._file["name"])
                parts = self._download(part)
                try:
                    part.adopt()
                except HashMismatch:
                    # The parts may come from two versions of the file: retry once.
                    if (parts == 1 and not offset) or is_last:
                        raise
                else:
                    return

    def _begin(self, offset: int) -> PartialFile:
        """Start at the offset, or at 0 if another call, or a file with the same bytes, has just continued it."""
        file: StoreFile = {**self._file, "offset": offset}  # type: ignore[typeddict-unknown-key]
        if offset:
            with contextlib.suppress(AgentError):
                return PartialFile(self._store, file, self._home)
        return PartialFile(self._store, {**file, "offset": 0}, self._home)

    def _download(self, part: PartialFile) -> int:
        tries, parts = 0, 0
        while True:
            before = part.done
            try:
                self._read_part(part)
                return parts + 1
            except (OSError, HTTPException, ValueError) as error:
                if isinstance(error, urllib.error.HTTPError):
                    error.close()
                parts += 1
                tries = 0 if part.done - before >= _PROGRESS_BYTES else tries + 1
                if tries >= _MAX_TRIES or is_final(error):
                    raise AgentError(f"{self._display_url}: {explain(error, DOWNLOAD_SILENCE)}") from None
            time.sleep(_PAUSE * tries)

    def _read_part(self, part: PartialFile) -> None:
        """Read what the file still lacks. Raises a ConnectionError if a retry may succeed."""
        start = part.done
        headers = {"Accept-Encoding": "identity", **self._file["headers"]}
        if start:
            headers["Range"] = f"bytes={start}-"
        with self._client.open(self._file["url"], timeout=DOWNLOAD_SILENCE, headers=headers) as response:
            partial = response.getcode() == 206
            if partial:
                sent = response.headers.get("Content-Range", "")
                if not sent.startswith(f"bytes {start}-"):
                    raise ConnectionError(f"asked for the bytes from {start} on, it sent {sent[:60] or 'others'}")
            skip = 0 if partial else start
            length = response.headers.get("Content-Length") or ""
            buffer = memoryview(bytearray(CHUNK))
            arrived = 0
            while count := response.readinto(buffer):
                arrived += count
                fresh = buffer[min(count, skip) : count]
                skip -= count - len(fresh)
                if part.size is not None and part.done + len(fresh) > part.size:
                    raise AgentError(f"{self._display_url}: it has more than the {part.size} bytes that were expected")
                part.write(fresh)
                self._progress.add(len(fresh), self._file["name"])
        if length.isdigit() and arrived < int(length):
            raise ConnectionError(f"it broke off after {part.done} bytes")
        if part.size is not None and part.done < part.size:
            raise ConnectionError(f"it has {part.done} bytes where {part.size} were expected")


def fetch(request: DownloadRequest, _: BinaryIO) -> Json:
    """Download several files at once; one failure does not stop the others."""
    files = request["files"]
    clear(request["store"])
    client = HttpClient(request["settings"])
    if any(file["url"].lower().startswith("https:") for file in files):
        client.load_certificates()
    progress = Progress(total_of(files))

    def download(file: RemoteFile) -> Json | None:
        try:
            FileDownload(request["store"], file, client, progress, request.get("home", "")).run()
        except AgentError as error:
            kind = "hash" if isinstance(error, HashMismatch) else "other"
            return {"sha256": file["sha256"], "reason": error.reason, "fix": error.fix, "kind": kind}
        emit_or_end("got", sha256=file["sha256"])
        return None

    files = sorted(files, key=lambda file: -(file["size"] or 0))
    with ThreadPoolExecutor(_MAX_PARALLEL) as pool:
        failures = list(pool.map(download, files))
    got = [file["sha256"] for file, failure in zip(files, failures) if failure is None]
    return {"got": got, "failed": [failure for failure in failures if failure is not None]}


def main(action: str) -> int:
    """Answer the agent's call `fetch`, and return its exit code."""
    end_on_signals()
    return answer({"fetch": fetch}[action])
