"""Local files as one `file_stream`: for a project's tree, a parcel, or a host's store.

Files are opened when the stream reaches them; one that changed since it was listed is an error, never half a file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ipexctl.file_reader import open_regular
from ipexctl.node.common.files import encode_name
from ipexctl.node.files.call_types import StoreFile
from ipexctl.node.files.file_stream import END, SEND_CHUNK, header_line, header_of, read_chunks
from ipexctl.node.files.manifest import ManifestEntry
from ipexctl.remote.outcome import HostError


class NotInStore(HostError):
    """A local file can't be read: not a failure of the target."""


def pack_file(root: bytes, entry: ManifestEntry) -> bytes:
    """A small file with its header. Raises a HostError if it changed since the scan."""
    return b"".join(_stream_file(root, entry))


def stream_entries(root: bytes, parts: Sequence[bytes | ManifestEntry]) -> Iterator[bytes]:
    buffer = bytearray()
    for part in parts:
        for chunk in (part,) if isinstance(part, bytes) else _stream_file(root, part):
            buffer += chunk
            if len(buffer) >= SEND_CHUNK:
                yield bytes(buffer)
                buffer.clear()
    if buffer:
        yield bytes(buffer)


def _stream_file(root: bytes, entry: ManifestEntry) -> Iterator[bytes]:
    path = os.path.join(root, encode_name(entry.path))
    yield header_line({"sha256": entry.content, "size": entry.size})
    try:
        with open(path, "rb", buffering=0, opener=open_regular) as file:
            if os.fstat(file.fileno()).st_size != entry.size:
                raise OSError("it changed since it was scanned")
            yield from read_chunks(file, entry.size)
    except OSError as error:
        raise HostError(f"{os.fsdecode(path)} on this machine: {error.strerror or error}", "run it again") from None


def stream_blobs(files: Iterable[tuple[StoreFile, Path]]) -> Iterator[bytes]:
    """Files for a store, each from its offset. The iterable may block."""
    for blob, path in files:
        try:
            with open(path, "rb", buffering=0, opener=open_regular) as file:
                line, offset, count = header_of(file, blob)
                file.seek(offset)
                yield line
                yield from read_chunks(file, count)
        except OSError as error:
            reason = f"{path} on this machine can't be read: {error.strerror or error}"
            raise NotInStore(reason, "" if error.errno else "run it again") from None
    yield END
