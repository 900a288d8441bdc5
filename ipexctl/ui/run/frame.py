"""The live view as a rich layout: header, ranks, log and keys. Pure: reads a `RunState`.

If the terminal is small, the log and the keys are dropped last. rich takes milliseconds to render the table, so header
and table are made at most twice a second.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from rich.box import ROUNDED
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.layout import Layout
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from ipexctl.node.common.records import KEEPS_TCP_STORE, TrainingProgress
from ipexctl.node.run.decisions.verdict import signal_name
from ipexctl.text import format_count, printable, readable, rough_duration
from ipexctl.ui.run.end_of_run import (
    duration,
    format_state_counts,
    moved_text,
    slow_text,
    still_text,
    throughput_forms,
    unheard_text,
)
from ipexctl.ui.run.figure_texts import sparkline
from ipexctl.ui.run.state import HELP, LogLine, Row, RunState, newest

_STATE_STYLE: Final = {
    "starting": "dim", "running": "green", "ok": "dim green", "failed": "bold red", "lost": "bold magenta",
    "stopped": "yellow", "unknown": "dim",
}  # fmt: skip
_ROWS_PER_ENTRY: Final = 4
"""Rows of the terminal that a line of output may take."""
_SILENT: Final = 9.0
"""Seconds without an event from node0 after which the view says so."""
_LATE: Final = 1000
"""The view says that it lags once it is this many lines and two seconds behind; less is still on the way."""
_TABLE_FROM: Final = 10
"""Least height of a terminal with a table."""
_PANEL_FROM: Final = 20
"""Least height of a terminal with a frame around the header."""
_PROGRESS_FROM: Final = 72
"""Least width of a terminal with a curve."""
_CURVE_WIDTH: Final = 60
_LEAST_DRAWN: Final = 8
"""Columns that a bar or curve needs."""
_GAP: Final = 2
_TOP_SECONDS: Final = 0.5
"""Seconds for which header and table are kept."""


class Frame:
    """Makes the layouts of a live view."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._top: list[Layout] = []
        self._top_key: tuple[object, ...] = ()

    def compose(self, width: int, height: int, now: float) -> Layout:
        """Return the layout of the whole terminal. `now`: the time of the tick."""
        state = self._state
        controls, states = state.controls, tuple(row.status.state for row in state.rows.values())
        key = (int(now / _TOP_SECONDS), width, height, controls.ranks, controls.stopping, state.status.state, states)
        if key != self._top_key:
            self._compose_top(width, height, now)
            self._top_key = key
        parts = [*self._top]
        if height > 3:
            parts.append(Layout(_log_title(state), size=1))
        if height > 1:
            parts.append(Layout(_help() if controls.mode == "help" else _Log(state)))
        screen = Layout()
        screen.split_column(*parts, Layout(_footer(state), size=1))
        return screen

    def _compose_top(self, width: int, height: int, now: float) -> None:
        """Make header and table."""
        header, header_height = _header(self._state, width, height, now)
        self._top = [Layout(_Held(header), size=header_height)] if header_height else []
        if height >= _TABLE_FROM:
            table, table_height = _ranks(self._state, width, max(3, (height - header_height - 3) // 2))
            self._top.append(Layout(_Held(table), size=table_height))


class _Held:
    """Something that rich renders only once."""

    def __init__(self, renderable: RenderableType) -> None:
        self._renderable = renderable
        self._segments: list[Segment] | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._segments is None:
            self._segments = list(console.render(self._renderable, options))
        return self._segments


def _header(state: RunState, width: int, height: int, now: float) -> tuple[RenderableType, int]:
    """Return the header and its height in rows."""
    run = f"run {printable(state.tag or state.status.id)}"
    if height <= 2:
        return "", 0
    if height < _PANEL_FROM:
        lines = _header_lines(state, width, now, run)[: None if height >= _TABLE_FROM else 1]
        return Group(*lines), len(lines)
    lines = _header_lines(state, width - 4, now, "", has_room=True)
    size = f"{format_count(state.status.nodes, 'node')}, {format_count(state.status.world_size, 'rank')}"
    panel = Panel(
        Group(*lines),
        box=ROUNDED,
        border_style="dim",
        title=Text(_head(printable(state.status.script), width - 8), "bold not dim"),
        title_align="left",
        subtitle=Text(f"{run}: {size}", "not dim", no_wrap=True, overflow="ellipsis"),
        subtitle_align="right",
    )
    return panel, len(lines) + 2


def _header_lines(state: RunState, width: int, now: float, run: str, *, has_room: bool = False) -> list[RenderableType]:
    """Return the lines of the header.

    `run`: its name; empty if the frame has it. `has_room`: True if a further line fits.
    """
    status = state.status
    name, style = ("stopping", "bold yellow") if state.controls.stopping else (status.state, _STATE_STYLE[status.state])
    text = Text.assemble((name, style), f"  {duration(state.elapsed(now))}")
    if status.attempt:
        text.append(f"  restart {status.attempt} of {status.restarts}{printable(moved_text(status))}", "yellow")
    if unheard := unheard_text(status, state.since_status(now)):
        text.append(f"  {printable(unheard)}", "bold yellow")
    if (silent := state.silent(now)) > _SILENT:
        text.append(f"  no answer from node0 for {rough_duration(silent)}", "bold yellow")
    if run:
        script = _head(printable(status.script), max(8, width - text.cell_len - cell_len(run) - 5))
        text = Text.assemble((script, "bold"), "  ", text)
    totals = [Text(run, "dim"), _totals(state)] if run else [_totals(state)]
    lines: list[RenderableType]
    if text.cell_len + 2 + totals[0].cell_len <= width:
        lines = [_ends(text, totals[0]), *map(_cut, totals[1:])]
    else:
        lines = list(map(_cut, [text, *totals[-1:]]))
    if slow := slow_text(status):
        lines.append(_cut(Text(printable(slow), "yellow")))
    return [*lines, *_progress(state, width, now, has_room=has_room)]


def _totals(state: RunState) -> Text:
    """Return states, lines per second, busy cores and memory of all ranks together."""
    ranks = [row.status for row in state.rows.values()]
    has_trouble = any(rank.state in {"failed", "lost"} for rank in ranks)
    parts = [f"{state.rate:,.0f} lines/s"]
    cpu, memory = sum(rank.figures.cpu or 0 for rank in ranks), sum(rank.figures.rss or 0 for rank in ranks)
    if cpu >= 5:
        parts.append(f"{cpu / 100:,.1f} cores busy")
    if memory:
        parts.append(f"memory {readable(memory)}")
    counts = format_state_counts(ranks)
    return Text.assemble((f"{counts}  " if counts else "", "bold red" if has_trouble else ""), "  ".join(parts))


def _progress(state: RunState, width: int, now: float, *, has_room: bool) -> list[RenderableType]:
    """Return loss, step and speed; shorter, or on two lines, if they do not fit.

    No speed is shown while the numbers do not move, or a host does not answer. `has_room`: True if a second line fits.
    """
    figures, status = state.figures, state.status
    progress = figures.over(status.progress) or TrainingProgress()
    still = still_text(status, state.since_status(now)) if status.state == "running" else ""
    is_known = not still and not status.unheard[0] and state.silent(now) <= _SILENT
    grid = Table.grid(padding=(0, _GAP, 0, 0), expand=True)
    cells: list[RenderableType] = []
    room = width

    def add(cell: RenderableType, ratio: int | None = None) -> None:
        """Add a cell to the line."""
        nonlocal room
        grid.add_column(no_wrap=True, ratio=ratio)
        cells.append(cell)
        room -= (cell.cell_len if isinstance(cell, Text) else _LEAST_DRAWN) + _GAP

    loss = progress.loss if figures.loss is None or math.isfinite(figures.loss) else figures.loss
    if loss is not None:
        add(Text(f"loss {loss:.4g}", "bold" if math.isfinite(loss) else "bold red"))
        if figures.curve.points and width >= _PROGRESS_FROM:
            add(_Curve(figures.curve.points), 1)
    if progress.epoch is not None and width >= _PROGRESS_FROM:
        add(Text(f"epoch {progress.epoch:g}" + (f"/{progress.epochs:g}" if progress.epochs else "")))
    if (done := progress.step) is not None:
        total = progress.steps
        add(Text(f"step {done:,}" + (f"/{total:,}" if total else "") + (still and f", {still}")))
        if total:
            add(_bar(done, total), 1)
            add(Text(f"{100 * done // total}%"))
    if (eta := status.eta) is not None and is_known:
        add(Text(f"{duration(eta)} left", "dim"))
    # Measured figures are of the complete run; a script may print anything.
    speeds = throughput_forms(status.throughput) or tuple(filter(None, (progress.speed,)))
    speeds = speeds if is_known else ()
    is_below = has_room and bool(cells and speeds) and cell_len(speeds[0]) > room
    fitting = [text for text in speeds if cell_len(text) <= (width if is_below or not cells else room)]
    if not cells or is_below:
        fitting = fitting or list(speeds[-1:])
    below: list[RenderableType] = [_cut(Text(fitting[0], "dim"))] if is_below else []
    if fitting and not is_below:
        add(Text(fitting[0], "dim"))
    if not cells:
        return below
    grid.add_row(*cells)
    return [grid, *below]


class _Curve:
    """A curve, as wide as rich lets it be."""

    def __init__(self, points: Sequence[float]) -> None:
        self._points = points

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(_CURVE_WIDTH, options.max_width)
        yield Text(sparkline(self._points, width, unicode=not options.ascii_only), "cyan", no_wrap=True)


def _bar(done: float, total: float, *, width: int | None = None, style: str = "green") -> ProgressBar:
    """Return a bar."""
    return ProgressBar(
        total=total, completed=done, width=width, style="bright_black", complete_style=style, finished_style=style
    )


def _ranks(state: RunState, width: int, height: int) -> tuple[RenderableType, int]:
    """Return the table of ranks and its height in rows."""
    rows = [row for row in state.rows.values() if row.status.rank in state.controls.ranks]
    shown = shown_rows(rows, height if len(rows) <= height else height - 1)
    hidden = [row for row in rows if row not in shown]
    host_width = min(max([4, *(cell_len(printable(row.status.host)) for row in rows)]), 12 if width < 100 else 28)
    bar_width = 6 if width < 100 else 12
    columns = [("rank", 4, True), ("host", host_width, False), ("state", 8, False)]
    columns += [("lines/s", 7, True)] if width >= 40 else []
    columns += [("CPU%", 5, True), ("", bar_width, False), ("memory", 7, True)] if width >= 60 else []
    # Gaps are part of the widths: padding would make rich render each cell twice.
    table = Table(box=None, expand=True, padding=0, header_style="dim")
    for name, column_width, is_number in columns:
        table.add_column(name.rjust(column_width) if is_number else name, width=column_width + 1, no_wrap=True)
    table.add_column("last line", ratio=1, no_wrap=True, overflow="ellipsis")
    busiest = max([100.0, *(row.status.figures.cpu or 0 for row in rows)])
    for row in shown:
        status, used = row.status, row.status.figures
        cells: list[RenderableType] = [
            Text(f"{status.rank:>4}"),
            Text(_middle(printable(status.host), host_width)),
            Text(_state_text(row), _STATE_STYLE[status.state]),
            Text(f"{_count(row.rate):>7}"),
            Text("" if used.cpu is None else f"{used.cpu:>5.0f}"),
            "" if used.cpu is None else _bar(used.cpu, busiest, width=bar_width, style="cyan"),
            Text("" if used.rss is None else f"{_memory(used.rss):>7}"),
        ]
        table.add_row(*cells[: len(columns)], Text(row.last))
    if hidden:
        rate = sum(row.rate for row in hidden)
        note = f"and {len(hidden)} more: {format_state_counts([row.status for row in hidden])}, {rate:,.0f} lines/s"
    elif not rows:
        note = "none of the chosen ranks is in this run" if state.rows else "no rank has started yet"
    else:
        return table, len(shown) + 1
    return Group(table, _cut(Text(f"{'':>4} {note}", "dim"))), len(shown) + 2


def shown_rows(rows: Sequence[Row], room: int) -> list[Row]:
    """Return the rows that fit: failed ranks first, then those with most output, some of every host.

    Ties are in rank order.
    """
    if len(rows) <= room:
        return list(rows)
    index_on_host: dict[int, int] = {}
    hosts: dict[str, int] = {}
    for row in rows:
        index_on_host[row.status.rank] = hosts[row.status.host] = hosts.get(row.status.host, -1) + 1

    def weight(row: Row) -> tuple[int, int, int, int]:
        """Return the sort key of a row."""
        # By magnitude: ranks of about the same rate would swap their rows all the time.
        busy = 1 + max(0, int(row.rate).bit_length() - 1) // 3 if row.rate else 0
        return _trouble(row), -busy, index_on_host[row.status.rank], row.status.rank

    chosen = sorted(rows, key=weight)[:room]
    return sorted(chosen, key=lambda row: (_trouble(row), row.status.rank))


def _trouble(row: Row) -> int:
    """Return 0 for a failed rank, and more the less a rank needs attention."""
    return {"failed": 0, "lost": 1, "running": 2, "starting": 2, "unknown": 2}.get(row.status.state, 3)


def _memory(size: float) -> str:
    """Format memory with at most seven characters, as `12.3 GB`. An exited rank has a few bytes, or none."""
    return readable(size) if size >= 1000 else "0 kB"


def _state_text(row: Row) -> str:
    """Return what the column of states shows; of a failed rank its signal or exit code."""
    status = row.status
    if status.state == "failed" and status.signal:
        return signal_name(status.signal)
    if status.state == "failed" and status.exit_code is not None:
        return f"exit {status.exit_code}"
    if status.figures.unheard is not None:
        return "unheard"
    return "ended" if status.state == "running" and status.figures.waits_in == KEEPS_TCP_STORE else status.state


def _log_title(state: RunState) -> Rule:
    """Return the line above the log: which ranks it shows, how many lines there are, and what is left out."""
    controls = state.controls
    parts = ["all ranks" if controls.ranks.has_all else f"ranks {controls.ranks}", format_count(state.lines, "line")]
    if state.late > max(_LATE, 2 * state.rate):
        parts.append(f"{state.late:,} lines behind the run")
    if controls.paused:
        parts.append("held" + (f", {state.behind:,} lines came since" if state.behind > 0 else ""))
    elif state.left_out:
        parts.append(f"{state.left_out:,} too fast to show; ipexctl logs has them all")
    style = "yellow" if controls.paused else "dim"
    return Rule(Text(", ".join(parts), "yellow" if controls.paused else ""), align="left", style=style)


class _Log:
    """The newest lines that fit."""

    def __init__(self, state: RunState) -> None:
        self._state = state

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.max_width, options.height or options.max_height
        rows: list[list[Segment]] = []
        for entry in self._entries():
            if len(rows) >= height:
                break
            rows[:0] = _entry_rows(entry, console, options, width)
        for row in rows[max(0, len(rows) - height) :]:
            yield from row
            yield Segment.line()

    def _entries(self) -> Iterator[LogLine]:
        """Return the lines to show, the newest first, from the place to which the user scrolled."""
        entries = newest(self._state.entries(), self._state.controls.ranks)
        for _ in range(self._state.controls.scrolled):
            next(entries, None)
        return entries


def _entry_rows(entry: LogLine, console: Console, options: ConsoleOptions, width: int) -> list[list[Segment]]:
    """Return the rows of a line of output. They are kept with the line as long as they are right."""
    key = (width, len(entry.ranks))
    if entry.rendered is None or entry.rendered[0] != key:
        text = Text("\n").join(_wrapped(entry, console, width))
        text.no_wrap = True
        entry.rendered = key, console.render_lines(text, options.update(height=None), pad=False)
    return entry.rendered[1]


def _wrapped(entry: LogLine, console: Console, width: int) -> list[Text]:
    """Wrap a line to at most four rows. All but the first are indented by the prefix."""
    if entry.stream is None:
        prefix = Text("ipexctl: ", "bold blue")
    elif entry.stream == "stderr":
        prefix = Text.assemble((f"[{entry.label}", "yellow"), (" err", "yellow dim"), ("] ", "yellow"))
    else:
        prefix = Text(f"[{entry.label}] ", "cyan")
    prefix.truncate(max(1, width // 2), overflow="ellipsis")
    indent = prefix.cell_len
    room = max(1, width - indent)
    text = Text.from_ansi(entry.text) if "\x1b" in entry.text else Text(entry.text, "dim" if entry.is_summary else "")
    rows = list(text[: room * (_ROWS_PER_ENTRY + 1)].wrap(console, room, overflow="fold")) or [Text()]
    if len(rows) > _ROWS_PER_ENTRY:
        last = rows[_ROWS_PER_ENTRY - 1]
        last.truncate(max(0, room - 2), overflow="crop")
        last.append(" …", "dim")
    return [
        Text.assemble(prefix if not index else " " * indent, row) for index, row in enumerate(rows[:_ROWS_PER_ENTRY])
    ]


def _footer(state: RunState) -> RenderableType:
    """Return the last line: a question, or the keys."""
    controls = state.controls
    if controls.mode == "filtering":
        hint = controls.error or "Enter shows them, Escape cancels"
        return _cut(Text.assemble(("show ranks: ", "bold"), controls.typed, ("_", "blink"), (f"   {hint}", "dim")))
    if controls.mode == "confirming":
        return _cut(Text("stop the run on every host? y/n", "bold yellow"))
    if controls.stopping:
        return _cut(Text("stopping every rank; Ctrl-C again exits without waiting", "yellow"))
    if not controls.keys:
        return _cut(Text("Ctrl-C stops the run on every host", "dim"))
    legend = Text()
    for key, action in (
        ("/", "ranks"),
        ("space", "continue" if controls.paused else "hold"),
        ("up/down", "scroll"),
        ("d", "detach"),
        ("s", "stop"),
        ("?", "help"),
    ):
        legend.append(f" {key} ", "reverse")
        legend.append(f" {action}  ")
    return _cut(legend)


def _help() -> RenderableType:
    """Return the help."""
    grid = Table.grid(padding=(0, 2))
    for key, action in HELP:
        grid.add_row(Text(key, "bold"), Text(action))
    return Padding(grid, (0, 2))


def _ends(left: Text, right: Text) -> Table:
    """Return a row with one text on the left and one on the right."""
    grid = Table.grid(expand=True)
    grid.add_column(no_wrap=True, ratio=1)
    grid.add_column(no_wrap=True, justify="right")
    grid.add_row(left, right)
    return grid


def _cut(text: Text) -> Text:
    """Return the text as one line, which ends in an ellipsis if it does not fit."""
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _head(line: str, width: int) -> str:
    """Shorten a command line: it then begins with the name of its script, without the directory."""
    if cell_len(line) <= width:
        return line
    first, space, rest = line.partition(" ")
    text = first.rpartition("/")[2] + space + rest
    return text if cell_len(text) <= width else text[: width - 1] + "…"


def _middle(text: str, width: int) -> str:
    """Cut a text in the middle: a host name has its name at the start and its number at the end."""
    if cell_len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def _count(rate: float) -> str:
    """Format a rate of lines with at most seven characters."""
    if rate >= 100_000:
        return f"{rate / 1000:,.0f}k"
    return f"{rate:,.0f}" if rate >= 9.95 or not rate else f"{rate:.1f}"
