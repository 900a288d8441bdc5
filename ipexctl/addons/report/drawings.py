"""Draw a run as SVG: its phases, its curves, the grid of ranks, the figures of hosts. Each drawing has its table.

- Curves, grid and phases have the same left and right edges, so a moment has the same x in all of them. `page.js`
  zooms them together and repeats LEFT, RIGHT and WIDTH; change them in both files. The small curves of hosts stand
  side by side and do not zoom.
- All cells of the grid with one style are a single path. With an element for each cell, the page of a run with 1,000
  ranks would have up to 120,000 elements.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

from ipexctl.addons.report.markup import (
    Markup,
    clock_text,
    duration_text,
    element,
    escape,
    host_labels,
    join_markup,
    number_text,
    path_data,
    quantity,
    short,
    time_ticks,
    value_ticks,
)
from ipexctl.addons.report.measurements import HostCurves, PhaseKind, RankGrid, RankRow, RunPhase
from ipexctl.addons.report.page import TimeCurve
from ipexctl.run.why.read_snapshot import PrintedNumber

LEFT, RIGHT, WIDTH = 118, 944, 960
"""Edges of the plots, and width of a drawing, in units of the SVG's viewBox."""
PLOT: Final = RIGHT - LEFT
"""Width of the plots."""
_AXIS_HEIGHT: Final = 26
_CURVE_HEIGHT: Final = 150
_FEW_HOSTS: Final = 16
"""With more hosts than this, each gets a lower row."""
_TABLE_ROWS: Final = 24
"""The table below a curve has at most this many rows."""
_SHARE_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_"
"""The digits of a share from 0 to 1 in 64 steps; `page.js` has the same text."""
_UNKNOWN_SHARE: Final = "."
WORK_LEVELS: Final = 5
"""Number of blues, styles `w0` to `w4`."""
WAIT_LEVELS: Final = 3
"""Number of oranges, styles `d0` to `d2`."""
_MIN_NUMBERED_ROW: Final = 11.5
"""Height of a grid's row from which the number of its rank fits beside it."""
_SHOWS_WAITING_FROM: Final = 0.1
"""Share of waiting from which a cell shows the waiting instead of the work."""
_PHASE_NAMES: Final[dict[PhaseKind, str]] = {
    "checks": "Checks",
    "sync": "Sync",
    "start": "Start",
    "checkpoint": "Checkpoint",
    "import": "Import, first step",
    "warm-up": "Warm-up",
    "steps": "Steps",
    "script": "Script",
    "silent": "No output",
    "restart": "Restart",
    "lost": "Wait for a lost host",
    "end": "After the steps",
}


_UNLABELLED: Final[tuple[PhaseKind, ...]] = ("silent", "warm-up", "checkpoint", "lost")
"""Phases without a text in their bar, because their colours have too little contrast for it."""


def figure(number: int, title: str, drawing: Markup, table: Markup, note: Markup | None = None) -> Markup:
    """Return a section with a heading, the drawing, and the table in a closed `details` element.

    `number` makes the id of the heading unique in the page. `page.js` writes the values under the cursor into the
    empty `readout` paragraph.
    """
    heading = element("h2", escape(title), id=f"t{number}")
    readout = element("p", class_="readout")
    behind = element("details", element("summary", escape(f"Table: {title}")), make_scrollable(table, title))
    shown = element(
        "div", drawing, class_="wide"
    )  # scrolls on a narrow screen, where its texts would otherwise be too small
    return element(
        "section", heading, note or join_markup(), shown, readout, behind, class_="figure", aria_labelledby=f"t{number}"
    )


def wide(content: Markup, title: str) -> Markup:
    """Return the content in a box that scrolls sideways on a narrow screen, also with the keyboard."""
    return element("div", content, class_="wide", tabindex="0", role="region", aria_label=title)


