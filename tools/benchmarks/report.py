"""The results of a part as text: a plain table for the terminal and for docs/benchmarks.md."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

GOALS: Final = "goals"


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
    bounds: frozenset[str] = frozenset()
    """Rows that only a goal needs: nobody would type them, and the page leaves them out."""


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
    rule = f"|---|{'---:|' * (len(report.header) - 1)}"
    rows = (row for row in report.rows if row[0] not in report.bounds)
    head, *lines = (f"| {' | '.join(line)} |" for line in (report.header, *rows))
    lines = [head, rule, *lines]
    for note in report.notes:
        lines += ["", note]
    return "\n".join(lines)


def _verdict(goal: Goal) -> str:
    return "not decided" if goal.met is None else "met" if goal.met else "missed"


def put_goals(path: Path, part: str, goals: Iterable[Goal]) -> None:
    """Replace this part's rows of the table of goals that were not met; a page without it is left as it is."""
    _, table, rest = path.read_text().partition(f"<!-- begin {GOALS} -->")
    if not table:
        return
    head, rule, *lines = [line for line in rest.partition("<!-- end")[0].splitlines() if line]
    begin = f"| `{part}` |"
    rows = [line for line in lines if not line.startswith(begin)]
    undecided = {None: ", not decided", False: ""}
    rows += [f"{begin} {goal.aim} | {goal.reached}{undecided[goal.met]} |" for goal in goals if not goal.met]
    put_between_markers(path, GOALS, "\n".join([head, rule, *sorted(rows)]))


def put_between_markers(path: Path, name: str, text: str) -> None:
    """Replace what lies between `<!-- begin NAME -->` and `<!-- end NAME -->`; a page without them is left as it is."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    path.write_text(pattern.sub(lambda _: f"{begin}\n\n{text}\n\n{end}", path.read_text()))
