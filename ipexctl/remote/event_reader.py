"""Reads output of the agent or doctor's scripts: events, each a line of JSON, and raw bytes after some of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from ipexctl.node.common.json_parser import JsonError, parse_object
from ipexctl.remote.outcome import HostError
from ipexctl.remote.reply import MalformedReply, Reply

if TYPE_CHECKING:
    from ipexctl.node.common.frames import StreamName

_STDERR_KEPT: Final = 8192
_MOST_VALUES: Final = 1_000_000
"""Values in one event: `[],[],…` takes 20 times its length when it is decoded."""

RawReader = Callable[[memoryview], int | None]
"""Reads bytes after an event. Returns None while more follow, else how many of these it used."""
OnEvent = Callable[[Reply], RawReader | None]
"""Handles an event; returns a reader if raw bytes follow. A HostError ends the call."""


class EventLimits(NamedTuple):
    line: int = 32 << 20
    total: int = 32 << 20
    """Bytes of lines without raw bytes between them."""
    subject: str = "answer"
    """What the error calls these lines."""
    fix: str = ""
    events_only: bool = False
    """A line that is no event is an error; otherwise ignored as a login script's."""


DEFAULT_LIMITS: Final = EventLimits()


class EventReader:
    """Sink for one program's output. Keeps the end of stderr."""

    def __init__(self, on_event: OnEvent, limits: EventLimits = DEFAULT_LIMITS) -> None:
        self.stderr = b""
        self._on_event = on_event
        self._limits = limits
        self._raw: RawReader | None = None
        self._line = bytearray()
        self._received = 0

    def sink(self, stream: StreamName, data: bytes) -> None:
        if stream == "stderr":
            self.stderr = (self.stderr + data)[-_STDERR_KEPT:]
            return
        at = 0
        while at < len(data):
            at = self._read_line(data, at) if self._raw is None else self._read_raw(self._raw, data, at)

    def _read_line(self, data: bytes, at: int) -> int:
        end = data.find(b"\n", at)
        part = data[at:] if end < 0 else data[at:end]
        self._received += len(part)
        if self._received > self._limits.total or len(self._line) + len(part) > self._limits.line:
            self._line.clear()  # the error's traceback keeps this buffer until the command ends
            if self._received > self._limits.total:
                limit = f"{self._limits.total >> 20} MB"
                raise HostError(f"its {self._limits.subject} takes more than {limit}", self._limits.fix)
            raise HostError("it sends a line without an end")
        if end < 0:
            self._line += part
            return len(data)
        line: bytes | bytearray = part
        if self._line:
            line, self._line = self._line, bytearray()
            line += part
        raw = self._handle_line(line)
        return end + 1 if raw is None else self._read_raw(raw, data, end + 1)

    def _handle_line(self, line: bytes | bytearray) -> RawReader | None:
        if len(line) > _MOST_VALUES and sum(map(line.count, (b",", b"[", b"{"))) > _MOST_VALUES:
            raise HostError("it sends an answer with too many values")
        try:
            event = parse_object(line)
        except JsonError:
            if self._limits.events_only:
                raise MalformedReply("a line that is no JSON object", line.decode(errors="replace")) from None
            return None
        return self._on_event(Reply(event))

    def _read_raw(self, raw: RawReader, data: bytes, at: int) -> int:
        count = raw(memoryview(data)[at:])
        self._raw, self._received = (raw, 0) if count is None else (None, 0)
        return len(data) if count is None else at + count
