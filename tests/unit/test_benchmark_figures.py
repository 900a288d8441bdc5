"""The statistics of the benchmarks: intervals of the sign test, ratios within rounds, and lines."""

from __future__ import annotations

import math
import random
import re
import struct
from pathlib import Path

import pytest

from benchmarks.__main__ import PARTS
from benchmarks.figures import NO_DIFFERENCE, compared, fit_line, median_interval, ratio, ratios, turn_rates
from benchmarks.harness import Failed
from benchmarks.quiet import await_quiet
from benchmarks.report import GOALS, Goal, Report, markdown, put_between_markers, put_goals


@pytest.mark.parametrize(
    ("count", "low", "high", "coverage"),
    [
        (1, 1, 1, 0.0),
        (5, 1, 5, 0.9375),  # too few rounds for 95 % coverage
        (6, 1, 6, 0.96875),
        (7, 1, 7, 0.984375),
        (9, 2, 8, 0.9609375),
        (15, 4, 12, 0.96484375),
        (20, 6, 15, 0.958611),
    ],
)
def test_median_interval_has_the_bounds_of_the_sign_test(count: int, low: int, high: int, coverage: float) -> None:
    values = list(range(1, count + 1))
    random.Random(count).shuffle(values)
    found = median_interval(values)
    assert (found.low, found.high) == (low, high)
    assert found.coverage == pytest.approx(coverage, abs=1e-6)


def test_median_interval_has_the_stated_coverage() -> None:
    draw = random.Random(18)
    found = [median_interval([draw.gauss(0.0, 1.0) for _ in range(9)]) for _ in range(4000)]
    covered = sum(each.low <= 0.0 <= each.high for each in found) / len(found)
    assert covered == pytest.approx(found[0].coverage, abs=0.01)


def test_target_inside_the_interval_is_undecided() -> None:
    interval = median_interval([0.97, 0.98, 0.99, 1.0, 1.01, 1.02, 1.03])
    assert [interval.stays_below(limit) for limit in (0.96, 0.98, 1.04)] == [False, None, True]
    assert median_interval([1.0] * 5).stays_below(2.0) is None


def test_what_the_same_program_reaches_twice_is_no_difference() -> None:
    ratio_of = [median_interval([middle - 0.01, middle, middle + 0.01]) for middle in (0.8, 0.97, 1.005)]
    same = median_interval([0.95, 1.0, 1.04])
    assert [compared(each, same) for each in ratio_of] == ["0.80x, 0.79 to 0.81", NO_DIFFERENCE, NO_DIFFERENCE]
    assert compared(ratio_of[1], is_gain=True) == "1.03x, 1.02 to 1.04"


@pytest.mark.parametrize(("loads", "is_measured"), [((0.4,), True), ((7.1, 2.0, 0.9), True), ((7.1,), False)])
def test_a_part_waits_for_a_quiet_machine_and_is_else_not_measured(loads: tuple[float, ...], is_measured: bool) -> None:
    seen = iter([*loads, *[loads[-1]] * 100])
    slept: list[float] = []
    if is_measured:
        assert await_quiet("sync", lambda: next(seen), slept.append) <= 1
        return
    with pytest.raises(Failed, match=r"sync.*7\.1"):
        await_quiet("sync", lambda: next(seen), slept.append, 60)
    assert sum(slept) == 60


def test_slow_round_does_not_change_the_ratio() -> None:
    assert ratios([10.0, 1.0, 10.0], [20.0, 2.0, 20.0]) == [0.5, 0.5, 0.5]
    assert ratio([10.0, 1.0], [20.0, 2.0]) == 0.5


def test_fitted_line_gives_cost_per_host_and_where_a_limit_is_reached() -> None:
    line = fit_line({1: 1.1, 32: 4.2, 128: 13.8})
    assert line.start == pytest.approx(1.0)
    assert line.slope == pytest.approx(0.1)
    assert line.at(1000) == pytest.approx(101.0)
    assert line.reaches(51.0) == pytest.approx(500.0)
    assert fit_line({8: 2.0}).at(1000) == 2.0
    assert math.isinf(fit_line({1: 3.0, 2: 3.0}).reaches(4.0))


