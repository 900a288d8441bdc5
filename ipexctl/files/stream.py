"""Local files as one `file_stream`: for a project's tree, a parcel, or a host's store.

Files are opened when the stream reaches them; one that changed since it was listed is an error, never half a file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ipexctl.file_reader import open_regular
from ipexctl.node.common.files import encode_name
from ipexctl.node.files.file_stream import END, SEND_CHUNK, header_line, read_chunks
from ipexctl.node.files.manifest import ManifestEntry
from ipexctl.node.files.store import StoreFile
from ipexctl.remote.outcome import HostError


class NotInStore(HostError):
    """A local file can't be read: not a failure of the target."""


def pack_file(root: bytes, entry: ManifestEntry) -> bytes:
    """A small file with its header. Raises a HostError if it changed since the scan."""
    path = os.path.join(root, encode_name(entry.path))
    try:
        with open(path, "rb", opener=open_regular) as file:
            data = file.read(entry.size + 1)
    except OSError as error:
        raise _read_error(path, error.strerror or str(error)) from None
    if len(data) != entry.size:
        raise _read_error(path, "it changed since it was scanned")
    return _header(entry) + data


def stream_entries(root: bytes, parts: Sequence[bytes | ManifestEntry]) -> Iterator[bytes]:
    buffer = bytearray()
    for part in parts:
        if isinstance(part, bytes):
            buffer += part
        elif part.size <= SEND_CHUNK:
            buffer += pack_file(root, part)
        else:
            yield bytes(buffer) + _header(part)
            buffer.clear()
            yield from _read_entry(root, part)
        while len(buffer) >= SEND_CHUNK:
            yield bytes(buffer[:SEND_CHUNK])
            del buffer[:SEND_CHUNK]
    if buffer:
        yield bytes(buffer)


def stream_blobs(files: Iterable[tuple[StoreFile, Path]]) -> Iterator[bytes]:
    """Files for a store, each from its offset. The iterable may block."""
    for blob, path in files:
        try:
            with open(path, "rb", buffering=0, opener=open_regular) as file:
                size = os.fstat(file.fileno()).st_size
                offset = min(blob.get("offset", 0), size)
                file.seek(offset)
                yield header_line({**blob, "size": size, "offset": offset})
                yield from read_chunks(file, size - offset)
        except OSError as error:
            reason = f"{path} on this machine can't be read: {error.strerror or error}"
            raise NotInStore(reason, "" if error.errno else "run it again") from None
    yield END


def _header(entry: ManifestEntry) -> bytes:
    return header_line({"sha256": entry.content, "size": entry.size})


def _read_error(path: bytes, reason: str) -> HostError:
    return HostError(f"{os.fsdecode(path)} on this machine: {reason}", "run it again")


def _read_entry(root: bytes, entry: ManifestEntry) -> Iterator[bytes]:
    path = os.path.join(root, encode_name(entry.path))
    try:
        with open(path, "rb", buffering=0, opener=open_regular) as file:
            yield from read_chunks(file, entry.size)
    except OSError as error:
        raise _read_error(path, error.strerror or str(error)) from None
