"""The stream by which files travel: a header for each, one line of JSON, then its bytes; `END` after the last.

Every way of a file has it: a project's contents to a tree, blobs between stores, results to the control machine. A
header says which file (`sha256`, or the number that a list gave it) and where its bytes are: `size` of the file,
`offset` (else 0), `length` (else all that is left). A file whose hash nobody knows, as it may grow, comes in several
parts, and the header of the last has its checksum.

The rule for a transfer that broke off is one, too: the receiver keeps what has arrived under another name, and names it
when it asks again (`Wanted`); the sender begins behind it, if its own file begins with the same bytes, else with the
first; the whole is checked before it gets its name.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, BinaryIO, Iterator, Mapping, NamedTuple, Protocol

from ipexctl.node.common.answer import AgentError, Json
from ipexctl.node.common.files import format_size
from ipexctl.node.common.json_parser import JsonError, parse_object

if TYPE_CHECKING:
    from ipexctl.node.files.store import StoreFile

CHUNK = 1 << 20
SEND_CHUNK = 1 << 18
END = b'{"end": true}\n'
_MAX_LINE = 1 << 14
_NO_HEADER = "the stream of files has other bytes where the header of a file must be"


class ByteStream(Protocol):
    def read(self, size: int) -> bytes: ...

    def readline(self, size: int) -> bytes: ...


class Wanted(NamedTuple):
    """A file that a receiver asks for, and what it has of it; a list of three in JSON."""

    name: str | int
    """Its sha256, or its number in the sender's list."""
    have: int = 0
    """The bytes that have arrived."""
    known: str | None = None
    """Their hash, where the name does not say what they are."""

    @classmethod
    def of(cls, row: Any) -> Wanted:
        """Raises an AgentError for anything else."""
        if isinstance(row, list) and len(row) == 3:
            name, have, known = row
            if type(name) in (str, int) and type(have) is int and have >= 0 and (known is None or type(known) is str):
                return cls(name, have, known)
        raise AgentError("a request for a file can't be read", "run it again")


class FilePart(NamedTuple):
    """Where the bytes that follow a header are in their file."""

    size: int
    """Of the file."""
    offset: int
    length: int

    @classmethod
    def of(cls, header: Mapping[str, Any]) -> FilePart:
        """Raises an AgentError if the bytes are not in the file."""
        size, offset = header.get("size"), header.get("offset", 0)
        if type(size) is int and type(offset) is int and 0 <= offset <= size:
            length = header.get("length", size - offset)
            if type(length) is int and 0 <= length <= size - offset:
                return cls(size, offset, length)
        raise AgentError(_NO_HEADER, "run it again")


class ArrivingFile:
    """A file in a stream. Its bytes are read before the next one is."""

    def __init__(self, header: Json, stream: ByteStream) -> None:
        self.header, self.sha256 = header, str(header.get("sha256"))
        self.part = FilePart.of(header) if "error" not in header else FilePart(0, 0, 0)
        self._stream = stream

    def chunks(self, name: str) -> Iterator[bytes]:
        """At most `CHUNK` at once; an error names the file so."""
        return read_body(self._stream, self.part.length, name)

    def content(self, otherwise: str) -> bytes:
        """All of a small file. Raises an AgentError with that reason if it has not the hash of its header."""
        import hashlib  # it loads OpenSSL (3 to 15 ms), which senders of files do not need

        data = b"".join(self.chunks(self.sha256))
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise AgentError(otherwise, "run it again")
        return data


def header_line(header: Mapping[str, Any]) -> bytes:
    return json.dumps(header).encode() + b"\n"


def read_chunks(file: BinaryIO, size: int) -> Iterator[bytes]:
    """The bytes that follow a header with that size. Raises an OSError if the file is shorter."""
    left = size
    while left:
        chunk = file.read(min(SEND_CHUNK, left))
        if not chunk:
            raise OSError("it became shorter while it was read")
        left -= len(chunk)
        yield chunk


def read_files(stream: ByteStream) -> Iterator[ArrivingFile]:
    """Each file, up to the end. The caller reads its bytes before it asks for the next."""
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
        yield ArrivingFile(header, stream)


def read_body(stream: ByteStream, size: int, name: str) -> Iterator[bytes]:
    """So many bytes, in chunks of at most `CHUNK`."""
    left = size
    while left:
        chunk = stream.read(min(CHUNK, left))
        if not chunk:
            raise AgentError(f"the stream broke off {format_size(left)} before the end of {name}", "run it again")
        left -= len(chunk)
        yield chunk
        del chunk  # the next one takes its memory


def offset_of(file: StoreFile, left: Mapping[str, int]) -> int:
    """Where the sender of a file to a store begins; `left`: what the store has of unfinished files."""
    size = left.get(file["sha256"][:16], 0)
    return size if file["size"] is not None and size <= file["size"] else 0
