"""The stream in which files travel: for each a header, one line of JSON, then its bytes; `END` after the last.

A header names the file (`sha256`, or its number in a list) and says which bytes follow: `size` of the file, `offset`
(default 0), `length` (default the rest). Small files come in groups: `many` has the hash and size of each. A file that
may be growing has no hash and comes in several parts; the header of the last has its checksum. After a broken transfer
the receiver keeps the bytes under another name and asks for the rest (`WantedFile`); if they match, the sender resumes
after them. The complete file is checked before it gets its name.
"""

from __future__ import annotations

import io
import json
import os
import re
from typing import TYPE_CHECKING, Any, BinaryIO, Iterable, Iterator, Mapping, NamedTuple, Protocol

from ipexctl.node.common.answer import AgentError, Json
from ipexctl.node.common.files import format_size
from ipexctl.node.common.json_records import JsonError, parse_object

if TYPE_CHECKING:
    from ipexctl.node.files.call_requests import StoreFile


SHA256 = re.compile(r"[0-9a-f]{64}")
CHUNK = 1 << 20
SEND_CHUNK = 1 << 18
END = b'{"end": true}\n'
_MAX_LINE = 1 << 14
MOST_TOGETHER = 128
"""Files of one header; it must fit into `_MAX_LINE`."""
_NO_HEADER = "the stream of files has other bytes where the header of a file must be"


def check_hash(text: str) -> str:
    """Return the text if it is a SHA-256 in hex digits. Raises an AgentError if it is not."""
    if not SHA256.fullmatch(text):
        raise AgentError(f"{text[:80]!r} is not a sha256")
    return text


class ByteStream(Protocol):
    def read(self, size: int) -> bytes:
        """Return at most `size` bytes; empty at the end."""

    def readline(self, size: int) -> bytes:
        """Return a line with its newline, or its first `size` bytes; empty at the end."""


class WantedFile(NamedTuple):
    """A file the receiver asks for, and what it already has; a list of three in JSON."""

    name: str | int
    """sha256, or number in the sender's list."""
    have: int = 0
    known: str | None = None
    """Hash of those bytes if the name is no hash."""

    @classmethod
    def of(cls, row: Any) -> WantedFile:
        """Return the request that a row from the receiver makes. Raises an AgentError if the row is not valid."""
        if isinstance(row, list) and len(row) == 3:
            name, have, known = row
            if type(name) in (str, int) and type(have) is int and have >= 0 and (known is None or type(known) is str):
                return cls(name, have, known)
        raise AgentError("a request for a file can't be read", "run it again")


class FilePart(NamedTuple):
    """Position in a file of the bytes after a header."""

    size: int
    offset: int
    length: int

    @classmethod
    def of(cls, header: Mapping[str, Any]) -> FilePart:
        """Return which bytes a header announces. Raises an AgentError if the header is not valid."""
        size, offset = header.get("size"), header.get("offset", 0)
        if type(size) is int and type(offset) is int and 0 <= offset <= size:
            length = header.get("length", size - offset)
            if type(length) is int and 0 <= length <= size - offset:
                return cls(size, offset, length)
        raise AgentError(_NO_HEADER, "run it again")


class ArrivingFile:
    """A file in a stream. Read all its bytes before the next file."""

    def __init__(self, header: Json, stream: ByteStream) -> None:
        self.header, self.sha256 = header, str(header.get("sha256"))
        self.part = FilePart.of(header) if "error" not in header else FilePart(0, 0, 0)
        self._stream = stream

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield the file's bytes, at most `CHUNK` at once. Errors call the file `name`."""
        return read_body(self._stream, self.part.length, name)

    def content(self, otherwise: str) -> bytes:
        """Return all bytes of a small file. Raises an AgentError with the text `otherwise` if the header's hash
        differs."""
        import hashlib  # loads OpenSSL (3 to 15 ms), which senders of files do not need

        data = b"".join(self.chunks(self.sha256))
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise AgentError(otherwise, "run it again")
        return data


def header_line(header: Mapping[str, Any]) -> bytes:
    """Return a header as it is in the stream."""
    return json.dumps(header).encode() + b"\n"


def header_of(file: BinaryIO, named: Mapping[str, Any]) -> tuple[bytes, int, int]:
    """Return the header of an open file, and offset and number of the bytes that follow: those from `named["offset"]`
    on."""
    size = os.fstat(file.fileno()).st_size
    offset = min(named.get("offset", 0), size)
    return header_line({**named, "size": size, "offset": offset}), offset, size - offset


def read_chunks(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield the next `size` bytes of a file in pieces. Raises an OSError if the file ends before."""
    left = size
    while left:
        chunk = file.read(min(SEND_CHUNK, left))
        if not chunk:
            raise OSError("it became shorter while it was read")
        left -= len(chunk)
        yield chunk


def read_files(stream: ByteStream) -> Iterator[ArrivingFile]:
    """Yield each file up to the end of the stream. Read its bytes before asking for the next."""
    while True:
        line = stream.readline(_MAX_LINE)
        if not line.endswith(b"\n"):
            if len(line) < _MAX_LINE:
                raise AgentError("the stream broke off between two files", "run it again")
            raise AgentError(_NO_HEADER, "run it again")
        try:
            header = parse_object(line)
        except JsonError:
            raise AgentError(_NO_HEADER, "run it again") from None
        if header.get("end") is True:
            return
        if "many" in header:
            yield from _read_group(header["many"], stream)
        else:
            yield ArrivingFile(header, stream)


def _read_group(rows: Any, stream: ByteStream) -> Iterator[ArrivingFile]:
    is_list = isinstance(rows, list) and all(isinstance(row, list) for row in rows)
    headers = [dict(zip(("sha256", "size"), row)) for row in rows] if is_list else []
    sizes = [FilePart.of(header).size for header in headers]
    if not sizes or sum(sizes) > CHUNK:  # a stream of empty groups would never end
        raise AgentError(_NO_HEADER, "run it again")
    data = io.BytesIO(b"".join(read_body(stream, sum(sizes), "a group of files")))
    for header in headers:
        yield ArrivingFile(header, data)


def group_header(files: Iterable[tuple[str, int]]) -> bytes:
    """Return the header of a group of small files, whose bytes follow in this order. `files`: hash and size of each."""
    return header_line({"many": list(files)})


def read_body(stream: ByteStream, size: int, name: str) -> Iterator[bytes]:
    """Yield the next `size` bytes of a stream in pieces. Raises an AgentError if it ends before; `name` is what the
    error calls them."""
    left = size
    while left:
        chunk = stream.read(min(CHUNK, left))
        if not chunk:
            raise AgentError(f"the stream broke off {format_size(left)} before the end of {name}", "run it again")
        left -= len(chunk)
        yield chunk
        del chunk  # frees its memory before the next one


def offset_of(file: StoreFile, left: Mapping[str, int]) -> int:
    """Return the offset at which to resume a file. `left`: the store's unfinished files."""
    size = left.get(file["sha256"][:16], 0)
    return size if file["size"] is not None and size <= file["size"] else 0
