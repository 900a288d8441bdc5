"""Drawings over time: phases, curves, the grid of ranks, host figures; each with its table. All have the same left and
right edges, so they show a moment at the same place. All cells of one grid level are a single path, which keeps a page
of 1,000 ranks small.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
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
PLOT: Final = RIGHT - LEFT
_AXIS: Final = 26
_CURVE_HEIGHT: Final = 150
_FEW_HOSTS: Final = 16
_TABLE_ROWS: Final = 24
_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_"
_NONE: Final = "."
WORK_LEVELS: Final = 5
WAIT_LEVELS: Final = 3
_NUMBERED_ROW: Final = 11.5
_WAITS_FROM: Final = 0.1
"""Share of waiting from which a cell shows the waiting instead of the work."""
_NAMES: Final[dict[PhaseKind, str]] = {
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
    """Content that scrolls sideways on a narrow screen; the keyboard can scroll it, too."""
    return element("div", content, class_="wide", tabindex="0", role="region", aria_label=title)


def make_scrollable(content: Markup, title: str) -> Markup:
    return element("div", content, class_="scroll", tabindex="0", role="region", aria_label=title)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], name: str, style: str = "values") -> Markup:
    """A table whose first column has the row headings."""
    top = element("tr", *(element("th", escape(cell), scope="col") for cell in head))
    body = (
        element(
            "tr",
            element("th", escape(row[0]), scope="row"),
            *(element("td", escape(c.replace(" %", "\N{NO-BREAK SPACE}%"))) for c in row[1:]),
        )
        for row in rows
    )
    caption = element("caption", escape(name))
    return element("table", caption, element("thead", top), element("tbody", *body), class_=style)


def _svg(height: float, label: str, *children: Markup, **data: str | float) -> Markup:
    box = f"0 0 {WIDTH} {short(height)}"
    return element("svg", *children, viewBox=box, role="img", aria_label=label, tabindex="0", class_="chart", **data)


def _plot(top: float, height: float, *children: Markup) -> Markup:
    box = f"{LEFT} 0 {PLOT} {short(height)}"
    attributes = {"preserveAspectRatio": "none", "class_": "plot", "viewBox": box}
    return element("svg", *children, x=LEFT, y=top, width=PLOT, height=height, **attributes)


def _restarts(seconds: Sequence[float], span: float, height: float) -> Iterator[Markup]:
    for at in seconds:
        path = path_data(f"M{short(LEFT + at / span * PLOT)} 0V{short(height)}")
        yield element("path", element("title", escape("restart")), d=path, class_="again")


def _time_axis(span: float, top: float, bottom: float) -> Markup:
    """Vertical lines with times below them; the script redraws both after a zoom."""
    marks = []
    for at, label in time_ticks(span):
        x = LEFT + at / span * PLOT
        marks.append(element("path", d=path_data(f"M{short(x)} {short(top)}V{short(bottom)}"), class_="grid"))
        anchor = "end" if x > RIGHT - 20 else "middle"
        marks.append(element("text", escape(label), x=x, y=bottom + 16.0, text_anchor=anchor))
    return element("g", *marks, class_="times", data_top=top, data_bottom=bottom)


def _value_axis(ticks: Sequence[float], top: float, bottom: float, unit: str) -> Markup:
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
    bar, shapes = 24.0, []
    for phase in parts:
        x, width = LEFT + phase.begin / span * PLOT, (phase.end - phase.begin) / span * PLOT
        if phase.kind == "restart":
            shapes.append(element("path", d=path_data(f"M{short(x)} 2V40"), class_="p-restart"))
            continue
        y, tall = (bar + 8, 6.0) if phase.kind == "silent" else (4.0, bar)
        shapes.append(element("rect", x=x, y=y, width=max(width, 1.0), height=tall, class_=f"p-{phase.kind}"))
        label = _NAMES[phase.kind]
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
            element("th", _swatch(f"p-{phase.kind}"), escape(_NAMES[phase.kind]), scope="row", class_="key"),
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
    return element("ul", *(element("li", _swatch(style), escape(label)) for style, label in keys), class_="legend")


def line_path(
    values: Sequence[float | None], maximum: float, height: float, minimum: float = 0.0, bridged: int = 0
) -> str:
    """A line with gaps. `bridged`: number of successive columns without a value that do not make a gap."""
    step, words, drawing = PLOT / len(values), [], False
    missing = 0
    for column, value in enumerate(values):
        if value is None:
            missing += 1
            drawing = drawing and missing <= bridged
            continue
        missing = 0
        x, y = LEFT + (column + 0.5) * step, height - _share(value, minimum, maximum) * height
        words.append(f"{'L' if drawing else 'M'}{short(x)} {short(y)}")
        alone = column + 1 == len(values) or values[column + 1] is None
        if not drawing and alone:
            words.append("h.1")
        drawing = True
    return path_data("".join(words))


def _share(value: float, minimum: float, maximum: float) -> float:
    return min(1.0, max(0.0, (value - minimum) / (maximum - minimum)))


def band_path(low: Sequence[float | None], high: Sequence[float | None], maximum: float, height: float) -> str:
    words, step = [], PLOT / max(1, len(low))
    for part in _runs(low, high):
        points = [(column, high[column] or 0.0) for column in part]
        points += [(column, low[column] or 0.0) for column in reversed(part)]
        places = (
            f"{short(LEFT + (c + 0.5) * step)} {short(height - _share(v, 0.0, maximum) * height)}" for c, v in points
        )
        words.append(f"M{'L'.join(places)}Z")
    return path_data("".join(words))


def _runs(low: Sequence[float | None], high: Sequence[float | None]) -> Iterator[list[int]]:
    part: list[int] = []
    for column, (one, two) in enumerate(zip(low, high, strict=True)):
        if one is not None and two is not None:
            part.append(column)
        elif part:
            yield part
            part = []
    if part:
        yield part


def curve(number: int, shown: TimeCurve, span: float, restarts: Sequence[float] = ()) -> Markup:
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
        bottom + _AXIS,
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


MOST_POINTS: Final = 400


def overlay(runs: Sequence[tuple[str, Sequence[PrintedNumber]]]) -> Markup:
    """The losses of several runs over their steps; over their numbers, if a run does not print its steps in order."""
    own = [[each.step for each in losses] for _, losses in runs]
    has_steps = all(None not in each and sorted(filter(None, each)) == [*filter(None, each)] for each in own)
    points = [[(each.step if has_steps else n, each.value) for n, each in enumerate(line, 1)] for _, line in runs]
    known, counts = zip(*((value, at or 0.0) for line in points for at, value in line), strict=True)
    ticks, steps = value_ticks(max(known), min(known)), value_ticks(max(counts))
    bottom, shapes = 8.0 + _CURVE_HEIGHT, []
    for number, line in enumerate(points):
        line = [*line[: -1 : -(-len(line) // MOST_POINTS) or 1], *line[-1:]]
        places = [
            (LEFT + (at or 0.0) / steps[-1] * PLOT, bottom - _share(value, ticks[0], ticks[-1]) * _CURVE_HEIGHT)
            for at, value in line
        ]
        words = path_data("M" + "L".join(f"{short(x)} {short(y)}" for x, y in places))
        shapes += [element("path", d=words, class_=f"line o{number % LINES}")] if len(places) > 1 else []
        shapes += [
            element("circle", cx=x, cy=y, r=3, class_=f"o{number % LINES}") for x, y in places if len(places) == 1
        ]
    for at in steps:
        x = LEFT + at / steps[-1] * PLOT
        shapes.append(element("text", escape(number_text(at)), x=x, y=bottom + 16.0, text_anchor="middle"))
    title = f"Losses over {'steps' if has_steps else 'the number of losses'}"
    drawing = _svg(bottom + _AXIS, title, _value_axis(ticks, 8.0, bottom, "loss"), *shapes)
    keys = legend([(f"o{at % LINES}", f"loss of {run}") for at, (run, _) in enumerate(runs)])
    return join_markup(element("h3", escape(title)), keys, element("div", drawing, class_="wide"))


def _curve_table(shown: TimeCurve) -> Markup:
    size = -(-len(shown.values) // _TABLE_ROWS)
    rows = []
    for at in range(0, len(shown.values), size):
        known = [value for value in shown.values[at : at + size] if value is not None]
        cell = number_text(statistics.fmean(known)) if known else "-"
        rows.append((clock_text(at * shown.columns.width), cell))
    return table(("From", f"{shown.unit or 'value'}, mean"), rows, shown.title)


def grid(number: int, ranks: RankGrid, span: float, restarts: Sequence[float] = ()) -> Markup:
    """A row per rank, a cell per column: blue for work, orange for waiting, grey without a step."""
    places, height_in_rows = _places(ranks.rows)
    row_height = min(18.0, max(1.0, 460 / height_in_rows))
    top, height = 8.0, row_height * height_in_rows
    maximum = _busiest(ranks.rows)
    cells = _cells(ranks.rows, places, maximum)
    scale = f"translate({LEFT} {short(row_height / 2)}) scale({PLOT / ranks.columns.count:.4f} {row_height:.4f})"
    paths = (element("path", d=path_data("".join(words)), class_=style) for style, words in cells.items() if words)
    shapes = element("g", *paths, transform=scale, class_="cells")
    drawing = _svg(
        top + height + _AXIS,
        "Work and waiting of each rank over time",
        _host_names(ranks.rows, places, top, row_height),
        _plot(top, height, shapes, *_restarts(restarts, span, height)),
        _time_axis(span, top + height, top + height + 4),
        data_span=span,
        data_most=f"{maximum:.3f}",
        data_rows=" ".join(map(str, places)),
        data_height=f"{row_height:.4f}",
        data_cells=" ".join(_encoded(row, maximum) for row in ranks.rows),
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


def _places(rows: Sequence[RankRow]) -> tuple[list[int], int]:
    hosts = len({row.host for row in rows})
    is_spaced = 1 < hosts <= len(rows) // 2
    places, at = [], 0
    for before, row in zip((None, *rows), rows, strict=False):
        if before is not None and before.host != row.host and is_spaced:
            at += 1
        places.append(at)
        at += 1
    return places, at


def _busiest(rows: Sequence[RankRow]) -> float:
    """Share of work that only a fiftieth of the cells exceeds."""
    used = sorted(cpu for row in rows for cpu in row.cpu if cpu is not None)
    return max(used[int(0.98 * (len(used) - 1))] if used else 0.0, 0.1)


def _cells(rows: Sequence[RankRow], places: Sequence[int], maximum: float) -> dict[str, list[str]]:
    """Class → pieces of its path: runs of equal cells become horizontal lines one unit wide."""
    styles = [f"w{n}" for n in range(WORK_LEVELS)] + [f"d{n}" for n in range(WAIT_LEVELS)] + ["idle"]
    paths: list[list[str]] = [[] for _ in styles]
    ends = [0] * len(styles)
    for place, row in zip(places, rows, strict=True):
        last, begin = -1, 0
        fresh = [True] * len(styles)
        levels = [*_levels(row, maximum), -1]
        for column, level in enumerate(levels):
            if level == last:
                continue
            if last >= 0:
                move = f"M{begin} {place}" if fresh[last] else f"m{begin - ends[last]} 0"
                paths[last].append(f"{move}h{column - begin}")
                fresh[last], ends[last] = False, column
            last, begin = level, column
    return dict(zip(styles, paths, strict=True))


def _levels(row: RankRow, maximum: float) -> Iterator[int]:
    """Style of each cell; a rank that never steps has no grey cells."""
    for cpu, waits, steps in zip(row.cpu, row.waits, row.steps_per_s, strict=True):
        if steps is None and cpu is None:
            yield -1
        elif waits is not None and waits >= _WAITS_FROM:
            yield WORK_LEVELS + (2 if waits >= 0.7 else 1 if waits >= 0.4 else 0)
        elif not steps and row.steps:
            yield WORK_LEVELS + WAIT_LEVELS
        elif cpu is None:
            yield -1
        else:
            yield min(WORK_LEVELS - 1, int(cpu / maximum * WORK_LEVELS))


def _encoded(row: RankRow, maximum: float) -> str:
    """Two letters per cell, for the shares of work and waiting in 64 steps; `.` if unknown."""
    return "".join(
        _letter(None if cpu is None else cpu / maximum) + _letter(waits)
        for cpu, waits in zip(row.cpu, row.waits, strict=True)
    )


def _letter(share: float | None) -> str:
    return _NONE if share is None else _DIGITS[min(63, max(0, round(share * 63)))]


def _host_names(rows: Sequence[RankRow], places: Sequence[int], top: float, row_height: float) -> Markup:
    has_numbers = row_height >= _NUMBERED_ROW
    edge = LEFT - 8 - (26 if has_numbers else 0)
    labels = host_labels((row.host for row in rows), 12 if has_numbers else 17)
    spans: dict[str, tuple[int, int]] = {}
    for row, place in zip(rows, places, strict=True):
        spans[row.host] = (spans.get(row.host, (place, 0))[0], place)
    names, free = [], 0.0
    if has_numbers:
        for row, place in zip(rows, places, strict=True):
            y = top + (place + 0.5) * row_height + 4
            names.append(element("text", escape(str(row.rank)), x=LEFT - 6, y=y, text_anchor="end"))
    for host, (first, last) in spans.items():
        y = top + (first + last + 1) / 2 * row_height
        if y - 5.5 < free:
            continue
        free = y + 5.5
        names.append(element("text", escape(labels[host]), x=edge, y=y + 4, text_anchor="end"))
    return join_markup(*names)


def _rank_table(rows: Sequence[RankRow]) -> Markup:
    def number(value: float | None) -> str:
        return "-" if value is None else number_text(value)

    def parts(row: RankRow) -> Iterator[str]:
        """Shares of the time that add up to 100 %; a rank may wait on a processor."""
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


def hosts(number: int, curves: Sequence[HostCurves], span: float) -> Markup:
    measures = (
        _Measure("Memory of the ranks", "B", [shown.memory for shown in curves]),
        _Measure("Sent", "B/s", [shown.sent for shown in curves]),
    )
    gap, row, top = 22.0, 34.0 if len(curves) <= _FEW_HOSTS else 22.0, 26.0
    labels = host_labels((shown.host for shown in curves), 17)
    width = (PLOT - gap) / len(measures)
    shapes = []
    for place, measure in enumerate(measures):
        left = LEFT + place * (width + gap)
        known = [value for values in measure.values for value in values if value is not None]
        maximum = value_ticks(max(known, default=0.0))[-1]
        words = (
            f"{measure.label}, 0 to {quantity(maximum, measure.unit)}" if known else f"{measure.label}: not measured"
        )
        shapes.append(element("text", escape(words), x=left, y=14, class_="unit"))
        for line in range(len(curves)):
            base = top + (line + 1) * row - 6
            shapes.append(element("path", d=path_data(f"M{short(left)} {short(base)}h{short(width)}"), class_="grid"))
            if values := measure.values[line]:
                words = _small_path(values, maximum, left, width, base, row - 10)
                shapes.append(element("path", d=words, class_=f"line m{place}"))
    for line, shown in enumerate(curves):
        y = top + (line + 1) * row - 14
        shapes.append(element("text", escape(labels[shown.host]), x=LEFT - 8, y=y, text_anchor="end"))
    bottom = top + len(curves) * row
    for place in range(len(measures)):
        left = LEFT + place * (width + gap)
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
    step, words, drawing = width / len(values), [], False
    for column, value in enumerate(values):
        if value is None:
            drawing = False
            continue
        x, y = left + (column + 0.5) * step, base - _share(value, 0.0, maximum) * height
        words.append(f"{'L' if drawing else 'M'}{short(x)} {short(y)}")
        drawing = True
    return path_data("".join(words))


def _host_table(curves: Sequence[HostCurves]) -> Markup:
    def mean_and_most(values: Sequence[float | None]) -> tuple[str, str]:
        known = [value for value in values if value is not None]
        return (number_text(statistics.fmean(known)), number_text(max(known))) if known else ("-", "-")

    rows = ((shown.host, *mean_and_most(shown.memory), *mean_and_most(shown.sent)) for shown in curves)
    head = ("Host", "Memory, mean", "most", "Sent/s, mean", "most")
    return table(head, rows, "Hosts")