def make_scrollable(content: Markup, title: str) -> Markup:
    """Return a table in a box that scrolls if the table is too high."""
    return element("div", content, class_="scroll", tabindex="0", role="region", aria_label=title)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], name: str, style: str = "values") -> Markup:
    """Return a table with the caption `name`; the first cell of each row is the heading of the row."""
    top = element("tr", *(element("th", escape(cell), scope="col") for cell in head))
    body = (
        element(
            "tr",
            element("th", escape(row[0]), scope="row"),
            *(element("td", escape(cell.replace(" %", "\N{NO-BREAK SPACE}%"))) for cell in row[1:]),
        )
        for row in rows
    )
    caption = element("caption", escape(name))
    return element("table", caption, element("thead", top), element("tbody", *body), class_=style)


def _svg(height: float, label: str, *children: Markup, **data: str | float) -> Markup:
    """Return a drawing of the full width. `data` are attributes that `page.js` reads, such as `data_span`."""
    box = f"0 0 {WIDTH} {short(height)}"
    return element("svg", *children, viewBox=box, role="img", aria_label=label, tabindex="0", class_="chart", **data)


def _plot(top: float, height: float, *children: Markup) -> Markup:
    """Return the inner part of a drawing, which `page.js` stretches sideways in a zoom."""
    box = f"{LEFT} 0 {PLOT} {short(height)}"
    attributes = {"preserveAspectRatio": "none", "class_": "plot", "viewBox": box}
    return element("svg", *children, x=LEFT, y=top, width=PLOT, height=height, **attributes)


def _restarts(seconds: Sequence[float], span: float, height: float) -> Iterator[Markup]:
    """Yield a vertical line for each restart."""
    for at in seconds:
        path = path_data(f"M{short(LEFT + at / span * PLOT)} 0V{short(height)}")
        yield element("path", element("title", escape("restart")), d=path, class_="again")


def _time_axis(span: float, top: float, bottom: float) -> Markup:
    """Return vertical lines with their times below them; `page.js` redraws both after a zoom."""
    marks = []
    for at, label in time_ticks(span):
        x = LEFT + at / span * PLOT
        marks.append(element("path", d=path_data(f"M{short(x)} {short(top)}V{short(bottom)}"), class_="grid"))
        anchor = "end" if x > RIGHT - 20 else "middle"
        marks.append(element("text", escape(label), x=x, y=bottom + 16.0, text_anchor=anchor))
    return element("g", *marks, class_="times", data_top=top, data_bottom=bottom)


def _value_axis(ticks: Sequence[float], top: float, bottom: float, unit: str) -> Markup:
    """Return horizontal lines with their values left of them, and the unit turned by 90 degrees."""
    parts = []
    for tick in ticks:
        y = bottom - (tick - ticks[0]) / (ticks[-1] - ticks[0]) * (bottom - top)
        parts.append(element("path", d=path_data(f"M{LEFT} {short(y)}H{RIGHT}"), class_="grid"))
        parts.append(element("text", escape(number_text(tick)), x=LEFT - 8, y=y + 4.0, text_anchor="end"))
    middle = (top + bottom) / 2
    turned = f"rotate(-90 44 {short(middle)})"
    parts.append(element("text", escape(unit), x=44, y=middle, text_anchor="middle", transform=turned, class_="unit"))
    return join_markup(*parts)


def phases(number: int, parts: Sequence[RunPhase], span: float) -> Markup:
    """Return the section with the phases as bars on one line, a restart as a vertical line, and their table.

    The silence at a run's end is a thin bar below the others, because it overlaps with another phase.
    """
    bar, shapes = 24.0, []
    for phase in parts:
        x, width = LEFT + phase.begin / span * PLOT, (phase.end - phase.begin) / span * PLOT
        if phase.kind == "restart":
            shapes.append(element("path", d=path_data(f"M{short(x)} 2V40"), class_="p-restart"))
            continue
        y, tall = (bar + 8, 6.0) if phase.kind == "silent" else (4.0, bar)
        shapes.append(element("rect", x=x, y=y, width=max(width, 1.0), height=tall, class_=f"p-{phase.kind}"))
        label = _PHASE_NAMES[phase.kind]
        if phase.kind not in _UNLABELLED and width > 7.0 * len(label):
            style = f"in-{phase.kind}"
            shapes.append(
                element("text", escape(label), x=x + width / 2, y=bar - 3.0, text_anchor="middle", class_=style)
            )
    drawing = _svg(66.0, "Phases of the run", *shapes, _time_axis(span, 42.0, 46.0))
    heading = element("h2", escape("Phases"), id=f"t{number}")
    shown = element("div", drawing, class_="wide")
    return element("section", heading, shown, _phase_table(parts), class_="long", aria_labelledby=f"t{number}")


