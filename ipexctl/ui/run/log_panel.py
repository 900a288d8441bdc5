"""The stream of lines below the table: what several ranks say at the same moment stands there once. Pure."""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING, Final

from ipexctl.jobs.ranks import fold_ranks
from ipexctl.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.text import Text

    from ipexctl.jobs.events import Stream as StreamName
    from ipexctl.jobs.ranks import RankSet

WINDOW: Final = 0.15
"""Seconds within which the same line of another rank is the same event. A tick of the view is shorter."""
_KEPT: Final = 3000
_LONGEST: Final = 4000
_COLOR: Final = re.compile(r"\x1b\[[0-9;:]*m")
_COLORS: Final = re.compile(rf"({_COLOR.pattern})")
_ESCAPE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")


class Entry:
    """A line, who said it, and what it looks like once somebody saw it."""

    __slots__ = ("number", "ranks", "rendered", "stream", "text", "when")

    def __init__(self, number: int, text: str, stream: StreamName | None, when: float) -> None:
        self.number = number
        self.text = text
        self.stream = stream
        self.when = when
        self.ranks: set[int] = set()
        self.rendered: tuple[tuple[int, int], list[Text]] | None = None
        """The rows it takes, and the width and count of ranks they are right for."""

    @property
    def label(self) -> str:
        return fold_ranks(self.ranks)


class Folded:
    """The newest lines of all ranks. Lines of one rank stay in its own order, folded or not."""

    def __init__(self) -> None:
        self.entries: deque[Entry] = deque(maxlen=_KEPT)
        self.added = 0
        self._open: dict[tuple[StreamName, str], list[Entry]] = {}
        self._last: dict[int, int] = {}

    def add(self, rank: int, stream: StreamName, text: str, now: float) -> None:
        last = self._last.get(rank, 0)
        same = self._open.get((stream, text))
        if same is not None:
            for entry in same:
                if entry.number > last:
                    entry.ranks.add(rank)
                    self._last[rank] = entry.number
                    return
        entry = self._append(text, stream, now)
        entry.ranks.add(rank)
        self._last[rank] = entry.number
        if same is not None:
            same.append(entry)
        else:
            self._open[stream, text] = [entry]

    def say(self, text: str, now: float) -> None:
        """A word of ours, behind all that was said before it."""
        self._append(text, None, now)

    def close_window(self, now: float) -> None:
        """Forget what is too old for anybody to join."""
        for key, entries in list(self._open.items()):
            if now - entries[-1].when > WINDOW:
                del self._open[key]
            elif now - entries[0].when > WINDOW:
                self._open[key] = [entry for entry in entries if now - entry.when <= WINDOW]

    def _append(self, text: str, stream: StreamName | None, now: float) -> Entry:
        self.added += 1
        entry = Entry(self.added, text, stream, now)
        self.entries.append(entry)
        return entry


def newest(entries: Sequence[Entry], ranks: RankSet) -> Iterator[Entry]:
    """From the newest to the oldest, those of these ranks, and ours."""
    for entry in reversed(entries):
        if entry.stream is None or ranks.everyone or any(rank in ranks for rank in entry.ranks):
            yield entry


def colored(line: bytes) -> str:
    """A line as the stream keeps it: colours stay, whatever else a terminal would obey is gone."""
    text = line.decode("utf-8", "replace")
    if text.isprintable():
        return text[:_LONGEST]
    if "\x1b" not in text:
        return printable(text.expandtabs(8))[:_LONGEST]
    text = _ESCAPE.sub(lambda escape: escape[0] if _COLOR.fullmatch(escape[0]) else "", text).expandtabs(8)
    parts = _COLORS.split(text)  # words and colours take turns
    parts[::2] = [printable(part) for part in parts[::2]]
    return "".join(parts)[:_LONGEST]


def bare(text: str) -> str:
    """The same without its colours."""
    return _COLOR.sub("", text) if "\x1b" in text else text
