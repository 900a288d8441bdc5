"""The state of the live view, with its keys. Uses neither terminal nor clock.

`feed` is cheap; `tick` does bounded work, however much has come. Every line is counted, shown or not. No line of a
script becomes a notice of ipexctl.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, Literal

from ipexctl.errors import UserError
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.frames import Chunk, Note, StreamName
from ipexctl.node.common.records import FINAL, RankStatus, RunStatus
from ipexctl.remote.outcome import Notice
from ipexctl.run.follow_run import RunEnded, RunUpdate
from ipexctl.run.ranks import EVERY_RANK, RankSet, fold_ranks, parse_ranks
from ipexctl.text import neutralise, printable, strip_colors
from ipexctl.ui.message_output import notice_text
from ipexctl.ui.run.figure_texts import Figures
from ipexctl.ui.run.plain import NoteFilter
from ipexctl.ui.safe_output import NewestLines

if TYPE_CHECKING:
    from rich.segment import Segment


Action = Literal["detach", "stop"]
Mode = Literal["watching", "filtering", "confirming", "help"]

HELP: Final = (
    ("/", "show only some ranks, such as 0-3,8; an empty list shows all"),
    ("space", "hold the log; again continues"),
    ("up, down, page up, page down", "scroll through the log"),
    ("d, q", "detach: the run continues"),
    ("s", "stop the run on every host, after you confirm with y"),
    ("Ctrl-C", "stop the run at once"),
    ("?", "close this help"),
)
_SCROLL: Final = {"up": 1, "down": -1, "page-up": 10, "page-down": -10, "k": 1, "j": -1}
_MAX_TYPED: Final = 200
"""Characters that the user can type."""


class Controls:
    """What the user has chosen by keys."""

    def __init__(self, ranks: RankSet = EVERY_RANK, *, keys: bool = True) -> None:
        self.keys = keys
        """False without a keyboard."""
        self.mode: Mode = "watching"
        self.ranks = ranks
        """Ranks that are shown."""
        self.typed = ""
        """The list of ranks while it is typed."""
        self.error = ""
        """Why that list is wrong; empty if it is not."""
        self.paused = False
        self.scrolled = 0
        """Lines above the end of the log."""
        self.stopping = False
        """True while the run is being stopped."""

    def press(self, key: str) -> Action | None:
        """React to a key; return what the view has to do, or None."""
        if self.mode == "filtering":
            self._type(key)
        elif self.mode == "confirming":
            self.mode = "watching"
            if key in {"y", "Y"}:
                self.stopping = True
                return "stop"
        elif self.mode == "help" and key not in {"d", "q", "s"}:
            self.mode = "watching"
        elif key in {"d", "q"}:
            return "detach"
        else:
            self._watch(key)
        return None

    def _watch(self, key: str) -> None:
        """React to a key while the log is shown."""
        self.error = ""
        if key == "/":
            self.mode, self.typed = "filtering", "" if self.ranks.has_all else str(self.ranks)
        elif key == "s":
            self.mode = "confirming"
        elif key == "?":
            self.mode = "help"
        elif key == " ":
            self.paused, self.scrolled = not self.paused, 0
        elif key in _SCROLL:
            self.scrolled = max(0, self.scrolled + _SCROLL[key])
            self.paused = self.paused or self.scrolled > 0
        elif key == "escape":
            self.paused, self.scrolled = False, 0

    def _type(self, key: str) -> None:
        """React to a key while ranks are typed."""
        if key == "enter":
            try:
                self.ranks = parse_ranks(self.typed) if self.typed.strip() else EVERY_RANK
            except UserError as failure:
                self.error = failure.message + " (" + failure.fix + ")"
                return
            self.mode, self.error, self.scrolled = "watching", "", 0
        elif key == "escape":
            self.mode, self.error = "watching", ""
        elif key == "backspace":
            self.typed = self.typed[:-1]
        elif key == "clear":
            self.typed = ""
        elif len(key) == 1 and key.isprintable() and len(self.typed) < _MAX_TYPED:
            self.typed += key


_KEY_NAMES: Final = {
    b"\x1b[A": "up", b"\x1bOA": "up", b"\x1b[B": "down", b"\x1bOB": "down",
    b"\x1b[5~": "page-up", b"\x1b[6~": "page-down", b"\x1b": "escape",
    b"\r": "enter", b"\n": "enter", b"\x7f": "backspace", b"\x08": "backspace", b"\x15": "clear",
}  # fmt: skip


_KEY: Final = re.compile(rb"\x1b\[[^@-~]*[@-~]?|\x1bO.?|.", re.DOTALL)


def read_keys(data: bytes) -> list[str]:
    """Return the names of the keys in typed bytes; a printable key is its own name."""
    return [_KEY_NAMES.get(key) or key.decode("ascii", "replace") for key in _KEY.findall(data)]


_LINES_PER_TICK: Final = 500
"""Lines per tick, over all ranks. Nobody can read more, and rich would take too long."""
_RATE_SECONDS: Final = 0.5
"""Seconds between measurements of lines per second."""
_UNFINISHED_SECONDS: Final = 0.3
"""Seconds until an unfinished line is shown: the rest of most lines arrives sooner."""

_NAMELESS_ADDRESS: Final = re.compile(
    r"socket\.cpp:\d+\] \[c10d\] The hostname of the client socket cannot be retrieved\. err=(-?\d+)"
)
_WINDOW: Final = 0.15
"""Seconds within which equal lines of different ranks are one entry. Longer than a tick."""
_STDERR_WINDOW: Final = 5.0
"""The same for stderr: ranks warn at different times, and equal warnings would fill the view."""
_OF_ONE_RANK: Final = re.compile(r"^\[rank\d+\]: ?|(?<=\[[WIEF])\d{4} \d\d:\d\d:\d\d\.\d+")
"""The name of the rank and the time of a warning that torch prints; equal lines differ only in these."""
_KEPT: Final = 3000
"""Lines of the log that are kept."""
_LONGEST_LINE: Final = 4000
"""Bytes of a line that are shown."""


class LogLine:
    """A line of the log, of one or of several ranks."""

    __slots__ = ("is_summary", "number", "ranks", "rendered", "stream", "text", "when")

    def __init__(self, number: int, text: str, stream: StreamName | None, when: float) -> None:
        self.number = number
        """Numbers of lines increase by one."""
        self.text = text
        self.stream = stream
        """None for a notice of ipexctl."""
        self.when = when
        self.ranks: set[int] = set()
        self.is_summary = False
        """True for a text in place of several lines."""
        self.rendered: tuple[tuple[int, int], list[list[Segment]]] | None = None
        """Rows of the terminal, kept with the width and number of ranks for which they are right; None before the
        first.
        """

    @property
    def label(self) -> str:
        """The ranks, as `0-3,8`."""
        return fold_ranks(self.ranks)


class FoldedLog:
    """The newest lines. Equal lines that ranks print at about the same time are one."""

    def __init__(self) -> None:
        self.entries: deque[LogLine] = deque(maxlen=_KEPT)
        self.added = 0
        """Number of all lines so far."""
        self._open: dict[tuple[StreamName, str], list[LogLine]] = {}
        """(stream, text) → lines to which other ranks may still be added."""
        self._last: dict[int, int] = {}
        """Rank → number of its last line. A rank's lines stay in order."""
        self._summaries: dict[str, LogLine] = {}

    def add(self, rank: int, stream: StreamName, text: str, now: float) -> None:
        """Add a line, or add the rank to an equal one."""
        last = self._last.get(rank, 0)
        words = _OF_ONE_RANK.sub("", text) if stream == "stderr" else text
        candidates = self._open.setdefault((stream, words), [])
        entry = next((entry for entry in candidates if entry.number > last), None)
        if entry is None:
            entry = self.append(text, stream, now)
            candidates.append(entry)
        entry.ranks.add(rank)
        self._last[rank] = entry.number

    def summarise(self, rank: int, stream: StreamName, text: str, now: float) -> None:
        """Add a text in place of a line; once for all ranks and times."""
        entry = self._summaries.get(text)
        if entry is None:
            entry = self._summaries[text] = self.append(text, stream, now)
            entry.is_summary = True
        entry.ranks.add(rank)

    def close_window(self, now: float) -> None:
        """Add no more ranks to lines that are too old."""
        for key, entries in list(self._open.items()):
            window = _STDERR_WINDOW if key[0] == "stderr" else _WINDOW
            if now - entries[-1].when > window:
                del self._open[key]
            elif now - entries[0].when > window:
                self._open[key] = [entry for entry in entries if now - entry.when <= window]

    def append(self, text: str, stream: StreamName | None, now: float) -> LogLine:
        """Add a line. Without a stream it is a notice of ipexctl."""
        self.added += 1
        entry = LogLine(self.added, text, stream, now)
        self.entries.append(entry)
        return entry


