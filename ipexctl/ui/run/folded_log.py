"""The log of the live view: a line that several ranks print at the same time is one entry. Pure."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from ipexctl.jobs.ranks import RankSet, fold_ranks
from ipexctl.text import neutralise

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.segment import Segment

    from ipexctl.node.common.frames import Stream as StreamName

WINDOW: Final = 0.15
"""Seconds within which equal lines of different ranks are one entry. Longer than one tick of the view."""
_KEPT: Final = 3000
_LONGEST: Final = 4000
"""Bytes of a line."""


class LogLine:
    """A line, its ranks, and its cached rendering."""

    __slots__ = ("number", "ranks", "rendered", "stream", "text", "when")

    def __init__(self, number: int, text: str, stream: StreamName | None, when: float) -> None:
        self.number = number
        self.text = text
        self.stream = stream
        self.when = when
        self.ranks: set[int] = set()
        self.rendered: tuple[tuple[int, int], list[list[Segment]]] | None = None
        """The cached rows of the screen, with the width and number of ranks that they are valid for."""

    @property
    def label(self) -> str:
        return fold_ranks(self.ranks)


class FoldedLog:
    """The newest lines of all ranks, equal ones folded. Lines of one rank keep their order."""

    def __init__(self) -> None:
        self.entries: deque[LogLine] = deque(maxlen=_KEPT)
        self.added = 0
        self._open: dict[tuple[StreamName, str], list[LogLine]] = {}
        self._last: dict[int, int] = {}

    def add(self, rank: int, stream: StreamName, text: str, now: float) -> None:
        last = self._last.get(rank, 0)
        candidates = self._open.setdefault((stream, text), [])
        entry = next((entry for entry in candidates if entry.number > last), None)
        if entry is None:
            entry = self._append(text, stream, now)
            candidates.append(entry)
        entry.ranks.add(rank)
        self._last[rank] = entry.number

    def add_notice(self, text: str, now: float) -> None:
        """Add a notice of ipexctl as the newest entry."""
        self._append(text, None, now)

    def close_window(self, now: float) -> None:
        """Forget entries that are too old for another rank to join."""
        for key, entries in list(self._open.items()):
            if now - entries[-1].when > WINDOW:
                del self._open[key]
            elif now - entries[0].when > WINDOW:
                self._open[key] = [entry for entry in entries if now - entry.when <= WINDOW]

    def _append(self, text: str, stream: StreamName | None, now: float) -> LogLine:
        self.added += 1
        entry = LogLine(self.added, text, stream, now)
        self.entries.append(entry)
        return entry


def newest(entries: Sequence[LogLine], ranks: RankSet) -> Iterator[LogLine]:
    """Entries of these ranks and notices of ipexctl, from the newest to the oldest."""
    for entry in reversed(entries):
        if entry.stream is None or ranks.everyone or any(rank in ranks for rank in entry.ranks):
            yield entry


def colored(line: bytes) -> str:
    """The line as text of bounded length; colors are kept."""
    return neutralise(line[:_LONGEST].decode("utf-8", "replace")).expandtabs(8)
