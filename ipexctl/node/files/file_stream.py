"""A stream of files: a header for each, one line of JSON with sha256 and size, then its bytes; `END` after the last."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, BinaryIO, Iterator, Mapping

from ipexctl.node.common.answer import AgentError, Json
from ipexctl.node.common.files import format_size
from ipexctl.node.common.json_parser import JsonError, parse_object

if TYPE_CHECKING:
    from ipexctl.node.files.tree_upload import UploadStream

CHUNK = 1 << 20
SEND_CHUNK = 1 << 18
END = b'{"end": true}\n'
_MAX_LINE = 1 << 14
_NO_HEADER = "the stream of files has other bytes where the header of a file must be"


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


def read_headers(stream: BinaryIO | UploadStream) -> Iterator[Json]:
    """The header of each file, up to the end. The caller reads the file's bytes before it asks for the next."""
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
        yield header


def read_body(stream: BinaryIO | UploadStream, size: int, name: str) -> Iterator[bytes]:
    """The bytes of a file, in chunks of at most `CHUNK`."""
    left = size
    while left:
        chunk = stream.read(min(CHUNK, left))
        if not chunk:
            raise AgentError(f"the stream broke off {format_size(left)} before the end of {name}", "run it again")
        left -= len(chunk)
        yield chunk
        del chunk  # the next one takes its memory
