"""The page in a browser: nothing is requested, nothing of a text runs, keys and mouse work, nothing is cut off."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from report_samples import START, measured_page, measurements, page
from test_report_html import attacks

import chromium
from ipexctl.extras.report.comparison import ChangedSetting, RunComparison
from ipexctl.extras.report.html import page_html
from ipexctl.extras.report.measurements import rank_grid
from ipexctl.extras.report.page import Fact, SettingRow, StackText
from ipexctl.extras.report.phases import RunPhase
from ipexctl.run.why.diagnosis import Line

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.needs("chromium")
AXE = os.environ.get("IPEXCTL_TESTS_AXE", "")
"""The path of axe.min.js from npm's package axe-core."""


@pytest.fixture(scope="module")
def tab() -> Iterator[chromium.Page]:
    with chromium.browser() as opened:
        yield opened


@pytest.fixture
def run_page(tmp_path: Path) -> Path:
    path = tmp_path / "run.html"
    path.write_text(page_html(measured_page(16, 600, measurements(16, 600))))
    return path


def test_nothing_is_requested_and_no_text_runs(tab: chromium.Page, tmp_path: Path) -> None:
    texts = attacks()
    lines = [Line("stderr", text) for text in texts] + [Line("stdout", text) for text in texts]
    hosts = dict(enumerate(texts))
    grid = rank_grid(measurements(len(texts), 30), hosts, START, START + 30)
    attacked = page(
        "".join(texts),
        settings=tuple(SettingRow(text, text, text, text) for text in texts),
        facts=tuple(Fact(text, text) for text in texts),
        lines=tuple(lines),
        stacks=tuple(StackText(text, (text,)) for text in texts),
        phases=tuple(RunPhase("script", 0.0, 9.0, text) for text in texts),
        comparison=RunComparison(texts[0], tuple(ChangedSetting(text, text, text) for text in texts), "too-short"),
        fixes=tuple(texts),
        notes=tuple(texts),
        grid=grid,
    )
    path = tmp_path / "attacked.html"
    path.write_bytes(page_html(attacked).encode())
    tab.open(path)
    assert tab.requests == [path.as_uri()]
    assert tab.messages == []
    assert tab.run("document.scripts.length") == 1
    assert tab.run("document.querySelectorAll('a,img,iframe,form,[onerror],[onload],[style]').length") == 0
    assert tab.run("document.querySelector('.keys').hidden") is False  # our own script has run


@pytest.mark.parametrize("width", [1400, 400])
def test_a_page_is_as_wide_as_its_window(tab: chromium.Page, run_page: Path, width: int) -> None:
    tab.open(run_page, width)
    assert tab.run("document.documentElement.scrollWidth") == width


def test_keys_move_the_cursor_and_zoom_all_drawings(tab: chromium.Page, run_page: Path) -> None:
    tab.open(run_page)
    boxes = "[...document.querySelectorAll('svg.plot')].map(plot => plot.getAttribute('viewBox'))"
    readout = "document.querySelector('.readout').textContent"
    before = tab.run(boxes)
    tab.run("document.querySelector('svg[data-span]').focus()")
    tab.key("ArrowRight")
    assert "samples/s" in tab.run(readout)
    tab.key("+")
    zoomed = tab.run(boxes)
    assert len({box.split()[2] for box in zoomed}) == 1
    assert all(one != other for one, other in zip(before, zoomed, strict=True))
    tab.key("Escape")
    assert tab.run(boxes) == before
    assert tab.messages == []


def test_the_mouse_shows_the_values_of_a_rank(tab: chromium.Page, run_page: Path) -> None:
    tab.open(run_page)
    drawing = "document.querySelector('svg[data-cells]')"
    tab.run(f"{drawing}.scrollIntoView()")
    x, y = tab.run(f"(b => [b.left + b.width / 2, b.top + 20])({drawing}.getBoundingClientRect())")
    tab.mouse("mouseMoved", x, y)
    shown = tab.run(f"{drawing}.closest('section').querySelector('.readout').textContent")
    assert "rank " in shown
    assert "node-000.example.com" in shown


@pytest.mark.skipif(not AXE, reason="IPEXCTL_TESTS_AXE names no axe.min.js of npm's axe-core")
@pytest.mark.parametrize("is_dark", [False, True])
@pytest.mark.parametrize("width", [1400, 400])
def test_axe_finds_nothing(tab: chromium.Page, run_page: Path, width: int, *, is_dark: bool) -> None:
    tab.open(run_page, width, is_dark=is_dark)
    tab.run(f"{Path(AXE).read_text()};0")
    found = tab.run("axe.run(document).then(done => done.violations.map(rule => rule.id + rule.nodes[0].html))")
    assert found == []