def newest(entries: Sequence[LogLine], ranks: RankSet) -> Iterator[LogLine]:
    """Yield the lines of these ranks and notices, the newest first."""
    for entry in reversed(entries):
        if entry.stream is None or ranks.has_all or any(rank in ranks for rank in entry.ranks):
            yield entry


def summary_of(line: str) -> str | None:
    """Return a text for a warning that each torch rank prints several times, where a node's address has no name; else
    None.
    """
    if (match := _NAMELESS_ADDRESS.search(line)) is None:
        return None
    return Fix(
        f"torch: the addresses of nodes have no names (err={match[1]}), which is harmless: `ipexctl logs` has the lines"
    )


def decode_line(line: bytes) -> str:
    """Return the line as text of bounded length. Colors are kept."""
    return neutralise(line[:_LONGEST_LINE].decode("utf-8", "replace")).expandtabs(8)


class Row:
    """One rank."""

    def __init__(self, rank: int) -> None:
        self.status = RankStatus(rank, "")
        self.last = ""
        """Last line that it printed."""
        self.unfinished: tuple[str, float] | None = None
        """A line that is not complete yet, and when it was first seen; None if there is none."""
        self.rate = 0.0
        """Lines per second."""
        self.streams: dict[StreamName, NewestLines] = {"stdout": NewestLines(), "stderr": NewestLines()}
        self._counted = 0

    @property
    def lines(self) -> int:
        """Number of all lines so far."""
        return self.streams["stdout"].lines + self.streams["stderr"].lines

    def measure(self, seconds: float) -> None:
        """Measure the lines per second, smoothed. `seconds`: since the last measurement."""
        fresh, self._counted = (self.lines - self._counted) / seconds, self.lines
        self.rate = fresh if not self.rate else 0.5 * self.rate + 0.5 * fresh
        if self.rate < 0.05:
            self.rate = 0.0


