"""Comparison of output with a page: figures, ids and widths may differ, and `…` stands for anything."""

from __future__ import annotations

import re
from typing import Final

_FIGURES: Final = (
    (re.compile(r"\b\d{4}-\d{6}-[0-9a-f]{4}\b"), "ID"),
    (re.compile(r"(?<=[a-z\d]-)(?=[0-9a-f]*\d)[0-9a-f]{8}\b"), "MARK"),
    (re.compile(r"/(home|Users)/\w+(?=/)"), "/home/me"),
    (re.compile(r"(?<=/code/)[\w.]+(?=-MARK\b)"), "project"),
    (re.compile(r"\(\w+@[\w.-]+\)"), "(ann@desk)"),
    (re.compile(r"─+"), "─"),
    (re.compile(r"\b(float32|bfloat16|fp32|bf16)\b"), "DTYPE"),
    (re.compile(r"\b(?:(\d+) min|\d+:\d+|[\d.]+ s)\b"), "TIME"),
    (re.compile(r"\d[\d,.:]*([-,][\d,.]*\d)*"), "0"),
    (re.compile(r"\b0 [kMG]?B\b"), "0 B"),
    (re.compile(r"\s+"), " "),
)
"""Values that depend on time, machine or size, and their placeholders."""


def without_figures(line: str) -> str:
    for pattern, stand_in in _FIGURES:
        line = pattern.sub(stand_in, line)
    return line.strip()


def matches_page(told: str, came: str) -> bool:
    pattern = ".*".join(re.escape(without_figures(part)) for part in told.split("…"))
    return re.fullmatch(pattern.replace(".*", " ?.*? ?"), without_figures(came)) is not None


def find_difference(told: list[str], stdout: list[str], stderr: list[str]) -> str | None:
    """The first expected line that is missing, or a different number of lines without an `…`."""
    shown = [line for line in told if line.strip() and line.strip() != "…"]
    left = [line for line in (*stdout, *stderr) if line.strip()]
    came = (len([line for line in stdout if line.strip()]), len([line for line in stderr if line.strip()]))
    for line in shown:
        found = next((other for other in left if matches_page(line, other)), None)
        if found is None:
            return f"this is told and doesn't come: {line}"
        left.remove(found)
    whole = all(line.strip() != "…" for line in told)
    if shown and whole and len(shown) not in (*came, sum(came)):
        return f"{len(shown)} lines are told; {came[0]} came on stdout and {came[1]} on stderr"
    return None