def _phase_table(parts: Sequence[RunPhase]) -> Markup:
    head = (element("th", escape(cell), scope="col") for cell in ("Phase", "Begins", "Lasts", "What happens"))
    body = (
        element(
            "tr",
            element("th", _swatch(f"p-{phase.kind}"), escape(_PHASE_NAMES[phase.kind]), scope="row", class_="key"),
            element("td", escape(clock_text(phase.begin))),
            element("td", escape("" if phase.kind == "restart" else duration_text(phase.end - phase.begin))),
            element("td", escape(phase.text)),
        )
        for phase in parts
    )
    return wide(
        element("table", element("thead", element("tr", *head)), element("tbody", *body), class_="phases"),
        "Table of the phases",
    )


def _swatch(style: str) -> Markup:
    return element("svg", element("rect", width=14, height=14, class_=style), viewBox="0 0 14 14", aria_hidden="true")


def legend(keys: Sequence[tuple[str, str]]) -> Markup:
    """Return a list of coloured squares, from pairs of a style and its label."""
    return element("ul", *(element("li", _swatch(style), escape(label)) for style, label in keys), class_="legend")


def line_path(
    values: Sequence[float | None], maximum: float, height: float, minimum: float = 0.0, bridged: int = 0
) -> str:
    """Return the path of a line through the known values, with a gap where values are None.

    `bridged`: number of successive columns without a value that do not make a gap. A value between two gaps becomes a
    dot.
    """
    step, commands, is_drawing = PLOT / len(values), [], False
    missing = 0
    for column, value in enumerate(values):
        if value is None:
            missing += 1
            is_drawing = is_drawing and missing <= bridged
            continue
        missing = 0
        x, y = LEFT + (column + 0.5) * step, height - _share(value, minimum, maximum) * height
        commands.append(f"{'L' if is_drawing else 'M'}{short(x)} {short(y)}")
        is_last_before_gap = column + 1 == len(values) or values[column + 1] is None
        if not is_drawing and is_last_before_gap:
            commands.append("h.1")
        is_drawing = True
    return path_data("".join(commands))


def _share(value: float, minimum: float, maximum: float) -> float:
    """Return where the value lies between minimum (0) and maximum (1)."""
    return min(1.0, max(0.0, (value - minimum) / (maximum - minimum)))


def band_path(low: Sequence[float | None], high: Sequence[float | None], maximum: float, height: float) -> str:
    """Return the path of the area between two lines, in a piece for each stretch of columns where both are known."""
    commands, step = [], PLOT / max(1, len(low))
    for columns in _known_stretches(low, high):
        outline = [(column, high[column] or 0.0) for column in columns]
        outline += [(column, low[column] or 0.0) for column in reversed(columns)]
        points = (
            f"{short(LEFT + (column + 0.5) * step)} {short(height - _share(value, 0.0, maximum) * height)}"
            for column, value in outline
        )
        commands.append(f"M{'L'.join(points)}Z")
    return path_data("".join(commands))


def _known_stretches(low: Sequence[float | None], high: Sequence[float | None]) -> Iterator[list[int]]:
    """Yield each longest sequence of adjacent columns in which both values are known."""
    columns: list[int] = []
    for column, (low_value, high_value) in enumerate(zip(low, high, strict=True)):
        if low_value is not None and high_value is not None:
            columns.append(column)
        elif columns:
            yield columns
            columns = []
    if columns:
        yield columns


