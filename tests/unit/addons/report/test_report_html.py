"""The page of a run: nothing in it comes alive, and it stays small, and works in a browser."""

from __future__ import annotations

import base64
import hashlib
import os
import random
import re
import time
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from report_samples import START, measured_page, measurements, page

import chromium
from ipexctl.addons.report.html import SCRIPT, STYLE, page_html
from ipexctl.addons.report.measurements import (
    Measurements,
    RunPhase,
    Window,
    host_curves,
    measurements_of,
    rank_grid,
)
from ipexctl.addons.report.page import Fact, ReportPage, RunComparison, SettingRow, StackText
from ipexctl.known_errors.match import Cause
from ipexctl.node.run.meter.rates import RankRates
from ipexctl.node.run.meter.window_file import CAPACITY, WindowWriter
from ipexctl.run.why.diagnosis import Diagnosis, Line
from ipexctl.run.why.read_snapshot import PrintedNumber
from ipexctl.run.windows import read_copied_windows

if TYPE_CHECKING:
    from collections.abc import Iterator

TAGS = (
    "script",
    "img",
    "svg",
    "iframe",
    "object",
    "embed",
    "a",
    "style",
    "meta",
    "base",
    "link",
    "form",
    "video",
    "math",
)
HANDLERS = ("onload", "onerror", "onclick", "onfocus", "onbegin", "onpointerover", "style", "href", "src", "srcdoc")
URLS = ("javascript:alert(1)", "data:text/html,x", "http://evil.example/", "//evil.example", "file:///etc/passwd")


def attacks() -> list[str]:
    """At least 200 texts that come alive on a page that does not escape."""
    ends = ("", '">', "'>", "-->", "</title>", "</style>", "</script>", "</textarea>", "]]>", "</pre></main>")
    texts = [f"{end}<{tag} src=x onerror=alert(1)>" for end in ends for tag in TAGS]
    texts += [f'" {handler}={url} x="' for handler in HANDLERS for url in URLS]
    texts += [f"<a href='{url}'>x</a>" for url in URLS] + list(URLS)
    texts += ["<svg/onload=alert(1)>", "<<script>script>", "<scr\0ipt>", "&lt;script&gt;", "&#60;script&#62;", "&", "`"]
    texts += ["\u202e<b>", "\u2028<b>", "\x1b]8;;http://evil.example\x07x", "<!--", "<![CDATA[", "<?php", "\ud800<i>"]
    texts += [
        "\uff1cscript\uff1e",
        "%3Cscript%3E",
        "{{7*7}}",
        "${alert(1)}",
        "\r\n<b>",
        "\x7f<u>",
        "\u200b<p>",
        "<" * 5000,
    ]
    return texts


class Skeleton(HTMLParser):
    """The elements and attributes of a page, without its texts."""

    def __init__(self, document: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, tuple[tuple[str, str | None], ...]]] = []
        self.texts: list[str] = []
        self.feed(document)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, tuple(attrs)))

    def handle_endtag(self, tag: str) -> None:
        self.found.append((f"/{tag}", ()))

    def handle_comment(self, data: str) -> None:
        self.found.append((f"comment {data}", ()))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def attacked(text: str) -> ReportPage:
    measured = Measurements({0: [Window(START, 10.0, 1, None, 0.0, 1.0)] * 3})
    other = page(text, losses=(PrintedNumber(0.0, 2.0), PrintedNumber(1.0, 1.0)), tag=text)
    comparison = RunComparison((other, other), (text, text), (text, ""), {text: (text, None)}, ("not-measured",))
    curves = host_curves(measurements(1, 60), {0: "node-000.example.com"}, START, START + 60)
    return page(
        text,
        grid=rank_grid(measured, {0: text}, START, START + 60),
        hosts=tuple(type(curve)(text, curve.columns, curve.memory, curve.sent) for curve in curves),
        comparison=comparison,
    )


def test_no_element_attribute_or_address_comes_from_a_text() -> None:
    texts = attacks()
    assert len(set(texts)) >= 200
    harmless = Skeleton(page_html(attacked("x"))).found
    for text in texts:
        assert Skeleton(page_html(attacked(text))).found == harmless, text


def test_a_text_is_shown_as_it_is() -> None:
    shown = "".join(Skeleton(page_html(attacked("<b onload='x'>&amp;"))).texts)
    assert shown.count("<b onload='x'>&amp;") >= 15


