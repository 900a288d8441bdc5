"""Filters the ranks' output: lines that match a regular expression, and the last lines. A note stays a note."""

from __future__ import annotations

import os
import re
import signal
from collections import deque
from typing import TYPE_CHECKING, Iterable, NoReturn

from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.frames import Chunk, Note, last_state
from ipexctl.node.common.node_limits import GREP_SEARCH

if TYPE_CHECKING:
    from ipexctl.node.common.frames import OutputPart
    from ipexctl.node.run.record.output_times import OutputKey

MAX_SEARCHED = 16 << 10
MAX_LINE = 1 << 20
"""Bytes; a longer line is split into pieces."""
MAX_TAIL = 64 << 20
BLOCK = 64 << 10


class OutputFilter:
    """Without a pattern and without `tail`, all output passes at once, even parts of lines."""

    def __init__(self, pattern: str, tail: int | None) -> None:
        self._pattern = compile_pattern(pattern) if pattern else None
        self._unfinished: dict[OutputKey, list[Chunk]] = {}
        self._last: deque[OutputPart] | None = None if tail is None else deque(maxlen=tail)

    def feed(self, part: OutputPart) -> Iterable[OutputPart]:
        """Take output of a stream, and return what passes now. With `tail`, nothing passes before `caught_up`."""
        if self._pattern is None and self._last is None:
            return [part]
        lines = self._chosen_note(part) if isinstance(part, Note) else self._chosen_lines(self._complete_lines(part))
        if self._last is None:
            return merge_lines(lines)
        self._keep(self._last, lines)
        return ()

    def caught_up(self, *, is_final: bool) -> Iterable[OutputPart]:
        """Return what was held back of all output so far: the last lines with `tail`, and unfinished lines that match.
        With a pattern, unfinished lines count only if `is_final`."""
        rest: list[OutputPart] = []
        if is_final or self._pattern is None:
            rest = [line for parts in self._unfinished.values() for line in self._chosen_lines(join_chunks(parts))]
            self._unfinished.clear()
        if self._last is not None:
            self._keep(self._last, rest)
            rest, self._last = list(self._last), None
        return merge_lines(rest)

    def offset_of(self, key: OutputKey, end: int) -> int:
        """Return the offset of the first byte that is neither passed on nor dropped yet, if the output was fed up to
        `end`."""
        parts = self._unfinished.get(key)
        return parts[0].offset if parts else end

    def _complete_lines(self, chunk: Chunk) -> Chunk:
        """Return the lines that this chunk completes, together with their beginnings in earlier chunks. Keep the
        rest."""
        key = chunk.rank, chunk.stream
        parts = [*self._unfinished.pop(key, ()), chunk]
        size = sum(len(part.data) for part in parts)
        if b"\n" not in chunk.data and size < MAX_LINE:
            self._unfinished[key] = parts
            return chunk._replace(data=b"")
        output = join_chunks(parts)
        cut = output.data.rfind(b"\n") + 1
        if len(output.data) - cut >= MAX_LINE:
            return output
        if cut < len(output.data):
            self._unfinished[key] = [output._replace(data=output.data[cut:], offset=output.offset + cut)]
        return output._replace(data=output.data[:cut])

    def _chosen_note(self, note: Note) -> list[OutputPart]:
        """Return the unfinished line before the note, and the note, each only if it matches."""
        parts = self._unfinished.pop((note.rank, note.stream), None)
        before = self._chosen_lines(join_chunks(parts)) if parts else []
        return [*before, note] if self._chosen_lines(Chunk(*note[:5])) else before

    def _chosen_lines(self, chunk: Chunk) -> list[OutputPart]:
        search = None if self._pattern is None else self._pattern.search
        if search is not None:
            signal.signal(signal.SIGALRM, _on_alarm)
            signal.setitimer(signal.ITIMER_REAL, GREP_SEARCH)
        lines: list[OutputPart] = []
        offset = chunk.offset
        try:
            for line in chunk.data.split(b"\n"):
                data = line + b"\n" if offset + len(line) < chunk.end else line
                if data and (search is None or search(last_state(line)[:MAX_SEARCHED].decode(errors="replace"))):
                    lines.append(chunk._replace(data=data, offset=offset))
                offset += len(data)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return lines

    @staticmethod
    def _keep(last: deque[OutputPart], lines: list[OutputPart]) -> None:
        last.extend(lines)
        size = sum(len(line.data) for line in last) if lines and len(lines[-1].data) > MAX_SEARCHED else 0
        while size > MAX_TAIL:
            size -= len(last.popleft().data)


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a user's regular expression. Raises an AgentError if it is not valid."""
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError, MemoryError) as error:
        raise AgentError(f"the regular expression can't be used: {error}") from None


def _on_alarm(*_: object) -> NoReturn:
    reason = f"the regular expression takes more than {GREP_SEARCH:g} s for a few lines"
    raise AgentError(reason, "avoid nested repetitions, such as (a+)+")


def join_chunks(parts: list[Chunk]) -> Chunk:
    """Join successive chunks of one stream. The result has the time of the last one."""
    return parts[-1]._replace(data=b"".join(part.data for part in parts), offset=parts[0].offset)


def merge_lines(lines: list[OutputPart]) -> list[OutputPart]:
    """Join successive lines of a stream that have the same time, so that they become few frames. Notes stay alone."""
    merged: list[OutputPart | list[Chunk]] = []
    for line in lines:
        if isinstance(line, Note):
            merged.append(line)
            continue
        last = merged[-1] if merged else None
        if (
            isinstance(last, list)
            and last[-1][:2] == line[:2]
            and (last[-1].end, last[-1].at) == (line.offset, line.at)
        ):
            last.append(line)
        else:
            merged.append([line])
    return [join_chunks(parts) if isinstance(parts, list) else parts for parts in merged]


def start_of_last_lines(path: str, count: int) -> int:
    """Return the offset at which the last `count` lines of a file begin; 0 if it has fewer or can't be read. An
    unfinished last line counts."""
    try:
        with open(path, "rb") as file:
            start = size = file.seek(0, os.SEEK_END)
            wanted = count + 1  # one more newline ends the line before
            while start > 0:
                begin = max(0, start - BLOCK)
                file.seek(begin)
                block = file.read(start - begin)
                if start == size and not block.endswith(b"\n"):
                    wanted -= 1
                position = len(block)
                while wanted and (position := block.rfind(b"\n", 0, position)) >= 0:
                    wanted -= 1
                if not wanted:
                    return begin + position + 1
                start = begin
    except OSError:
        pass
    return 0