def curve(number: int, shown: TimeCurve, span: float, restarts: Sequence[float] = ()) -> Markup:
    """Return the section of one curve, with its band if it has one. `span`: seconds from left to right."""
    known = [value for value in (*shown.values, *shown.high) if value is not None]
    ticks = value_ticks(max(known, default=0.0), min(known, default=0.0))
    maximum, top, bottom = ticks[-1], 8.0, 8.0 + _CURVE_HEIGHT
    shapes = []
    if shown.low:
        area = band_path(shown.low, shown.high, maximum, _CURVE_HEIGHT)
        shapes.append(element("path", d=area, class_="band"))
    shapes.append(
        element("path", d=line_path(shown.values, maximum, _CURVE_HEIGHT, ticks[0], shown.bridged), class_="line")
    )
    drawing = _svg(
        bottom + _AXIS_HEIGHT,
        f"{shown.title} over time, in {shown.unit or 'no unit'}",
        _value_axis(ticks, top, bottom, shown.unit),
        _time_axis(span, top, bottom),
        _plot(top, _CURVE_HEIGHT, *shapes, *_restarts(restarts, span, _CURVE_HEIGHT)),
        data_span=span,
        data_values=",".join("" if value is None else number_text(value) for value in shown.values),
        data_unit=shown.unit,
    )
    return figure(number, shown.title, drawing, _curve_table(shown))


LINES: Final = 6
"""Number of colours for the lines of runs, styles `o0` to `o5`; a seventh run gets the first one again."""


MOST_POINTS: Final = 400
"""Limit on the points of one line of `overlay`, and one more for the last."""


def overlay(runs: Sequence[tuple[str, Sequence[PrintedNumber]]]) -> Markup:
    """Draw the losses of several runs over their steps, from pairs of a run's name and its losses.

    The x axis counts the printed losses instead of steps if a run prints losses without a step, or not in the order
    of their steps.
    """
    has_steps = all(_are_ascending([loss.step for loss in losses]) for _, losses in runs)
    lines = []
    for _, losses in runs:
        steps = [(loss.step or 0.0) if has_steps else number for number, loss in enumerate(losses, 1)]
        lines.append([(step, loss.value) for step, loss in zip(steps, losses, strict=True)])
    all_steps, all_values = zip(*chain.from_iterable(lines), strict=True)
    value_marks, step_marks = value_ticks(max(all_values), min(all_values)), value_ticks(max(all_steps))
    bottom, shapes = 8.0 + _CURVE_HEIGHT, []
    for number, line in enumerate(lines):
        style = f"o{number % LINES}"
        points = [
            (
                LEFT + step / step_marks[-1] * PLOT,
                bottom - _share(value, value_marks[0], value_marks[-1]) * _CURVE_HEIGHT,
            )
            for step, value in _thin_out(line)
        ]
        if len(points) > 1:
            path = path_data("M" + "L".join(f"{short(x)} {short(y)}" for x, y in points))
            shapes.append(element("path", d=path, class_=f"line {style}"))
        elif points:
            ((x, y),) = points
            shapes.append(element("circle", cx=x, cy=y, r=3, class_=style))
    for mark in step_marks:
        x = LEFT + mark / step_marks[-1] * PLOT
        shapes.append(element("text", escape(number_text(mark)), x=x, y=bottom + 16.0, text_anchor="middle"))
    title = f"Losses over {'steps' if has_steps else 'the number of losses'}"
    drawing = _svg(bottom + _AXIS_HEIGHT, title, _value_axis(value_marks, 8.0, bottom, "loss"), *shapes)
    keys = legend([(f"o{number % LINES}", f"loss of {run}") for number, (run, _) in enumerate(runs)])
    return join_markup(element("h3", escape(title)), keys, element("div", drawing, class_="wide"))


def _are_ascending(steps: Sequence[float | None]) -> bool:
    """True if all steps are known and none is smaller than an earlier one. A step of 0 may be anywhere."""
    counted = [step for step in steps if step]
    return None not in steps and counted == sorted(counted)


