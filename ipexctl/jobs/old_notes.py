"""Finds the notes of ipexctl in records of older versions, by the text of a line: the one place that does so.

Newer records say which lines are notes (`node/run/output_notes.py`). In come chunks of an older record; out go the
same bytes, cut where a line is a note. A line that a script printed in the same words is taken for one, as it was by
the version that made the record. Of a line without an end, only the beginning of a note waits for its rest.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from ipexctl.node.common.frames import Note

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ipexctl.node.common.frames import Chunk, OutputPart, StreamName

_NOTE: Final = re.compile(
    rb"\[ipexctl: (?:restart (?P<attempt>\d{1,9}) of (?P<restarts>\d{1,9}) after: (?P<reason>.*)|"
    rb"(?P<text>checkpoint .*)|"
    rb"(?P<bytes>\d{1,18}) bytes are missing here: there was no room for them on (?P<host>.*))\]\n|"
    rb"ipexctl: (?P<failed_host>[^\s:]+): (?P<why>.*)\n"
)
_BEGINNINGS: Final = (b"[ipexctl: ", b"ipexctl: ")
_LONGEST: Final = 8192
"""Bytes of a note."""
_Key = tuple[int, "StreamName"]


class OldNotes:
    """One for each follower: it remembers, for each stream, how its last line began."""

    def __init__(self) -> None:
        self._held: dict[_Key, Chunk] = {}
        """The beginning of a line that may become a note."""
        self._inside: set[_Key] = set()
        """The streams whose bytes so far end inside a line that is no note."""

    def feed(self, chunk: Chunk) -> Iterator[OutputPart]:
        key = chunk.rank, chunk.stream
        held = self._held.pop(key, None)
        if held is not None and held.end == chunk.offset:
            chunk = chunk._replace(data=held.data + chunk.data, offset=held.offset)
        elif held is not None:  # the rest of that line was not chosen
            yield held
        begin = 0
        for start, end in self._candidates(chunk, inside=key in self._inside):
            match = _NOTE.fullmatch(chunk.data, start, end)
            if match is None or (match["why"] is not None and chunk.stream == "stdout"):
                continue
            if begin < start:
                yield _part(chunk, begin, start)
            yield _note_of(match, chunk)
            begin = end
        end = len(chunk.data)
        last_line = max(begin, chunk.data.rfind(b"\n") + 1)
        if (last_line or key not in self._inside) and _may_begin_note(chunk.data[last_line:]):
            end = last_line
            self._held[key] = _part(chunk, last_line, len(chunk.data))
        if begin < end or not chunk.data:
            yield _part(chunk, begin, end)
        if last_line < end:
            self._inside.add(key)
        elif chunk.data:
            self._inside.discard(key)

    def flush(self) -> Iterator[OutputPart]:
        """What waited for the rest of a note that did not come."""
        while self._held:
            yield self._held.popitem()[1]

    @staticmethod
    def _candidates(chunk: Chunk, *, inside: bool) -> Iterator[tuple[int, int]]:
        """Where complete lines are that begin like a note."""
        data = chunk.data
        if b"ipexctl: " not in data:
            return
        start = data.find(b"\n") + 1 if inside else 0
        while (end := data.find(b"\n", start) + 1) and (start or not inside):
            if data.startswith(_BEGINNINGS, start):
                yield start, end
            start = end


def _part(chunk: Chunk, begin: int, end: int) -> Chunk:
    return chunk._replace(data=chunk.data[begin:end], offset=chunk.offset + begin)


def _may_begin_note(rest: bytes) -> bool:
    if not rest or len(rest) > _LONGEST:
        return False
    return any(rest.startswith(beginning) or beginning.startswith(rest) for beginning in _BEGINNINGS)


def _note_of(match: re.Match[bytes], chunk: Chunk) -> Note:
    found = {name: value.decode(errors="replace") for name, value in match.groupdict().items() if value is not None}
    fields: dict[str, Any]
    if "attempt" in found:
        kind, numbers = "restart", {"attempt": int(found["attempt"]), "restarts": int(found["restarts"])}
        fields = {**numbers, "reason": found["reason"]}
    elif "text" in found:
        kind, fields = "checkpoint", {"text": found["text"]}
    elif "bytes" in found:
        kind, fields = "gap", {"bytes": int(found["bytes"]), "host": found["host"]}
    else:
        kind, fields = "not-started", {"host": found["failed_host"], "reason": found["why"]}
    return Note(chunk.rank, chunk.stream, match[0], chunk.offset + match.start(), chunk.at, kind, fields)
