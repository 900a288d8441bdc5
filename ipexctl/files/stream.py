"""Yield local files as one stream of bytes (`node/files/file_stream.py`): for a project's tree, a parcel, or a store.

Files are opened when the stream reaches them. One that changed since it was listed raises a NotInStore, so that a host
never keeps half a file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from ipexctl.file_reader import open_regular
from ipexctl.node.common.files import encode_name
from ipexctl.node.files.file_stream import CHUNK, END, MOST_TOGETHER, group_header, header_line, header_of, read_chunks
from ipexctl.node.files.manifest import ManifestEntry
from ipexctl.remote.outcome import HostError

if TYPE_CHECKING:
    from ipexctl.node.files.call_requests import StoreFile


class NotInStore(HostError):
    """Raised if a file on this machine can't be read: no failure of the host that should get it."""


def explain_changed(path: Path | str) -> NotInStore:
    """Return the error for a file that changed while it was sent."""
    return NotInStore(f"{path} on this machine changed while it was sent", "run it again when it is complete")


def stream_entries(root: bytes, entries: Iterable[ManifestEntry]) -> Iterator[bytes]:
    """Yield the stream of files below `root`, small ones in groups. Raises a NotInStore if one has changed."""
    group: list[ManifestEntry] = []
    room = CHUNK
    for entry in entries:
        if entry.size > room or len(group) == MOST_TOGETHER:
            yield from _pack(root, group)
            group, room = [], CHUNK
        if entry.size > CHUNK:
            yield header_line({"sha256": entry.content, "size": entry.size})
            yield from _read_file(root, entry)
        else:
            group.append(entry)
            room -= entry.size
    yield from _pack(root, group)


def _pack(root: bytes, group: Sequence[ManifestEntry]) -> Iterator[bytes]:
    """Yield a group of files as one piece; nothing for an empty group."""
    if group:
        header = group_header((entry.content, entry.size) for entry in group)
        yield b"".join((header, *chain.from_iterable(_read_file(root, entry) for entry in group)))


def _read_file(root: bytes, entry: ManifestEntry) -> Iterator[bytes]:
    """Yield the bytes of a file. Raises a NotInStore at its end if it does not have its hash."""
    path, digest = os.path.join(root, encode_name(entry.path)), hashlib.sha256()
    try:
        with open(path, "rb", buffering=0, opener=open_regular) as file:
            is_changed = os.fstat(file.fileno()).st_size != entry.size
            for chunk in () if is_changed else read_chunks(file, entry.size):
                digest.update(chunk)
                yield chunk
    except OSError as error:
        raise NotInStore(f"{os.fsdecode(path)} on this machine: {error.strerror or error}", "run it again") from None
    if is_changed or digest.hexdigest() != entry.content:
        raise explain_changed(os.fsdecode(path))


def stream_blobs(files: Iterable[tuple[StoreFile, Path]]) -> Iterator[bytes]:
    """Yield the stream of files for a store, each from its `offset` on. The iterable may block.

    Raises a NotInStore for a file that can't be read or has another size; the store checks the hash.
    """
    for blob, path in files:
        try:
            with open(path, "rb", buffering=0, opener=open_regular) as file:
                if blob["size"] not in (None, os.fstat(file.fileno()).st_size):
                    raise explain_changed(path)
                line, offset, count = header_of(file, blob)
                file.seek(offset)
                yield line
                yield from read_chunks(file, count)
        except OSError as error:
            reason = f"{path} on this machine can't be read: {error.strerror or error}"
            raise NotInStore(reason, "" if error.errno else "run it again") from None
    yield END
