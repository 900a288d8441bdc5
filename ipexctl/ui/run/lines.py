"""Lines out of the bytes of one stream of one rank: all of them for plain output, the newest for the live view.

A progress bar rewrites its line by `\\r`: of its states, the last is the line. The rank's file keeps them all.
"""

from __future__ import annotations

from typing import Final

LONGEST_LINE: Final = 1 << 20
"""A line longer than this is handed on in pieces: memory has an end, even if the line doesn't."""
_VIEWED: Final = 128 << 10
"""Bytes of one stream that wait to be looked at; what is older has scrolled off every screen."""
_LONGEST_VIEWED: Final = 16 << 10


class PrefixedLines:
    """Whole lines behind a prefix; the same lines wherever the bytes were cut on their way."""

    def __init__(self, prefix: bytes, longest: int = LONGEST_LINE) -> None:
        self._prefix = prefix
        self._longest = longest
        self._held: list[bytes] = []
        self._size = 0
        self._begun = False  # pieces of the held line are already shown
        self._bar = False  # the held line was rewritten by a \r

    def feed(self, data: bytes) -> bytes:
        if self._size + len(data) <= self._longest and not self._bar and b"\r" not in data:
            cut = data.rfind(b"\n") + 1
            if not cut:
                self._held.append(data)
                self._size += len(data)
                return b""
            whole = b"".join([*self._held, data[: cut - 1]])
            self._hold(data[cut:])
            self._begun = False
            return self._prefix + whole.replace(b"\n", b"\n" + self._prefix) + b"\n"
        return self._feed_slowly(data)

    def flush(self) -> bytes:
        """What is held of a line that never ended."""
        line = b"".join(self._held)
        out: list[bytes] = []
        state = line.rstrip(b"\r")
        if state and not (self._bar and state.isspace()):  # a bar that wiped itself away leaves nothing to show
            self._show(state[state.rfind(b"\r") + 1 :], out)
        self._hold(b"")
        self._begun = self._bar = False
        return b"".join(out)

    def _feed_slowly(self, data: bytes) -> bytes:
        out: list[bytes] = []
        *lines, rest = b"".join([*self._held, data]).split(b"\n")
        for line in lines:
            state = self._rewritten(line.rstrip(b"\r"), out)
            if state or not self._begun:
                self._show(state, out)
            self._begun = self._bar = False
        bare = rest.rstrip(b"\r")
        state = self._rewritten(bare, out)
        while len(state) > self._longest:
            out.append(self._prefix + state[: self._longest] + b"\n")
            state, self._begun = state[self._longest :], True
        self._bar = self._bar or len(bare) < len(rest)
        self._hold(state + b"\r" if len(bare) < len(rest) else state)
        return b"".join(out)

    def _rewritten(self, line: bytes, out: list[bytes]) -> bytes:
        """The last state of a line. One too long to be held is shown whole, however it was cut on its way."""
        if b"\r" not in line:
            return line
        self._bar = True
        *states, last = line.split(b"\r")
        for state in states:
            if self._begun or len(state) > self._longest:
                self._show(state, out)
            self._begun = False
        return last

    def _show(self, line: bytes, out: list[bytes]) -> None:
        starts = range(0, len(line) or 1, self._longest)
        out.extend(self._prefix + line[start : start + self._longest] + b"\n" for start in starts)

    def _hold(self, rest: bytes) -> None:
        self._held, self._size = ([rest], len(rest)) if rest else ([], 0)


class NewestLines:
    """The newest lines of one stream, and a true count of all. What nobody could read in time is let go."""

    def __init__(self) -> None:
        self.lines = 0
        self._pieces: list[bytes] = []
        self._size = 0
        self._taken = 0
        self.is_bar = False
        """Whether the line that hasn't ended is rewritten in its place."""

    def feed(self, data: bytes) -> None:
        self.lines += data.count(b"\n")
        self._pieces.append(data)
        self._size += len(data)
        if self._size > 2 * _VIEWED:
            kept = b"".join(self._pieces)[-_VIEWED:]
            self._pieces, self._size = [kept], len(kept)

    def take(self, most: int) -> tuple[list[bytes], int, bytes]:
        """Up to `most` whole lines since the last call, how many more there were, and the line that hasn't ended."""
        parts = b"".join(self._pieces).rsplit(b"\n", most + 1)
        unfinished = parts.pop()
        rest = last_state(unfinished)[-_LONGEST_VIEWED:]
        self.is_bar = b"\r" in unfinished or (self.is_bar and not parts)
        held = rest + b"\r" if unfinished.endswith(b"\r") else rest
        self._pieces, self._size = ([held], len(held)) if held else ([], 0)
        fresh, self._taken = self.lines - self._taken, self.lines
        lines = parts[max(0, len(parts) - min(most, fresh)) :]
        return [last_state(line)[:_LONGEST_VIEWED] for line in lines], fresh - len(lines), rest


def last_state(line: bytes) -> bytes:
    r"""What a terminal would show of a line that `\r` took back to its beginning."""
    if b"\r" not in line:
        return line
    states = line.rstrip(b"\r")
    return states[states.rfind(b"\r") + 1 :]
