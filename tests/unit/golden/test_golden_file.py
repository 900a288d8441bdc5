"""The comparison with golden files: a difference fails with a diff, and IPEXCTL_GOLDEN=write updates the file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from golden_file import Case, golden_diff, render

CASES = [Case("home.full", "200 MB left\non node1", "make room"), Case("tmp", "a"), Case("tmp", "b")]


def test_a_message_with_other_data_is_rendered_once_and_that_data_follows() -> None:
    more = Case("home.full", "9.5 MB left\non node2", "make room")
    assert render([*CASES, CASES[0], more]) == (
        "home.full\n  200 MB left\n  on node1\n  fix: make room\n  also: 9.5 2\n\ntmp #1\n  a\n\ntmp #2\n  b\n"
    )


@pytest.mark.parametrize(
    "cases", [CASES[:2], [*CASES, Case("new", "c")], CASES[::-1], [*CASES[:2], Case("tmp", "b ")]], ids=str
)
def test_any_difference_fails_with_a_diff(cases: list[Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPEXCTL_GOLDEN", "write")
    assert golden_diff("area", CASES, tmp_path) == ""
    monkeypatch.delenv("IPEXCTL_GOLDEN")
    assert golden_diff("area", CASES, tmp_path) == ""
    diff = golden_diff("area", cases, tmp_path)
    assert re.search(r"(?m)^[+-]  ?\w", diff)
    assert "golden/area.txt" in diff


def test_missing_golden_file_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IPEXCTL_GOLDEN", raising=False)
    assert "+home.full" in golden_diff("area", CASES, tmp_path)
