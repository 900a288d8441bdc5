"""What ranks print about themselves: where they resumed, their amount of data. Pure.

Ranks that differ in it have a cause of their own, which a general rule would miss.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from ipexctl.known_errors.match import RankOutput, bare
from ipexctl.run.ranks import describe_ranks

_OTHER: Final = re.compile(
    r"\b(?:best|saves?|saved|saving|deletes?|deleted|deleting|removes?|removed|removing)\b", re.IGNORECASE
)
_RESUMED: Final = re.compile(
    r"\b(?i:resum(?:e|es|ed|ing)|load(?:s|ed|ing)?|restor(?:e|es|ed|ing)|continu(?:e|es|ed|ing)|from|can't find)\b"
    r".*?(?<![\w./~+=@-])(?P<above>(?:[\w.~+=@-]*/)*)"
    r"(?P<name>checkpoint[-_][0-9]+|(?<=/)(?:step|epoch)[-_][0-9]+|[\w=.-]+\.ckpt)(?![\w=-])"
)
_RESUMED_AT: Final = re.compile(
    r"\b(?:resum(?:e|es|ed|ing)|continu(?:e|es|ed|ing))\b[^\n]{0,60}?"
    r"\b(?:(?:at|from|after|with)\s+)?(?P<unit>step|epoch|iteration|iter|at)\b[\s:=#]{0,3}(?P<number>[0-9]{1,12})(?![\w.:])",
    re.IGNORECASE,
)
_DATA: Final = re.compile(
    r"(?<![\w./-])(?P<number>[0-9]{1,12}) (?P<unit>batches|steps per epoch)\b"
    r"|\b(?P<name>batches|steps per epoch|len\(\w*loader\))\s?[:=]\s?(?P<other>[0-9]{1,12})(?![\w.])",
    re.IGNORECASE,
)
_NUMBER: Final = re.compile(r"[0-9]+")


class RankReport(NamedTuple):
    """Something in which the ranks differ, by their own lines."""

    sentence: str
    """`rank 0 resumed from checkpoint-30, ranks 1-2 from checkpoint-60`."""
    lines: tuple[tuple[int, str], ...]
    """One rank of each group, with its line."""
    place: str = ""
    """Directory of the checkpoints, or empty."""


class Said(NamedTuple):
    """What one rank said of itself: a value, the line that has it, and the directory that the line names or nothing."""

    value: str
    line: str
    place: str = ""


def find_resumed_apart(outputs: Iterable[RankOutput]) -> RankReport | None:
    """Return the ranks that resumed from different checkpoints or steps, by their own lines; None if all agree."""
    known = list(outputs)
    by_name = resume_points_by_rank(known)
    if (report := _apart(by_name, "resumed from {}", "from {}")) is not None:
        return report
    return _apart(_said_by_rank(known, _resumed_at), "resumed at {}", "at {}")


def find_unequal_data(outputs: Iterable[RankOutput]) -> RankReport | None:
    """Ranks whose first line about data has the same words and another amount."""
    said = _said_by_rank(outputs, _data)
    words = {_NUMBER.sub("N", report.line) for report in said.values()}
    return _apart(said, "with {}", "with {}") if len(words) == 1 else None


def resume_points_by_rank(outputs: Iterable[RankOutput]) -> dict[int, Said]:
    """Return rank → the checkpoint from which it says that it resumed; ranks that say nothing are left out."""
    return _said_by_rank(outputs, _resumed_from)


def _apart(said: dict[int, Said], verb: str, short: str) -> RankReport | None:
    ranks: dict[str, list[int]] = {}
    for rank, report in said.items():
        ranks.setdefault(report.value, []).append(rank)
    if len(ranks) < 2:
        return None
    forms = (verb, *[short] * (len(ranks) - 1))
    groups = zip(forms, ranks.items(), strict=True)
    parts = [f"{describe_ranks(group)} {form.format(value)}" for form, (value, group) in groups]
    place = next((report.place for report in said.values() if report.place), "")
    more = f" and {len(parts) - _MOST} more" if len(parts) > _MOST else ""
    lines = tuple((group[0], said[group[0]].line) for group in ranks.values())
    return RankReport(", ".join(parts[:_MOST]) + more, lines, place)


_MOST: Final = 6


def _said_by_rank(outputs: Iterable[RankOutput], read: Callable[[str], Said | None]) -> dict[int, Said]:
    """The first line of each rank that `read` understands."""
    first_lines = ((output.rank, next(filter(None, map(read, _lines(output))), None)) for output in outputs)
    return {rank: said for rank, said in first_lines if rank is not None and said is not None}


def _lines(output: RankOutput) -> Iterable[str]:
    return map(bare, (*output.out, *output.err))


def _resumed_from(line: str) -> Said | None:
    if _OTHER.search(line) or (match := _RESUMED.search(line)) is None:
        return None
    return Said(match["name"], line, posixpath.normpath(match["above"]) if match["above"] else "")


def _resumed_at(line: str) -> Said | None:
    if _OTHER.search(line) or (match := _RESUMED_AT.search(line)) is None:
        return None
    unit = match["unit"].lower()
    return Said(match["number"] if unit == "at" else f"{unit} {match['number']}", line)


def _data(line: str) -> Said | None:
    match = _DATA.search(line)
    if match is None:
        return None
    return Said(f"{match['number'] or match['other']} {(match['unit'] or match['name']).lower()}", line)
