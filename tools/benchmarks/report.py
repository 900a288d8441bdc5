"""The results of a part as text: a plain table for the terminal and for docs/benchmarks.md."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HEADLINES: Final = "headlines"


@dataclass(frozen=True, slots=True)
class Goal:
    """What was aimed at and what came out. Nothing fails by missing it."""

    aim: str
    reached: str
    met: bool | None
    """None: the measurement can't decide it."""


@dataclass(frozen=True, slots=True)
class Headline:
    """A row of the page's first table: what a user asks for."""

    what: str
    ours: str
    other: str
    """The best other one's figure."""
    name: str
    ratio: str


@dataclass(frozen=True, slots=True)
class Report:
    """One part's table: the first cell of a row is a name, the others are figures."""

    medians_of: int
    """How many runs a figure is the median of."""
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    goals: tuple[Goal, ...] = ()
    notes: tuple[str, ...] = ()
    headlines: tuple[Headline, ...] = ()


def left_out(names: Iterable[str]) -> tuple[str, ...]:
    """The note about tools that are not installed; none if there are no such."""
    missing = ", ".join(names)
    return (f"Left out, not installed here: {missing}.",) if missing else ()


def plain(title: str, report: Report) -> str:
    lines = [report.header, *report.rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(report.header))]
    ruled = [report.header, tuple("-" * width for width in widths), *report.rows]
    table = ["  ".join(_aligned(line, widths)).rstrip() for line in ruled]
    goals = [f"goal: {goal.aim}: {goal.reached}: {_verdict(goal)}" for goal in report.goals]
    return "\n".join([title, *table, *goals, *report.notes]) + "\n"


def _aligned(line: tuple[str, ...], widths: list[int]) -> list[str]:
    return [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]


def markdown(report: Report) -> str:
    rule = ("---", *("---:" for _ in report.header[1:]))
    lines = [f"| {' | '.join(line)} |" for line in (report.header, rule, *report.rows)]
    if report.goals:
        shown = "\n".join(lines)
        left = [_not_met(goal, shown) for goal in report.goals if not goal.met]
        lines += ["", f"Goals not met: {'; '.join(left)}." if left else "Every goal was met."]
    for note in report.notes:
        lines += ["", note]
    return "\n".join(lines)


def _not_met(goal: Goal, table: str) -> str:
    """Without the figure, where the table has its interval."""
    reached = "" if goal.reached.partition(")")[0] in table else f" {goal.reached},"
    return f"{goal.aim}:{reached} {_verdict(goal)}"


def _verdict(goal: Goal) -> str:
    return "not decided" if goal.met is None else "met" if goal.met else "missed"


def put_headlines(path: Path, headlines: Iterable[Headline], date: str, processor: str) -> None:
    """Replace these rows of the first table, known by their first cell; new ones go to its end."""
    begin = f"<!-- begin {HEADLINES} -->"
    _, _, rest = path.read_text().partition(begin)
    head, rule, *lines = [line for line in rest.partition("<!-- end")[0].splitlines() if line]
    rows = {line.split(" | ")[0]: line for line in lines}
    for found in headlines:
        cells = (found.what, found.ours, f"{found.other} ({found.name})", found.ratio, date, processor)
        rows[f"| {found.what}"] = f"| {' | '.join(cells)} |"
    put_between_markers(path, HEADLINES, "\n".join([head, rule, *rows.values()]))


def put_between_markers(path: Path, name: str, text: str) -> None:
    """Replace what lies between `<!-- begin NAME -->` and `<!-- end NAME -->`; a page without them is left as it is."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    path.write_text(pattern.sub(lambda _: f"{begin}\n\n{text}\n\n{end}", path.read_text()))