def test_interrupted_step_counts_in_both_turns_by_its_running_time() -> None:
    turns = [(0.0, 10.0), (100.0, 110.0), (200.0, 210.0)]
    even = [2.0, 6.0, 10.0, 104.0, 108.0, 202.0, 206.0]  # every 4 s of running; the first one after 2
    assert turn_rates(even, turns) == pytest.approx([0.25, 0.25, 0.25])
    slower = [2.0, 4.0, 6.0, 8.0, 10.0, 105.0, 110.0, 205.0, 210.0]
    assert turn_rates(slower, turns) == pytest.approx([0.5, 0.2, 0.2])


def test_interruption_within_a_step_does_not_change_the_rate() -> None:
    turns = [(50.0 * number, 50.0 * number + 7.0) for number in range(20)]
    running = [0.9 * number for number in range(1, int(140 / 0.9) + 1)]
    steps = [50.0 * (at // 7.0) + at % 7.0 for at in running]
    assert turn_rates(steps, turns) == pytest.approx([1 / 0.9] * 20)


def test_page_leaves_out_bounds_and_has_unmet_goals_in_a_table_of_their_own(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    rows = "| part | goal | measured |\n| --- | --- | ---: |\n| `exec` | old | 9x |\n| `sync` | stays | 3x |\n"
    page.write_text(f"<!-- begin exec --><!-- end exec -->\n<!-- begin {GOALS} -->\n{rows}<!-- end {GOALS} -->\n")
    goals = (Goal("≤ 1x the pool", "1.09x", False), Goal("≤ 9x", "1x", True), Goal("≤ 3x", "2x (1 to 4)", None))
    report = Report(3, ("s", "1 host"), (("ours", "1"), ("pool", "2")), goals, bounds=frozenset({"pool"}))
    put_between_markers(page, "exec", markdown(report))
    put_goals(page, "exec", report.goals)
    assert [line for line in page.read_text().splitlines() if line.startswith("|") and "--" not in line] == [
        "| s | 1 host |",
        "| ours | 1 |",
        "| part | goal | measured |",
        "| `exec` | ≤ 1x the pool | 1.09x |",
        "| `exec` | ≤ 3x | 2x (1 to 4), not decided |",
        "| `sync` | stays | 3x |",
    ]
    before = tmp_path / "other.md"
    before.write_text("no table")
    put_goals(before, "exec", goals)
    assert before.read_text() == "no table"


FIRST = ("train-unchanged", "bare-hosts", "sync", "exec", "play", "install")
"""What a user would otherwise type."""


DOCS = Path(__file__).parents[2] / "docs"


def tables_in(text: str) -> list[tuple[str, str]]:
    """Those with figures; a part that nobody has measured yet has only its markers. Behind a dot is the processor."""
    found = re.findall(r"<!-- begin (\S+) -->\n(.*?)<!-- end \1 -->", text, re.DOTALL)
    return [(name.partition(".")[0], table.strip()) for name, table in found if table.strip()]


def tables_of(page: str) -> list[tuple[str, str]]:
    return tables_in((DOCS / page).read_text())


def test_page_begins_with_what_a_user_would_otherwise_type_and_ends_with_goals() -> None:
    *names, last = dict(tables_of("benchmarks.md"))
    assert last == GOALS
    first = [name for name in FIRST if name in names]
    assert names[: len(first)] == first
    page = (DOCS / "benchmarks.md").read_text()
    assert len(page.split()) <= 2000
    assert "missed" not in page


def test_each_table_of_the_pages_names_its_call_its_machine_and_its_version() -> None:
    tables = [table for page in DOCS.glob("*.md") for table in tables_of(page.name) if table[0] != GOALS]
    assert len(tables) > len(FIRST)
    assert {name for name, _ in tables} <= set(PARTS)
    stamp = r"Medians of (?!1,)\d+(?: \(\w+: \d+\))?, [\d-]{10}, load [\d.]+, `--only (\S+)[^`]*`; [^;]+, ipexctl \S+\."
    for name, text in tables:
        last = text.splitlines()[-1]
        found = re.fullmatch(stamp, last)
        assert found is not None and found[1] == name, last


CITING = ("README.md", "docs/index.md", "docs/fast.md")
_NO_PROSE = re.compile(r"<!-- begin (\S+) -->.*?<!-- end \1 -->|^```.*?^```|^#.*?$", re.DOTALL | re.MULTILINE)
_VERSION = re.compile(r"(?:Python|torch|glibc|such as|Apache-) ?\(?[\d.]+")
_FIGURE = re.compile(r"\d+\.\d+|\d+(?= times| to \d+ times|x\b| %| s\b| ms\b)")


def cited_tables(link: str) -> str:
    """The generated tables below the heading of docs/benchmarks.md to which a link leads."""
    page = (DOCS / "benchmarks.md").read_text()
    for heading, section in re.findall(r"^## (.+)\n((?:(?!## ).*\n)*)", page, re.MULTILINE):
        if re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") == link:
            return "\n".join(table for _, table in tables_in(section))
    raise AssertionError(f"docs/benchmarks.md has no heading #{link}")


def typed_in(text: str) -> list[str]:
    """Figures of a page that are in no generated table to which their paragraph, or row of a table, links."""
    lost = []
    for paragraph in re.split(r"\n\n|\n(?=[|*-])", _NO_PROSE.sub("", text)):
        tables = "".join(map(cited_tables, re.findall(r"benchmarks\.md#([\w-]+)", paragraph)))
        if "fine-tune.md#what-ranks-share" in paragraph:
            tables += "".join(table for _, table in tables_of("guides/fine-tune.md"))
        if "fast.md#bf16-and-fp16" in paragraph:
            tables += "".join(table for _, table in tables_of("fast.md"))
        measured = set(re.findall(r"\d+(?:\.\d+)?", tables))
        measured |= {f"{int(number.replace(',', '')) / 1000:.1f}" for number in re.findall(r"\d+,\d{3}", tables)}  # MB
        prose = _VERSION.sub("", re.sub(r"\]\([^)]*\)|`[^`]*`", "", " ".join(paragraph.split())))
        lost += [f"{figure}: {prose}" for figure in _FIGURE.findall(prose) if figure not in measured]
    return lost


@pytest.mark.parametrize("page", CITING)
def test_each_figure_of_the_first_pages_is_in_the_generated_table_that_it_cites(page: str) -> None:
    assert typed_in((DOCS.parent / page).read_text()) == []


def test_figure_of_an_older_table_or_without_a_link_is_noticed() -> None:
    link = "[measured](docs/benchmarks.md#training-scripts-as-they-are)"
    (gain,) = re.findall(
        r"MLP, 2 ranks.*? ([\d.]+)x, [^|]*\|$", cited_tables("training-scripts-as-they-are"), re.MULTILINE
    )
    assert typed_in(f"{gain} times as fast\nas torchrun ({link}), Python 3.10") == []
    assert [line.split(":")[0] for line in typed_in(f"0.01 to 99 times ({link})\n\n{gain} times")] == [
        "0.01",
        "99",
        gain,
    ]


def test_page_names_how_many_whole_numbers_bf16_keeps_apart() -> None:
    bits = [int.from_bytes(struct.pack(">f", number), "big") for number in range(1000, 1256)]
    rounded = {(each + 0x7FFF + (each >> 16 & 1)) >> 16 for each in bits}
    assert f"of the whole numbers from 1000 to 1255, {len(rounded)} stay apart" in (DOCS / "fast.md").read_text()
