"""All that the live view knows of a run: fed with events, looked at ten times a second. No terminal, no clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ipexctl.jobs.events import FINAL, Chunk, RankStatus, RunNotice, RunStatus
from ipexctl.jobs.ranks import EVERY_RANK, RankSet
from ipexctl.text import printable
from ipexctl.ui.run.figures import Figures
from ipexctl.ui.run.keys import Controls
from ipexctl.ui.run.lines import NewestLines
from ipexctl.ui.run.log_panel import Folded, bare, colored, newest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.text import Text

    from ipexctl.jobs.events import Event, RunEnded, Stream
    from ipexctl.ui.run.log_panel import Entry

_LOOKED_AT: Final = 500
"""Lines that one tick takes in, over all ranks. More than that a second no eye follows, and rich would be busy."""
_RATE_EVERY: Final = 0.5
_STAYS: Final = 0.3
"""Seconds after which a line without an end is shown: most are only on their way."""


class Row:
    """One rank as the table shows it."""

    def __init__(self, rank: int) -> None:
        self.status = RankStatus(rank, "")
        self.last = ""
        self.unfinished: tuple[str, float] | None = None
        """What was printed of a line so far, and when that was seen."""
        self.rate = 0.0
        self.streams: dict[Stream, NewestLines] = {"stdout": NewestLines(), "stderr": NewestLines()}
        self._counted = 0

    @property
    def lines(self) -> int:
        return self.streams["stdout"].lines + self.streams["stderr"].lines

    def measure(self, seconds: float) -> None:
        fresh, self._counted = (self.lines - self._counted) / seconds, self.lines
        self.rate = fresh if not self.rate else 0.5 * self.rate + 0.5 * fresh
        if self.rate < 0.05:
            self.rate = 0.0


class RunState:
    """`feed` is cheap whatever comes; the work is done in `tick`, and is bounded."""

    def __init__(self, status: RunStatus, controls: Controls | None = None, *, unicode: bool = True) -> None:
        self.status = status
        self.controls = controls or Controls()
        self.unicode = unicode
        self.rows: dict[int, Row] = {}
        self.figures = Figures()
        self.folded = Folded()
        self.left_out = 0
        """Lines too many to be shown as they came; all are counted, and in the ranks' files."""
        self.late = 0
        """Lines that were printed and aren't here yet: many, where the link is slow or somebody has come late."""
        self.ended: RunEnded | None = None
        self.changed = True
        self.began: float | None = None
        self._heard: float | None = None
        self._is_news = False
        self._touched: dict[tuple[int, Stream], None] = {}
        self._said: list[str] = []
        self._measured: float | None = None
        self._held: list[Entry] | None = None
        self._take_in(status)

    @property
    def lines(self) -> int:
        return sum(row.lines for row in self.rows.values())

    @property
    def rate(self) -> float:
        return sum(row.rate for row in self.rows.values())

    def feed(self, event: Event) -> None:
        self.changed = True
        self._is_news = self._is_news or not isinstance(event, RunNotice)
        if isinstance(event, Chunk):
            self._row(event.rank).streams[event.stream].feed(event.data)
            self._touched[event.rank, event.stream] = None
        elif isinstance(event, RunStatus):
            self._take_in(event)
        elif isinstance(event, RunNotice):
            first, *more = event.text.split("\n")
            self._said.append(f"{'warning: ' if event.warning else ''}{printable(first)}")
            self._said.extend(printable(line) for line in more)
        else:
            self.ended = event
            if event.status is not None:
                self._take_in(event.status)

    def tick(self, now: float) -> None:
        """Take in what came since the last tick."""
        self.began = now if self.began is None else self.began
        if self._is_news or self._heard is None:
            self._heard, self._is_news = now, False
        self.folded.close_window(now)
        touched, self._touched = list(self._touched), {}
        most = max(2, _LOOKED_AT // max(1, len(touched)))
        for rank, stream in touched:
            self._look(rank, stream, most, now)
        for row in self.rows.values():
            if row.unfinished is not None and now - row.unfinished[1] >= _STAYS:
                row.last, row.unfinished = row.unfinished[0], None
                self.changed = True
        for text in self._said:
            self.folded.say(text, now)
        self._said = []
        self._measure(now)

    def entries(self) -> Sequence[Entry]:
        """The lines to show: as they are, or as they were when they were held."""
        if not self.controls.paused:
            self._held = None
            return self.folded.entries
        if self._held is None:
            self._held = list(self.folded.entries)
        return self._held

    @property
    def behind(self) -> int:
        """Lines that came since they were held."""
        return self.folded.added - self._held[-1].number if self._held else 0

    def render(self, width: int, height: int, now: float) -> list[Text]:
        """The screen, line by line, never more than `height` of them nor wider than `width`."""
        from ipexctl.ui.run.frame import draw

        self.tick(now)
        self.changed = False
        return draw(self, width, height, now)

    def last_lines(self, most: int) -> list[str]:
        """The last words for somebody whose screen is gone: of the rank that failed first, or of all."""
        first = self.status.first_failure
        rank = None if first is None else first.rank
        ranks = EVERY_RANK if rank is None else RankSet((range(rank, rank + 1),))
        lines: list[str] = []
        for entry in newest(self.folded.entries, ranks):
            if len(lines) == most:
                break
            lines.append(f"[{entry.label}] {bare(entry.text)}" if entry.stream else entry.text)
        return lines[::-1]

    def elapsed(self, now: float) -> float:
        """Seconds the run took or takes. Where node0's clock is ahead of ours, since we began to look."""
        if self.status.started is None:
            return now - (self.began or now)
        if self.status.ended is not None:
            return self.status.ended - self.status.started
        return now - min(self.status.started, self.began or now)

    def silent(self, now: float) -> float:
        """Seconds since node0 was last heard: of a run under way it says something every two."""
        speaks = self.status.state in {"starting", "running"} and any(
            row.status.state == "running" for row in self.rows.values()
        )
        return now - (self._heard or now) if speaks else 0.0

    def _row(self, rank: int) -> Row:
        row = self.rows.get(rank)
        if row is None:
            row = self.rows[rank] = Row(rank)
            self.rows = dict(sorted(self.rows.items()))
        return row

    def _take_in(self, status: RunStatus) -> None:
        self.status = status
        for rank in status.ranks:
            self._row(rank.rank).status = rank
        self.late = max(0, sum((rank.out_lines or 0) + (rank.err_lines or 0) for rank in status.ranks) - self.lines)
        if status.state in FINAL:
            self.controls.stopping = False

    def _look(self, rank: int, stream: Stream, most: int, now: float) -> None:
        row = self.rows[rank]
        lines, more, rest = row.streams[stream].take(most)
        is_bar = row.streams[stream].is_bar
        self.left_out += more
        text = ""
        for line in lines:
            text = colored(line)
            self.folded.add(rank, stream, text, now)
            self.figures.read(rank, bare(text))
        newest = bare(colored(rest)).strip()
        if newest:
            self.figures.read(rank, newest, unfinished=True)
        row.unfinished = (newest, now) if newest and not is_bar else None
        row.last = (newest if is_bar else "") or bare(text).strip() or row.last

    def _measure(self, now: float) -> None:
        if self._measured is None:
            self._measured = now
        elif now - self._measured >= _RATE_EVERY:
            for row in self.rows.values():
                row.measure(now - self._measured)
            self._measured = now


def shown_rows(rows: Sequence[Row], room: int) -> list[Row]:
    """As many as there is room for: what failed first, then who has most to say, some of every host.

    They stand in the order of their ranks.
    """
    if len(rows) <= room:
        return list(rows)
    place_on_host: dict[int, int] = {}
    hosts: dict[str, int] = {}
    for row in rows:
        place_on_host[row.status.rank] = hosts[row.status.host] = hosts.get(row.status.host, -1) + 1

    def weight(row: Row) -> tuple[int, int, int, int]:
        # By magnitude: ranks that are equally busy, more or less, would change places all the time.
        busy = 1 + max(0, int(row.rate).bit_length() - 1) // 3 if row.rate else 0
        return _trouble(row), -busy, place_on_host[row.status.rank], row.status.rank

    chosen = sorted(rows, key=weight)[:room]
    return sorted(chosen, key=lambda row: (_trouble(row), row.status.rank))


def _trouble(row: Row) -> int:
    return {"failed": 0, "lost": 1, "running": 2, "starting": 2, "unknown": 2}.get(row.status.state, 3)


def chosen_rows(screen: RunState) -> list[Row]:
    ranks: RankSet = screen.controls.ranks
    return [row for row in screen.rows.values() if row.status.rank in ranks]
