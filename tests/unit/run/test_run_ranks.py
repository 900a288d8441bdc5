"""Parsing choices of ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipexctl.run.ranks import EVERY_RANK, fold_ranks, parse_ranks


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("0", {0}),
        ("0-3,8", {0, 1, 2, 3, 8}),
        (" 1 , 3-4 ", {1, 3, 4}),
        ("0-8/4", {0, 4, 8}),
        ("[0-1]", {0, 1}),
        ("all", set(range(20))),
        ("*", set(range(20))),
    ],
)
def test_rank_sets_are_parsed(text: str, ranks: set[int]) -> None:
    parsed = parse_ranks(text)
    assert {rank for rank in range(20) if rank in parsed} == ranks


def test_ranks_of_the_run_are_taken() -> None:
    assert parse_ranks("0-7").within(4) == parse_ranks("0-7")
    assert EVERY_RANK.within(1).has_all


@given(st.sets(st.integers(0, 300), min_size=1))
def test_folded_ranks_are_parsed_back(ranks: set[int]) -> None:
    folded = fold_ranks(ranks)
    parsed = parse_ranks(folded)
    assert {rank for rank in range(301) if rank in parsed} == ranks
    assert str(parsed) == folded


def test_empty_rank_list_folds_to_an_empty_text() -> None:
    assert fold_ranks([]) == ""
    assert fold_ranks([8, 1, 0, 2, 1]) == "0-2,8"
