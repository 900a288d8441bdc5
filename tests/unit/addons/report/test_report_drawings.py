"""The drawings of a run's page: axes with round marks, texts that do not cover one another, one time at one place."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import combinations
from typing import NamedTuple

import pytest
from report_samples import measured_page, measurements

from case_table import case_table
from ipexctl.addons.report.drawings import LEFT, RIGHT, WIDTH, band_path, grid, line_path, phases
from ipexctl.addons.report.html import page_html
from ipexctl.addons.report.markup import (
    clock_text,
    host_labels,
    number_text,
    path_data,
    quantity,
    shorten_name,
    time_ticks,
    value_ticks,
)
from ipexctl.addons.report.measurements import Columns, RankGrid, RankRow, RunPhase

_LETTER = 6.4
"""About the mean width of a letter of 11.5 px."""


class Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float
    text: str

    def covers(self, other: Box) -> bool:
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )


class Drawings(HTMLParser):
    """The texts of each drawing, as boxes; a turned text stands upright."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.drawings: list[tuple[float, list[Box]]] = []
        self._text: dict[str, str | None] | None = None
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "svg" and found.get("role") == "img":
            self.drawings.append((float(str(found["viewbox"]).split()[3]), []))
        self._text = found if tag == "text" else None

    def handle_data(self, data: str) -> None:
        if self._text is None:
            return
        x, y, width = float(self._text["x"] or 0), float(self._text["y"] or 0), _LETTER * len(data)
        if "transform" in self._text:
            self.drawings[-1][1].append(Box(x - 9, y - width / 2, x + 3, y + width / 2, data))
            return
        left = x - {"middle": width / 2, "end": width}.get(str(self._text.get("text-anchor")), 0.0)
        self.drawings[-1][1].append(Box(left, y - 9, left + width, y + 2, data))


@case_table
@pytest.mark.parametrize("seconds", [60, 900])
def test_texts_are_inside_and_do_not_cover_one_another(ranks: int, seconds: int) -> None:
    for height, boxes in Drawings(page_html(measured_page(ranks, seconds, measurements(ranks, seconds)))).drawings:
        for box in boxes:
            assert box.left >= 0, box
            assert box.right <= WIDTH, box
            assert box.top >= 0, box
            assert box.bottom <= height, box
        assert [pair for pair in combinations(boxes, 2) if pair[0].covers(pair[1])] == []


@pytest.mark.parametrize(
    ("span", "marks"),
    [
        (0.5, ["0"]),
        (8, ["0", "1 s", "2 s"]),
        (100, ["0", "15 s", "30 s"]),
        (900, ["0", "2 min", "4 min"]),
        (86400, ["0", "3 h", "6 h"]),
        (86400 * 30, ["0", "5 d", "10 d"]),
    ],
)
def test_marks_of_time_are_round_and_in_one_unit(span: float, marks: list[str]) -> None:
    if span < 1:
        assert time_ticks(span)[0] == (0, "0")
        return
    ticks = time_ticks(span)
    assert [label for _, label in ticks][:3] == marks
    assert len(ticks) <= 9
    assert ticks[-1][0] <= span + 1e-6


@pytest.mark.parametrize(
    ("most", "marks"),
    [
        (1.0, [0, 0.25, 0.5, 0.75, 1.0]),
        (7, [0, 2, 4, 6, 8]),
        (0, [0, 1]),
        (float("nan"), [0, 1]),
        (1e-9, None),
        (3e12, None),
    ],
)
def test_marks_of_values_are_round_and_reach_the_largest(most: float, marks: list[float] | None) -> None:
    ticks = value_ticks(most)
    assert marks is None or ticks == pytest.approx(marks)
    assert len(ticks) <= 6
    assert not most > ticks[-1] * (1 + 1e-9)


@case_table
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number_text(value) == text


@case_table
def test_clock(seconds: float, text: str) -> None:
    assert clock_text(seconds) == text