def _thin_out(line: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return every n-th point, so that about MOST_POINTS remain, and always the last point."""
    interval = math.ceil(len(line) / MOST_POINTS) or 1
    return [*line[:-1:interval], *line[-1:]]


def _curve_table(shown: TimeCurve) -> Markup:
    """Return the means of equal pieces of the curve, each with the time at which the piece begins."""
    size = -(-len(shown.values) // _TABLE_ROWS)
    rows = []
    for at in range(0, len(shown.values), size):
        known = [value for value in shown.values[at : at + size] if value is not None]
        cell = number_text(statistics.fmean(known)) if known else "-"
        rows.append((clock_text(at * shown.columns.width), cell))
    return table(("From", f"{shown.unit or 'value'}, mean"), rows, shown.title)


def grid(number: int, ranks: RankGrid, span: float, restarts: Sequence[float] = ()) -> Markup:
    """Return the section with a row for each rank and a cell for each column of time.

    Blue cells show work, orange ones waiting; in grey ones no step ended.
    """
    positions, height_in_rows = _row_positions(ranks.rows)
    row_height = min(18.0, max(1.0, 460 / height_in_rows))
    top, height = 8.0, row_height * height_in_rows
    maximum = _busiest(ranks.rows)
    cells = _cell_paths(ranks.rows, positions, maximum)
    scale = f"translate({LEFT} {short(row_height / 2)}) scale({PLOT / ranks.columns.count:.4f} {row_height:.4f})"
    paths = (element("path", d=path_data("".join(path)), class_=style) for style, path in cells.items() if path)
    shapes = element("g", *paths, transform=scale, class_="cells")
    drawing = _svg(
        top + height + _AXIS_HEIGHT,
        "Work and waiting of each rank over time",
        _row_labels(ranks.rows, positions, top, row_height),
        _plot(top, height, shapes, *_restarts(restarts, span, height)),
        _time_axis(span, top + height, top + height + 4),
        data_span=span,
        data_most=f"{maximum:.3f}",
        data_rows=" ".join(map(str, positions)),
        data_height=f"{row_height:.4f}",
        data_cells=" ".join(_encode_row(row, maximum) for row in ranks.rows),
    )
    middle = WORK_LEVELS // 2
    keys = [
        ("w0", f"works below {100 * maximum / WORK_LEVELS:.0f} % of the time"),
        (f"w{middle}", f"from {100 * maximum * middle / WORK_LEVELS:.0f} %"),
        (f"w{WORK_LEVELS - 1}", f"from {100 * maximum * (WORK_LEVELS - 1) / WORK_LEVELS:.0f} %"),
        ("d0", "waits for data or for other ranks: from 10 %"),
        (f"d{WAIT_LEVELS - 1}", "from 70 %"),
        ("idle", "no step ended"),
    ]
    title = "Work and waiting of each rank"
    return figure(number, title, drawing, _rank_table(ranks.rows), legend(keys))


def _row_positions(rows: Sequence[RankRow]) -> tuple[list[int], int]:
    """Return the position of each row, and the height of the grid, both counted in rows.

    A gap of one row separates hosts if there are at least two ranks for each host.
    """
    hosts = len({row.host for row in rows})
    is_spaced = 1 < hosts <= len(rows) // 2
    positions, position = [], 0
    for previous, row in zip((None, *rows), rows, strict=False):
        if previous is not None and previous.host != row.host and is_spaced:
            position += 1
        positions.append(position)
        position += 1
    return positions, position


def _busiest(rows: Sequence[RankRow]) -> float:
    """Return the share of work that only a fiftieth of the cells exceeds; it gets the strongest blue. At least 0.1."""
    used = sorted(cpu for row in rows for cpu in row.cpu if cpu is not None)
    return max(used[int(0.98 * (len(used) - 1))] if used else 0.0, 0.1)


def _cell_paths(rows: Sequence[RankRow], positions: Sequence[int], maximum: float) -> dict[str, list[str]]:
    """Return style → pieces of its path. Adjacent cells of one style become one horizontal line, a row wide.

    A piece is `M3 0h4` (a line of four cells from column 3 of row 0), or `m2 0h1` if it continues a row: two cells
    after the end of the piece before.
    """
    styles = [f"w{n}" for n in range(WORK_LEVELS)] + [f"d{n}" for n in range(WAIT_LEVELS)] + ["idle"]
    paths: list[list[str]] = [[] for _ in styles]
    ends = [0] * len(styles)
    for position, row in zip(positions, rows, strict=True):
        last, begin = -1, 0
        is_first_of_row = [True] * len(styles)
        levels = [*_cell_levels(row, maximum), -1]
        for column, level in enumerate(levels):
            if level == last:
                continue
            if last >= 0:
                move = f"M{begin} {position}" if is_first_of_row[last] else f"m{begin - ends[last]} 0"
                paths[last].append(f"{move}h{column - begin}")
                is_first_of_row[last], ends[last] = False, column
            last, begin = level, column
    return dict(zip(styles, paths, strict=True))


def _cell_levels(row: RankRow, maximum: float) -> Iterator[int]:
    """Yield the style of each cell as its index in `_cell_paths`; -1 for a cell that is not drawn.

    A rank without any step has no grey cells.
    """
    for cpu, waits, steps in zip(row.cpu, row.waits, row.steps_per_s, strict=True):
        if steps is None and cpu is None:
            yield -1
        elif waits is not None and waits >= _SHOWS_WAITING_FROM:
            yield WORK_LEVELS + (2 if waits >= 0.7 else 1 if waits >= 0.4 else 0)
        elif not steps and row.steps:
            yield WORK_LEVELS + WAIT_LEVELS
        elif cpu is None:
            yield -1
        else:
            yield min(WORK_LEVELS - 1, int(cpu / maximum * WORK_LEVELS))


def _encode_row(row: RankRow, maximum: float) -> str:
    """Return two digits for each cell, as `page.js` reads them: the shares of work and of waiting, `.` if unknown."""
    return "".join(
        _share_digit(None if cpu is None else cpu / maximum) + _share_digit(waits)
        for cpu, waits in zip(row.cpu, row.waits, strict=True)
    )


def _share_digit(share: float | None) -> str:
    return _UNKNOWN_SHARE if share is None else _SHARE_DIGITS[min(63, max(0, round(share * 63)))]


def _row_labels(rows: Sequence[RankRow], positions: Sequence[int], top: float, row_height: float) -> Markup:
    """Return the numbers of ranks, if the rows are high enough, and the names of hosts.

    A name that would overlap with the name above is left out.
    """
    has_numbers = row_height >= _MIN_NUMBERED_ROW
    edge = LEFT - 8 - (26 if has_numbers else 0)
    labels = host_labels((row.host for row in rows), 12 if has_numbers else 17)
    spans: dict[str, tuple[int, int]] = {}
    for row, position in zip(rows, positions, strict=True):
        spans[row.host] = (spans.get(row.host, (position, 0))[0], position)
    texts, free_from = [], 0.0
    if has_numbers:
        for row, position in zip(rows, positions, strict=True):
            y = top + (position + 0.5) * row_height + 4
            texts.append(element("text", escape(str(row.rank)), x=LEFT - 6, y=y, text_anchor="end"))
    for host, (first, last) in spans.items():
        y = top + (first + last + 1) / 2 * row_height
        if y - 5.5 < free_from:
            continue
        free_from = y + 5.5
        texts.append(element("text", escape(labels[host]), x=edge, y=y + 4, text_anchor="end"))
    return join_markup(*texts)


def _rank_table(rows: Sequence[RankRow]) -> Markup:
    """Return the table of the ranks, with means over the whole run; `-` for what was not measured."""

    def number(value: float | None) -> str:
        return "-" if value is None else number_text(value)

    def parts(row: RankRow) -> Iterator[str]:
        """Yield the shares of working, waiting and the rest; if all are known, they add up to 100 %.

        A rank that waits on a processor is measured as both, so its work is cut to what waiting leaves.
        """
        waits = round(100 * (row.mean_wait or 0.0))
        works = min(round(100 * (row.mean_cpu or 0.0)), 100 - waits)
        yield "-" if row.mean_cpu is None else f"{works} %"
        yield "-" if row.mean_wait is None else f"{waits} %"
        yield "-" if row.mean_cpu is None else f"{100 - works - waits} %"

    cells = (
        (
            str(row.rank),
            row.host,
            number(row.throughput and row.throughput.steps_per_s),
            number(row.throughput and row.throughput.samples_per_s),
            *parts(row),
            "-" if row.most_memory is None else quantity(row.most_memory, "B"),
        )
        for row in rows
    )
    head = ("Rank", "Host", "Steps/s", "Samples/s", "Works", "Waits", "Else", "Memory, most")
    return table(head, cells, "Ranks. Else: sleeps, reads and writes files, waits for a processor or unmeasured")


class _Measure(NamedTuple):
    label: str
    unit: str
    values: Sequence[Sequence[float | None]]
    """The curve of each host; empty for a host that did not measure it."""


def hosts(number: int, curves: Sequence[HostCurves], span: float) -> Markup:
    """Return the section with two columns of small curves, memory and network, and a row for each host.

    All curves of a column have the same scale, which its heading names.
    """
    measures = (
        _Measure("Memory of the ranks", "B", [shown.memory for shown in curves]),
        _Measure("Sent", "B/s", [shown.sent for shown in curves]),
    )
    gap, row, top = 22.0, 34.0 if len(curves) <= _FEW_HOSTS else 22.0, 26.0
    labels = host_labels((shown.host for shown in curves), 17)
    width = (PLOT - gap) / len(measures)
    shapes = []
    for column, measure in enumerate(measures):
        left = LEFT + column * (width + gap)
        known = [value for values in measure.values for value in values if value is not None]
        maximum = value_ticks(max(known, default=0.0))[-1]
        heading = (
            f"{measure.label}, 0 to {quantity(maximum, measure.unit)}" if known else f"{measure.label}: not measured"
        )
        shapes.append(element("text", escape(heading), x=left, y=14, class_="unit"))
        for line in range(len(curves)):
            base = top + (line + 1) * row - 6
            shapes.append(element("path", d=path_data(f"M{short(left)} {short(base)}h{short(width)}"), class_="grid"))
            if values := measure.values[line]:
                path = _small_path(values, maximum, left, width, base, row - 10)
                shapes.append(element("path", d=path, class_=f"line m{column}"))
    for line, shown in enumerate(curves):
        y = top + (line + 1) * row - 14
        shapes.append(element("text", escape(labels[shown.host]), x=LEFT - 8, y=y, text_anchor="end"))
    bottom = top + len(curves) * row
    for column in range(len(measures)):
        left = LEFT + column * (width + gap)
        shapes.append(element("text", escape("0"), x=left, y=bottom + 12))
        shapes.append(element("text", escape(duration_text(span)), x=left + width, y=bottom + 12, text_anchor="end"))
    box = f"0 0 {WIDTH} {short(bottom + 18)}"
    drawing = element(
        "svg", *shapes, viewBox=box, role="img", aria_label="Memory and network of each host", tabindex="0"
    )
    return figure(number, "Hosts", drawing, _host_table(curves))


def _small_path(
    values: Sequence[float | None], maximum: float, left: float, width: float, base: float, height: float
) -> str:
    """Return the path of a line from 0 to `maximum` that stands on `base`, with a gap where values are None."""
    step, commands, is_drawing = width / len(values), [], False
    for column, value in enumerate(values):
        if value is None:
            is_drawing = False
            continue
        x, y = left + (column + 0.5) * step, base - _share(value, 0.0, maximum) * height
        commands.append(f"{'L' if is_drawing else 'M'}{short(x)} {short(y)}")
        is_drawing = True
    return path_data("".join(commands))


def _host_table(curves: Sequence[HostCurves]) -> Markup:
    def mean_and_most(values: Sequence[float | None]) -> tuple[str, str]:
        known = [value for value in values if value is not None]
        return (number_text(statistics.fmean(known)), number_text(max(known))) if known else ("-", "-")

    rows = ((shown.host, *mean_and_most(shown.memory), *mean_and_most(shown.sent)) for shown in curves)
    head = ("Host", "Memory, mean", "most", "Sent/s, mean", "most")
    return table(head, rows, "Hosts")
