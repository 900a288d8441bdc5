"""A rank's output that does not fit into memory, on disk. A full or damaged disk loses chunks without an error, because
the recorder counts each gap in the offsets."""

from __future__ import annotations

import contextlib
import os
import struct
from typing import BinaryIO

from ipexctl.node.common.files import open_private, remove_file
from ipexctl.node.common.frames import HEAD, Chunk, FrameError, decode_chunk, encode_chunk


class SpillFile:
    """The spilled output of one stream. The file is created when the first chunk is written."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._read_at = 0
        self._write_at = 0

    @property
    def is_empty(self) -> bool:
        """True if no chunk is left to be returned by `pop`."""
        return self._write_at <= self._read_at

    def append(self, chunk: Chunk) -> None:
        """Write a chunk. A full disk loses it without an error."""
        frame = encode_chunk(chunk)
        try:
            if self._file is None:
                os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
                self._file = open(self._path, "w+b", buffering=0, opener=open_private)  # noqa: SIM115
            written = os.pwrite(self._file.fileno(), frame, self._write_at)
        except OSError:
            written = 0
        if written == len(frame):
            self._write_at += len(frame)

    def pop(self) -> Chunk | None:
        """Return the oldest chunk; None if there is none, or if it can't be read, which loses all chunks that are
        left."""
        if self._file is None or self.is_empty:
            return None
        number = self._file.fileno()
        chunk: Chunk | None = None
        try:
            size, kind = HEAD.unpack(os.pread(number, HEAD.size, self._read_at))
            payload = os.pread(number, size, self._read_at + HEAD.size)
            if len(payload) != size:
                raise FrameError("the disk returned less than was written")
            chunk = decode_chunk(kind, payload)
        except (OSError, struct.error, FrameError):
            self._read_at = self._write_at
        else:
            self._read_at += HEAD.size + size
        if self._read_at == self._write_at:
            self._read_at = self._write_at = 0
            with contextlib.suppress(OSError):
                os.ftruncate(number, 0)
        return chunk

    def close(self) -> None:
        """Close and remove the file."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # NFS may report only here that the disk is full
                self._file.close()
            self._file = None
            remove_file(self._path)
