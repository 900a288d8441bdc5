"""Read the agent's output: events, one line of JSON each, with raw bytes after some of them. A missing or mistyped
field is an error of that host only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

from ipexctl.node.common.frames import StreamName
from ipexctl.node.common.json_records import JsonError, decode, decoder_of, parse_object
from ipexctl.remote.outcome import HostError
from ipexctl.remote.session import MAX_OUTPUT, endless_output

Value = TypeVar("Value")
_LONGEST_TEXT_SHOWN: Final = 120
_CREDENTIALS: Final = re.compile(r"//[^/@\s\"]*@")


class MalformedReply(HostError):
    def __init__(self, problem: str, answer: str) -> None:
        lines = (line.strip() for line in answer.splitlines())
        first = next(filter(None, lines), "")
        shown = first if len(first) <= _LONGEST_TEXT_SHOWN else f"{first[:_LONGEST_TEXT_SHOWN]}…"
        super().__init__(
            f"its reply can't be read ({problem[:_LONGEST_TEXT_SHOWN]}): {shown}",
            "run the same command again with -vv, and check whether a login script there prints something",
        )


class Reply(dict[str, Any]):
    """A JSON object from a host. Each method returns a field of its type or raises MalformedReply."""

    def __missing__(self, key: str) -> NoReturn:
        raise self.error(f"{key} is missing")

    def text(self, key: str) -> str:
        """Return a text. Raises a MalformedReply for anything else, as all these methods do."""
        return self._checked_value(key, str)

    def flag(self, key: str) -> bool:
        """Return True or False."""
        return self._checked_value(key, bool)

    def integer(self, key: str) -> int:
        """Return an integer."""
        return self._checked_value(key, int)

    def integers(self, key: str) -> tuple[int, ...]:
        """Return a list of integers."""
        return self._checked_value(key, tuple, "tuple[int, ...]")

    def integer_or_none(self, key: str) -> int | None:
        """Return an integer; None if the field is missing or null."""
        return None if self.get(key) is None else self.integer(key)

    def number(self, key: str) -> float:
        """Return a number."""
        return self._checked_value(key, float)

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts."""
        return self._checked_value(key, tuple, "tuple[str, ...]")

    def record(self, key: str) -> Reply:
        """Return an object."""
        return Reply(self._checked_value(key, dict, "Json"))

    def records(self, key: str) -> tuple[Reply, ...]:
        """Return a list of objects."""
        return tuple(map(Reply, self._checked_value(key, tuple, "tuple[Json, ...]")))

    def decode(self, kind: Callable[..., Value], **given: object) -> Value:
        """Return the whole reply as a record of this kind. `given`: fields that the caller sets."""
        try:
            return decode(kind, dict(self), "it", given)
        except ValueError as error:
            raise self.error(str(error)) from None

    def _checked_value(self, key: str, kind: type[Value], type_: str = "") -> Value:
        """Return the field if it has this type. Raises a MalformedReply. `type_`: the type as an annotation, such as
        `list[int]`; empty for the name of `kind`."""
        try:
            value: Value = decoder_of(type_ or kind.__name__)(self.get(key), key)
        except ValueError as error:
            raise self.error(str(error)) from None
        return value

    def error(self, problem: str) -> MalformedReply:
        """Return an error that shows the reply, without logins and without passwords in addresses."""
        shown = json.dumps({**self, "logins": "***"} if "logins" in self else self, ensure_ascii=False)
        return MalformedReply(problem, _CREDENTIALS.sub("//***@", shown))


_STDERR_KEPT: Final = 8192
_MOST_VALUES: Final = 1_000_000
"""Limit on the values in one event, because `[],[],…` takes 20 times its length when decoded."""

RawReader = Callable[[memoryview], int | None]
"""Reads bytes after an event. Returns None while more follow, else how many of these bytes it used."""
OnEvent = Callable[[Reply], RawReader | None]
"""Handles an event; returns a reader if raw bytes follow. A HostError ends the call."""


class EventLimits(NamedTuple):
    line: int = 32 << 20
    total: int = 32 << 20
    """Limit on the bytes of all lines; raw bytes between two lines start a new count."""
    subject: str = "answer"
    """What the error calls these lines."""
    fix: str = ""
    events_only: bool = False
    """True if a line that is not an event is an error, and not ignored as a login script's."""


DEFAULT_LIMITS: Final = EventLimits()


class EventReader:
    def __init__(self, on_event: OnEvent, limits: EventLimits = DEFAULT_LIMITS) -> None:
        self.stderr = b""
        self._stderr_size = 0
        self._on_event = on_event
        self._limits = limits
        self._raw: RawReader | None = None
        self._line = bytearray()
        self._received = 0

    def sink(self, stream: StreamName, data: bytes) -> None:
        """Take output as it arrives: call the handler for each event on stdout, and keep the end of stderr."""
        if stream == "stderr":
            self.stderr = (self.stderr + data)[-_STDERR_KEPT:]
            self._stderr_size += len(data)
            if self._stderr_size > MAX_OUTPUT:
                raise endless_output(stream)
            return
        at = 0
        while at < len(data):
            at = self._read_line(data, at) if self._raw is None else self._read_raw(self._raw, data, at)

    def _read_line(self, data: bytes, at: int) -> int:
        """Read up to the end of the line that begins at `at`, and handle it. Return the position behind it and behind
        raw bytes that belong to it. A part of a line is kept for the next data."""
        end = data.find(b"\n", at)
        part = data[at:] if end < 0 else data[at:end]
        self._received += len(part)
        if self._received > self._limits.total or len(self._line) + len(part) > self._limits.line:
            self._line.clear()  # otherwise the error's traceback keeps this buffer until the command ends
            if self._received > self._limits.total:
                limit = f"{self._limits.total >> 20} MB"
                raise HostError(f"its {self._limits.subject} is larger than {limit}", self._limits.fix)
            raise HostError("it sent a line without an end")
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
        """Pass an event to the handler, and return the reader of the raw bytes behind it; None if there are none. A
        line that is no event is skipped, or an error if only events are expected."""
        if len(line) > _MOST_VALUES and sum(map(line.count, (b",", b"[", b"{"))) > _MOST_VALUES:
            raise HostError("it sent a reply with too many values")
        try:
            event = parse_object(line)
        except JsonError:
            if self._limits.events_only:
                raise MalformedReply("a line that is not a JSON object", line.decode(errors="replace")) from None
            return None
        return self._on_event(Reply(event))

    def _read_raw(self, raw: RawReader, data: bytes, at: int) -> int:
        count = raw(memoryview(data)[at:])
        self._raw, self._received = (raw, 0) if count is None else (None, 0)
        return len(data) if count is None else at + count
