"""The results of a part as text: a plain table for the terminal and for docs/benchmarks.md."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Goal:
    """What was aimed at and what came out. Nothing fails by missing it."""

    aim: str
    reached: str
    met: bool | None
    """None: the measurement can't decide it."""


@dataclass(frozen=True, slots=True)
class Report:
    """One part's table: the first cell of a row is a name, the others are figures."""

    medians_of: int
    """How many runs a figure is the median of."""
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    goals: tuple[Goal, ...] = ()
    notes: tuple[str, ...] = ()


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


def put_between_markers(path: Path, name: str, text: str) -> None:
    """Replace what lies between `<!-- begin NAME -->` and `<!-- end NAME -->`; ValueError where they are not."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    before = path.read_text()
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    after, found = pattern.subn(lambda _: f"{begin}\n\n{text}\n\n{end}", before)
    if found != 1:
        raise ValueError(f"{path} has {found} places between {begin} and {end}, not one")
    path.write_text(after)