def test_a_long_name_keeps_its_ends() -> None:
    assert shorten_name("node-gold-0123.example.com", 17) == "node-gol…mple.com"
    assert shorten_name("node1", 17) == "node1"


def test_a_line_has_gaps_and_shows_a_single_value() -> None:
    path = line_path((1.0, None, 2.0, 2.0), 2.0, 100)
    assert path.count("M") == 2
    assert "h.1" in path
    assert path.count("L") == 1
    assert line_path((None, None), 1.0, 100) == ""


def test_a_value_above_the_scale_stays_inside() -> None:
    assert "-" not in line_path((5.0, 5.0), 2.0, 100)


def test_a_band_is_closed_for_each_part() -> None:
    assert band_path((1.0, None, 1.0), (2.0, None, 2.0), 2.0, 100).count("Z") == 2


def test_the_data_of_a_path_is_numbers_and_commands() -> None:
    with pytest.raises(ValueError, match="path"):
        path_data('M0 0"/><script>')


def test_the_grid_shows_waiting_work_idleness_and_what_is_not_known() -> None:
    waits = (0.0, 0.09, 0.1, 0.4, 0.7, None, None)
    row = RankRow(0, "a", 5, None, 0.2, 0.8, None, (0.1, *(0.8,) * 5, None), waits, (1.0,) * 5 + (0.0, None), ())
    drawn = grid(1, RankGrid(Columns(0, 10, 7), (row,)), 70.0)
    cells = {style: path for path, style in re.findall(r'<path d="([^"]*)" class="(w\d|d\d|idle)">', drawn)}
    assert cells == {"w0": "M0 0h1", "w4": "M1 0h1", "d0": "M2 0h1", "d1": "M3 0h1", "d2": "M4 0h1", "idle": "M5 0h1"}


def test_phases_are_at_their_time_on_the_common_axis() -> None:
    drawn = phases(1, (RunPhase("start", 0, 25, ""), RunPhase("steps", 25, 100, "")), 100)
    rects = re.findall(r'<rect x="([\d.]+)" y="4" width="([\d.]+)"', drawn)
    assert [float(x) for x, _ in rects] == pytest.approx([LEFT, LEFT + (RIGHT - LEFT) / 4], abs=0.1)
    assert sum(float(width) for _, width in rects) == pytest.approx(RIGHT - LEFT, abs=0.2)


def test_hosts_are_labelled_without_the_domain_that_all_share() -> None:
    assert host_labels(["a.example.com", "b.example.com"], 17) == {"a.example.com": "a", "b.example.com": "b"}
    assert host_labels(["a.x.org", "a.y.org"], 17) == {"a.x.org": "a.x.org", "a.y.org": "a.y.org"}
    assert host_labels(["10.0.0.1"], 17) == {"10.0.0.1": "10.0.0.1"}


def test_a_quantity_has_its_unit() -> None:
    assert [quantity(3e11, "B"), quantity(40, "cores"), quantity(0, "B/s")] == ["300 GB", "40 cores", "0 B/s"]


def test_negative_values_have_their_marks_below_zero() -> None:
    assert value_ticks(1.0, -3.0) == [-3, -2, -1, 0, 1]
    assert value_ticks(-1.0, -4.0) == [-4, -3, -2, -1, 0]
    assert line_path((-4.0, 0.0), 0.0, 100, -4.0).endswith(" 0")


def test_what_is_printed_now_and_then_is_one_line_but_a_long_silence_is_a_gap() -> None:
    assert line_path((1.0, None, None, 2.0), 2.0, 100, bridged=2).count("M") == 1
    assert line_path((1.0, None, None, 2.0), 2.0, 100, bridged=1).count("M") == 2


def test_restarts_are_marked_in_curves_and_in_the_grid() -> None:
    page = measured_page(2, 300, measurements(2, 300))
    marked = replace(page, phases=(*page.phases, RunPhase("restart", 150.0, 150.0, "restart 1")))
    middle = f'd="M{(LEFT + RIGHT) // 2} 0V'
    assert page_html(page).count(middle) == 0
    assert page_html(marked).count(middle) == 2
