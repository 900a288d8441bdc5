"""Frames: encoding of rank output and messages, from rank to supervisor and from node0 to followers.

A frame is the payload's length (4 bytes, big-endian), its kind (1 byte), and the payload:

    J     a JSON object
    O, E  a chunk of stdout or stderr: rank (4 bytes), offset in the stream (8 bytes), the bytes as printed
    N     a note: a line that ipexctl wrote into a rank's output (`node/run/record/output_notes.py`), as JSON
    W     a file of windows: rank (4 bytes), the file's suffix (8 bytes, zero-padded), the content

Frames come from other hosts, so their size is limited and every payload is checked.
"""

from __future__ import annotations

import contextlib
import json
import struct
import zlib
from typing import Callable, Iterator, Literal, Mapping, NamedTuple, Tuple, Union

from ipexctl.node.common.answer import Json, emit, write_bytes
from ipexctl.node.common.json_records import JsonError, parse_json

MAX_FRAME = 2 << 20
HEAD = struct.Struct("!Ic")
_CHUNK_HEAD = struct.Struct("!IQ")
_WINDOWS_HEAD = struct.Struct("!I8s")
_INFLATED = 1 << 20
"""Most bytes decompressed at once, because a small frame may decompress to a huge one."""
_COMPRESSED_TOGETHER = 1 << 18
Frame = Tuple[bytes, bytes]
StreamName = Literal["stdout", "stderr"]
SUFFIXES: dict[StreamName, str] = {"stdout": "out", "stderr": "err"}
"""StreamName → suffix of the stream's file, and name in messages."""
NOTE, WINDOWS = b"N", b"W"
_KINDS: dict[StreamName, bytes] = {"stdout": b"O", "stderr": b"E"}
_STREAMS: dict[bytes, StreamName] = {b"O": "stdout", b"E": "stderr"}


class FrameError(ValueError):
    """Raised if received bytes are not frames; the text is the reason."""


class Chunk(NamedTuple):
    rank: int
    stream: StreamName
    data: bytes
    offset: int = 0
    """Position of the first byte in the stream."""
    at: float | None = None
    """When node0 received the chunk, in seconds since the epoch; None if unknown, because frames do not carry it."""

    @property
    def end(self) -> int:
        """Position in the stream after the last byte."""
        return self.offset + len(self.data)


class Note(NamedTuple):
    """A line that ipexctl wrote into a rank's output. The first fields are as in `Chunk`."""

    rank: int
    stream: StreamName
    data: bytes
    offset: int
    at: float | None
    kind: str
    fields: Mapping[str, object]
    """The line's content as values; `output_notes.py` has the fields of each kind."""

    @property
    def end(self) -> int:
        """Position in the file of output after the note's line."""
        return self.offset + len(self.data)


OutputPart = Union[Chunk, Note]


def last_state(line: bytes) -> bytes:
    """Return what a terminal finally shows of a line with carriage returns, such as a progress bar."""
    if b"\r" not in line:
        return line
    states = line.rstrip(b"\r")
    return states[states.rfind(b"\r") + 1 :]


def encode_json(document: Json) -> bytes:
    """Return a JSON object as a frame."""
    payload = json.dumps(document).encode()
    return HEAD.pack(len(payload), b"J") + payload


def decode_json(payload: bytes) -> Json:
    """Return the JSON object of a frame's payload. Raises a FrameError if it is none."""
    try:
        document = parse_json(payload)
    except JsonError:
        raise FrameError("a message is not JSON") from None
    if not isinstance(document, dict):
        raise FrameError("a message is not a JSON object")
    return document


def encode_chunk(chunk: Chunk) -> bytes:
    """Return a chunk of output as a frame. Its time is not carried."""
    head = HEAD.pack(_CHUNK_HEAD.size + len(chunk.data), _KINDS[chunk.stream])
    return head + _CHUNK_HEAD.pack(chunk.rank, chunk.offset) + chunk.data


def decode_chunk(kind: bytes, payload: bytes) -> Chunk:
    """Return the chunk of output in a frame. Raises a FrameError if the frame is of another kind, or too short."""
    stream = _STREAMS.get(kind)
    if stream is None or len(payload) < _CHUNK_HEAD.size:
        raise FrameError("a frame of an unknown kind")
    rank, offset = _CHUNK_HEAD.unpack_from(payload)
    return Chunk(rank, stream, payload[_CHUNK_HEAD.size :], offset)


def encode_note(note: Note) -> bytes:
    """Return a note as a frame; without its head, that is also an entry of `output.notes`. Its time is not carried."""
    payload = json.dumps(
        {
            "rank": note.rank,
            "stream": note.stream,
            "offset": note.offset,
            "line": note.data.decode(errors="replace"),
            "kind": note.kind,
            "fields": note.fields,
        }
    ).encode()
    return HEAD.pack(len(payload), NOTE) + payload