class RunState:
    """What the live view shows."""

    def __init__(self, status: RunStatus, controls: Controls | None = None, tag: str = "") -> None:
        self.status = status
        self.tag = tag
        self.controls = controls or Controls()
        self.rows: dict[int, Row] = {}
        self.figures = Figures()
        self.folded = FoldedLog()
        self.left_out = 0
        """Lines that were dropped because they came too fast."""
        self.late = 0
        """Lines that the ranks have printed and that have not arrived: many after a late attach or over a slow link."""
        self.ended: RunEnded | None = None
        """The end of the run; None while it is followed."""
        self.changed = True
        """True if something must be drawn. The view sets it to False."""
        self.began: float | None = None
        """Time of the first tick; None before it."""
        self._last_event: float | None = None
        """Time of the last event from node0, by ticks."""
        self._has_new_event = False
        self._timed: tuple[float | None, float] | None = None
        """`elapsed` of the status, and the time of the tick that saw it first."""
        self._updated: dict[tuple[int, StreamName], None] = {}
        """Streams with new output since the last tick, in order."""
        self._notices: list[str] = []
        self._shown_notes = NoteFilter()
        self._measured: float | None = None
        self._paused_entries: list[LogLine] | None = None
        """The log as it was when the user held it; None if it is not held."""
        self._apply_status(status)

    @property
    def lines(self) -> int:
        """Number of all lines so far."""
        return sum(row.lines for row in self.rows.values())

    @property
    def rate(self) -> float:
        """Lines per second of all ranks."""
        return sum(row.rate for row in self.rows.values())

    def feed(self, event: RunUpdate) -> None:
        """Take an update."""
        self.changed = self.changed or not isinstance(event, RunStatus) or _states(event) != _states(self.status)
        self._has_new_event = self._has_new_event or not isinstance(event, Notice)
        if isinstance(event, Chunk):
            self._row(event.rank).streams[event.stream].feed(event.data)
            self._updated[event.rank, event.stream] = None
        elif isinstance(event, RunStatus):
            self._apply_status(event)
        elif isinstance(event, Note):
            if text := self._shown_notes.text_of(event):
                self._notices.append(printable(text))
        elif isinstance(event, Notice):
            self._notices += map(printable, notice_text(event).split("\n"))
        else:
            self.ended = event
            if event.status is not None:
                self._apply_status(event.status)

    def tick(self, now: float) -> None:
        """Read new output, and measure. `now`: seconds since the epoch."""
        self.began = now if self.began is None else self.began
        if self._timed is None or self._timed[0] != self.status.elapsed:
            self._timed = (self.status.elapsed, now)
        if self._has_new_event or self._last_event is None:
            self._last_event, self._has_new_event = now, False
        self.folded.close_window(now)
        updated, self._updated = list(self._updated), {}
        limit = max(2, _LINES_PER_TICK // max(1, len(updated)))
        for rank, stream in updated:
            self._read_stream(rank, stream, limit, now)
        for row in self.rows.values():
            if row.unfinished is not None and now - row.unfinished[1] >= _UNFINISHED_SECONDS:
                row.last, row.unfinished = row.unfinished[0], None
                self.changed = True
        for text in self._notices:
            self.folded.append(text, None, now)
        self._notices = []
        if self._measured is None:
            self._measured = now
        elif now - self._measured >= _RATE_SECONDS:
            for row in self.rows.values():
                row.measure(now - self._measured)
            self._measured = now

    def entries(self) -> Sequence[LogLine]:
        """Return the lines of the log, or those from when the user held it."""
        if not self.controls.paused:
            self._paused_entries = None
            return self.folded.entries
        if self._paused_entries is None:
            self._paused_entries = list(self.folded.entries)
        return self._paused_entries

    @property
    def behind(self) -> int:
        """Number of lines that came since the user held the log."""
        return self.folded.added - self._paused_entries[-1].number if self._paused_entries else 0

    def last_lines(self, limit: int) -> list[str]:
        """Return the last lines, to print after the view closes: of the rank that failed first, or of all."""
        first = self.status.first_failure
        rank = None if first is None else first.rank
        ranks = EVERY_RANK if rank is None else RankSet((range(rank, rank + 1),))
        entries = list(islice(newest(self.folded.entries, ranks), limit))[::-1]
        return [f"[{entry.label}] {strip_colors(entry.text)}" if entry.stream else entry.text for entry in entries]

    def elapsed(self, now: float) -> float:
        """Return the seconds of the run.

        In records without them, count from the first tick if node0's clock is ahead.
        """
        if self.status.started is None:
            return now - (self.began or now)
        if self.status.ended is not None:
            return self.status.took or 0.0
        if self.status.elapsed is not None:
            return self.status.elapsed + self.since_status(now)
        return now - min(self.status.started, self.began or now)

    def since_status(self, now: float) -> float:
        """Return the seconds since the last status."""
        return now - (self._timed[1] if self._timed is not None else now)

    def silent(self, now: float) -> float:
        """Return the seconds since the last event from node0, which sends one every four seconds while ranks run; else
        0.
        """
        sends_status = self.status.state in {"starting", "running"} and any(
            row.status.state == "running" for row in self.rows.values()
        )
        return now - (self._last_event or now) if sends_status else 0.0

    def _row(self, rank: int) -> Row:
        """Return the row of a rank, which is made if there is none."""
        row = self.rows.get(rank)
        if row is None:
            row = self.rows[rank] = Row(rank)
            self.rows = dict(sorted(self.rows.items()))
        return row

    def _apply_status(self, status: RunStatus) -> None:
        """Take over a status."""
        self.status = status
        for rank in status.ranks:
            self._row(rank.rank).status = rank
        printed = sum((rank.figures.out_lines or 0) + (rank.figures.err_lines or 0) for rank in status.ranks)
        self.late = max(0, printed - self.lines)
        if status.state in FINAL:
            self.controls.stopping = False

    def _read_stream(self, rank: int, stream: StreamName, limit: int, now: float) -> None:
        """Add the newest lines of a stream to the log, at most `limit`, and read the figures in them."""
        row = self.rows[rank]
        lines, dropped, unfinished = row.streams[stream].take(limit)
        is_bar = row.streams[stream].is_bar
        self.left_out += dropped
        for line, count in row.streams[stream].samples:
            self.figures.read_line(rank, strip_colors(decode_line(line)), count=count)
        row.streams[stream].samples.clear()
        text = ""
        for line in lines:
            text = decode_line(line)
            if (summary := summary_of(text)) is not None:
                self.folded.summarise(rank, stream, summary, now)
            else:
                self.folded.add(rank, stream, text, now)
            self.figures.read_line(rank, strip_colors(text))
        newest = strip_colors(decode_line(unfinished)).strip()
        if newest:
            self.figures.read_line(rank, newest, unfinished=True)
        row.unfinished = (newest, now) if newest and not is_bar else None
        row.last = (newest if is_bar else "") or strip_colors(text).strip() or row.last


def _states(status: RunStatus) -> list[str]:
    """Return the states of the run and its ranks."""
    return [status.state, *(rank.state for rank in status.ranks)]