def test_the_page_asks_for_nothing() -> None:
    document = page_html(attacked("http://evil.example/x.png"))
    names = {name for _, attributes in Skeleton(document).found for name, _ in attributes}
    assert names.isdisjoint({"href", "src", "xlink:href", "srcset", "action", "style", "background", "poster"})
    assert not any(name.startswith("on") for name in names)
    assert "url(" not in STYLE
    assert "@import" not in STYLE
    assert re.search(r"fetch|XMLHttp|import|innerHTML|eval|location|open\(|\.write", SCRIPT) is None


@pytest.mark.parametrize(("tag", "text"), [("style", STYLE), ("script", SCRIPT)])
def test_the_policy_has_the_hashes_of_what_the_page_contains(tag: str, text: str) -> None:
    document = page_html(page())
    content = re.search(f"<{tag}>(.*?)</{tag}>", document, re.DOTALL)
    assert content is not None
    assert content[1] == text
    digest = base64.b64encode(hashlib.sha256(content[1].encode()).digest()).decode()
    assert f"{tag}-src 'sha256-{digest}'" in document
    assert "default-src 'none'; " in document


def test_the_script_is_small() -> None:
    assert len(SCRIPT.encode()) <= 8000


def test_a_hidden_value_is_not_in_the_file() -> None:
    hidden = SettingRow("HF_TOKEN", "hunter2", "-x", "", is_hidden=True)
    document = page_html(page(settings=(hidden,)))
    assert "hunter2" not in document
    assert "HF_TOKEN" in document


@pytest.mark.parametrize(
    ("ranks", "seconds", "most"),
    [(64, 86400, 500_000), (64, 4000, 500_000), (1024, 3600, 2_000_000), (1024, 1170, 2_000_000)],
)
def test_the_page_of_a_large_run_is_small_and_soon_made(ranks: int, seconds: int, most: int) -> None:
    measured = measurements(ranks, seconds)
    begin = time.process_time()
    document = page_html(measured_page(ranks, seconds, measured))
    took = time.process_time() - begin
    assert len(document.encode()) <= most
    assert took < 8.0  # of the processor; 2 s where it does nothing else, more than 4 beside others on a slow machine


def test_a_day_of_64_ranks_is_read_and_drawn_soon(tmp_path: Path) -> None:
    """From the files of the record, which are full then: 2,160 windows of 40 s for each rank."""
    writer = WindowWriter(str(tmp_path / "0000.meter"), RankRates)
    noise = random.Random(1)
    for number in range(CAPACITY):
        rates = RankRates(2 + noise.random(), 60 + noise.random(), noise.random() ** 3, cpu=noise.random())
        writer.add(number, rates, 10.0 * (number + 1), START + 10.0 * (number + 1))
    writer.close()
    (tmp_path / "0000.meter").rename(tmp_path / "rank")
    (tmp_path / "ranks").mkdir()
    for rank in range(64):
        (tmp_path / f"ranks/{rank:04}.meter").write_bytes((tmp_path / "rank").read_bytes())
    seconds = 10 * CAPACITY
    begin = time.process_time()
    windows = read_copied_windows(tmp_path)
    measured = measurements_of(windows.ranks, {}, ())
    document = page_html(measured_page(64, seconds, measured))
    took = time.process_time() - begin
    assert len(windows.ranks) == 64
    assert len(document.encode()) <= 500_000
    assert took < 8.0  # of the processor; 2 s where it does nothing else, more than 4 beside others on a slow machine


def test_every_drawing_has_a_table_and_a_name() -> None:
    document = Skeleton(page_html(measured_page(16, 600, measurements(16, 600)))).found
    images = [dict(attributes) for tag, attributes in document if dict(attributes).get("role") == "img"]
    assert len(images) == 4
    assert all(image.get("aria-label") for image in images)
    assert sum(tag == "table" for tag, _ in document) == len(images) + 1  # the plan


def test_a_page_without_any_figures_is_whole() -> None:
    found = Skeleton(page_html(ReportPage("r", Diagnosis("r", "unknown", "the outcome is not known")))).found
    assert [tag for tag, _ in found if tag in ("h1", "svg", "table")] == ["h1"]


def test_no_rule_gives_a_drawing_inside_another_one_a_size() -> None:
    assert re.search(r"(?:^|[},])\s*svg\s*\{[^}]*(?:width|height)", STYLE) is None


