"""The page of a search: it says what the terminal says, and nothing in it comes alive."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from test_autotune_output import RESULTS
from test_report_html import Skeleton, attacks

from ipexctl.extras.autotune.page import search_html
from ipexctl.extras.autotune.tuner import SearchResult
from ipexctl.extras.autotune.view import verdict_lines


def attacked(text: str) -> str:
    result = RESULTS["a gain"]
    change = (("bind", text),)
    rows = tuple(replace(row, change=change, reason=text) for row in result.progress.candidates)
    trials = tuple(
        (replace(trial, settings=change), replace(seen, failure=text, rate=None)) for trial, seen in result.trials
    )
    verdict = result.progress.verdict
    assert verdict is not None
    progress = replace(result.progress, candidates=rows, verdict=replace(verdict, settings=change))
    return search_html(SearchResult(progress, trials), text, text, "steps/s")


def test_no_element_attribute_or_address_comes_from_a_text() -> None:
    harmless = Skeleton(attacked("x")).found
    for text in attacks():
        assert Skeleton(attacked(text)).found == harmless, text


@pytest.mark.parametrize("name", RESULTS)
def test_the_page_says_what_the_terminal_says(name: str) -> None:
    result = RESULTS[name]
    texts = Skeleton(search_html(result, "train.py", "ipexctl run train.py", "steps/s")).texts
    shown = "\n".join(texts)
    assert all(line.strip() in shown for line in verdict_lines(result, "ipexctl run train.py"))
    assert shown.count("rank 0 was killed") >= sum(bool(seen.failure) for _, seen in result.trials)


def test_a_candidate_that_is_ahead_has_its_bar_to_the_right_of_the_baseline() -> None:
    document = search_html(RESULTS["a gain"], "train.py", "ipexctl run train.py", "steps/s")
    marks = [float(x) for x in re.findall(r'<rect class="w4" x="([0-9.]+)"', document)]
    (baseline,) = set(re.findall(r'<path class="grid" d="M([0-9.]+) 0V', document))
    assert marks
    assert all(mark > float(baseline) for mark in marks)