def decode_note(payload: bytes) -> Note:
    """Return the note of a frame's payload, or of an entry of `output.notes`. Raises a FrameError if it is not
    valid."""
    document = decode_json(payload)
    stream: StreamName = "stderr" if document.get("stream") == "stderr" else "stdout"
    try:
        rank, offset, line = document["rank"], document["offset"], document["line"]
        kind, fields = document["kind"], document["fields"]
    except KeyError:
        raise FrameError("an invalid note") from None
    is_placed = type(rank) is int and type(offset) is int and rank >= 0 <= offset and isinstance(line, str)
    if not (is_placed and isinstance(kind, str) and isinstance(fields, dict)):
        raise FrameError("an invalid note")
    return Note(rank, stream, line.encode(errors="replace"), offset, None, kind, fields)


def decode_output(kind: bytes, payload: bytes) -> OutputPart:
    """Return the chunk or note in a frame. Raises a FrameError if it is neither."""
    return decode_note(payload) if kind == NOTE else decode_chunk(kind, payload)


class WindowsFile(NamedTuple):
    rank: int
    suffix: str
    data: bytes


def encode_windows(file: WindowsFile) -> bytes:
    """Return a file of windows as a frame."""
    head = HEAD.pack(_WINDOWS_HEAD.size + len(file.data), WINDOWS)
    return head + _WINDOWS_HEAD.pack(file.rank, file.suffix.encode()) + file.data


def decode_windows(payload: bytes) -> WindowsFile:
    """Return the file of windows in a frame's payload. Raises a FrameError if the payload is too short."""
    if len(payload) < _WINDOWS_HEAD.size:
        raise FrameError("an invalid file of windows")
    rank, suffix = _WINDOWS_HEAD.unpack_from(payload)
    return WindowsFile(rank, suffix.rstrip(b"\0").decode(errors="replace"), payload[_WINDOWS_HEAD.size :])


class FrameReader:
    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        self.max_frame = max_frame
        self._data = bytearray()

    @property
    def has_rest(self) -> bool:
        """True if the beginning of another frame has been received."""
        return bool(self._data)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that these bytes complete; the rest is kept. Raises a FrameError if a frame is larger than
        `max_frame`."""
        self._data += data
        start = 0
        try:
            while len(self._data) - start >= HEAD.size:
                size, kind = HEAD.unpack_from(self._data, start)
                if size > self.max_frame:
                    raise FrameError(f"a frame of {size} bytes is too large")
                end = start + HEAD.size + size
                if len(self._data) < end:
                    break
                payload = bytes(self._data[start + HEAD.size : end])
                start = end
                yield kind, payload
        finally:
            del self._data[:start]


class CompressedFrameReader:
    def __init__(self) -> None:
        self._zlib = zlib.decompressobj()
        self._frames = FrameReader()

    @property
    def is_over(self) -> bool:
        """True once the end of the compressed data was read."""
        return self._zlib.eof

    @property
    def rest(self) -> bytes:
        """Bytes after the end of the compressed data."""
        return self._zlib.unused_data

    def feed(self, data: bytes | memoryview) -> Iterator[Frame]:
        """Yield the frames that these compressed bytes complete. Raises a FrameError if they are damaged."""
        try:
            while True:
                inflated = self._zlib.decompress(data, _INFLATED)
                yield from self._frames.feed(inflated)
                data = self._zlib.unconsumed_tail  # unchanged if the stream ends exactly at the limit
                if self._zlib.eof or (not data and len(inflated) < _INFLATED):
                    return
        except zlib.error:
            raise FrameError("damaged data") from None


class CompressedFrameWriter:
    """Writes frames as one zlib stream, because ranks print much the same and the link may be slow."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._zlib = zlib.compressobj(1)
        self._frames: list[bytes] = []
        self._size = 0

    def send(self, frame: bytes) -> None:
        """Add a frame. It is written later, together with others, unless `flush` is called."""
        self._frames.append(frame)
        self._size += len(frame)
        if self._size >= _COMPRESSED_TOGETHER:
            self.flush()

    def flush(self) -> None:
        """Write all frames that were added."""
        if self._frames:
            frames, self._frames, self._size = b"".join(self._frames), [], 0
            self._write(self._zlib.compress(frames) + self._zlib.flush(zlib.Z_SYNC_FLUSH))

    def close(self) -> None:
        """Write what is left, and the end of the compressed data."""
        self.flush()
        self._write(self._zlib.flush())


@contextlib.contextmanager
def emit_frames() -> Iterator[CompressedFrameWriter]:
    """Announce frames on stdout, and yield what writes them. At the end of the block, all of them are written."""
    emit("frames")
    writer = CompressedFrameWriter(write_bytes)
    try:
        yield writer
    finally:
        writer.close()