def luminance(color: str) -> float:
    digits = "".join(digit * 2 for digit in color) if len(color) == 3 else color
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, two: str) -> float:
    low, high = sorted((luminance(one), luminance(two)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("place", [0, 1, 2], ids=["light", "dark", "paper"])
def test_texts_can_be_read_and_levels_grow_away_from_the_background(place: int) -> None:
    sets = [dict(re.findall(r"--(\w+): #([0-9a-f]+)", part)) for part in re.findall(r":root \{([^}]*)\}", STYLE)]
    assert len(sets) == 3
    colors = sets[place]
    for text, behind in (
        *(("ink", "bg"), ("soft", "bg"), ("ink", "box"), ("bad", "bg"), ("line", "bg")),
        *(("on4", "w4"), ("ink", "w1"), ("ink", "idle")),
    ):
        assert contrast(colors[text], colors[behind]) >= 4.5, (text, behind)
    for levels in (("w0", "w1", "w2", "w3", "w4"), ("d0", "d1", "d2")):
        away = [contrast(colors[level], colors["bg"]) for level in levels]
        assert away == sorted(away)
        assert all(after / before >= 1.2 for before, after in pairwise(away))


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


@pytest.mark.needs("chromium")
def test_nothing_is_requested_and_no_text_runs(tab: chromium.Page, tmp_path: Path) -> None:
    texts = attacks()
    lines = [Line("stderr", text) for text in texts] + [Line("stdout", text) for text in texts]
    hosts = dict(enumerate(texts))
    grid = rank_grid(measurements(len(texts), 30), hosts, START, START + 30)
    attacked = page(
        "".join(texts),
        settings=tuple(SettingRow(text, text, text, text) for text in texts),
        facts=tuple(Fact(text, text) for text in texts),
        stacks=tuple(StackText(text, (text,)) for text in texts),
        phases=tuple(RunPhase("script", 0.0, 9.0, text) for text in texts),
        comparison=RunComparison(
            (page(texts[0]), page(texts[1])),
            tuple(texts[:2]),
            tuple(texts[2:4]),
            {text: (text, text) for text in texts},
            ("too-short",),
        ),
        grid=grid,
    )
    cause = Cause("id", "".join(texts), "; ".join(texts), "likely")
    diagnosis = replace(attacked.diagnosis, lines=tuple(lines), notes=tuple(texts), cause=cause)
    attacked = replace(attacked, diagnosis=diagnosis)
    path = tmp_path / "attacked.html"
    path.write_bytes(page_html(attacked).encode())
    tab.open(path)
    assert tab.requests == [path.as_uri()]
    assert tab.messages == []
    assert tab.run("document.scripts.length") == 1
    assert tab.run("document.querySelectorAll('a,img,iframe,form,[onerror],[onload],[style]').length") == 0
    assert tab.run("document.querySelector('.keys').hidden") is False  # our own script has run


@pytest.mark.needs("chromium")
@pytest.mark.parametrize("width", [1400, 400])
def test_a_page_is_as_wide_as_its_window(tab: chromium.Page, run_page: Path, width: int) -> None:
    tab.open(run_page, width)
    assert tab.run("document.documentElement.scrollWidth") == width


@pytest.mark.needs("chromium")
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


@pytest.mark.needs("chromium")
def test_the_mouse_shows_the_values_of_a_rank(tab: chromium.Page, run_page: Path) -> None:
    tab.open(run_page)
    drawing = "document.querySelector('svg[data-cells]')"
    tab.run(f"{drawing}.scrollIntoView()")
    x, y = tab.run(f"(b => [b.left + b.width / 2, b.top + 20])({drawing}.getBoundingClientRect())")
    tab.mouse("mouseMoved", x, y)
    shown = tab.run(f"{drawing}.closest('section').querySelector('.readout').textContent")
    assert "rank " in shown
    assert "node-000.example.com" in shown


@pytest.mark.needs("chromium")
@pytest.mark.skipif(not AXE, reason="IPEXCTL_TESTS_AXE names no axe.min.js of npm's axe-core")
@pytest.mark.parametrize("is_dark", [False, True])
@pytest.mark.parametrize("width", [1400, 400])
def test_axe_finds_nothing(tab: chromium.Page, run_page: Path, width: int, *, is_dark: bool) -> None:
    tab.open(run_page, width, is_dark=is_dark)
    tab.run(f"{Path(AXE).read_text()};0")
    found = tab.run("axe.run(document).then(done => done.violations.map(rule => rule.id + rule.nodes[0].html))")
    assert found == []
