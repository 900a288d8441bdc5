"""Wrong trainings, and those that only look so, from what ranks say of them. Real trainings:
`tests/stack/test_wrong_trainings.py`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ipexctl.node.common.json_records import decode, encode
from ipexctl.node.common.levers import LeverNote, asked_levers
from ipexctl.node.common.plan import Plan
from ipexctl.node.common.rank_options import Choice
from ipexctl.node.common.training import RankTraining, find_wrong
from plan_helpers import small_plan

SAME = dict.fromkeys((1, 2, 3, 4, 5, 6, 7, 8, 9, 17), 7)
APART: dict[str, Any] = {"parameters": [{1: 7, 2: 1, 3: 1, 17: 1}, {1: 7, 2: 2, 3: 2, 17: 2}]}
BATCHES = tuple(range(1, 9))
DATA: dict[str, Any] = {"batches": BATCHES, "losses": BATCHES, "is_varied": True}
OF_DDP: dict[str, Any] = {"models": 1, "group": (0, 2), "is_synced": True}
TRAINED: dict[str, Any] = {"steps": 40, "elements": 1000, "largest": 500, "parameters": SAME}


def ranks(fields: dict[str, Any]) -> dict[int, RankTraining]:
    """A list has a value for each of the two ranks."""
    rows = [{name: value[n] if isinstance(value, list) else value for name, value in fields.items()} for n in (0, 1)]
    return {number: RankTraining(**{**TRAINED, **row}) for number, row in enumerate(rows)}


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("same-data", {**OF_DDP, **DATA}),
        ("same-order", {**OF_DDP, "is_order_repeated": True}),
        ("no-exchange", {**APART, "sent": 40, "most_sent": 1}),
        ("no-exchange", {"parameters": [{1: 1, 2: 1}, {1: 2, 2: 2}], "is_seeded": False}),
        ("bypassed", {**APART, **OF_DDP, "is_synced": False}),
        ("no-sync", {**APART, **OF_DDP, "is_synced": False, "is_skipped": True}),
        ("small-groups", {**APART, **OF_DDP, "group": [(0, 1), (1, 1)]}),
        ("no-gradients", {**OF_DDP, "has_gradients": False}),
        ("statistics", {**OF_DDP, "statistics": [{1: 1, 2: 2}, {1: 1, 2: 3}], "statistics_size": 32}),
        ("zero-gradients", {**OF_DDP, "has_nonzero": False, "is_changed": False}),
        ("unchanged", {**OF_DDP, "is_changed": False, "rate": 0.0}),
        ("same-losses", {**OF_DDP, "losses": BATCHES, "is_varied": True}),
        ("summed-twice", {**OF_DDP, "sent": 39_000, "most_sent": 500, "summed": 39_039}),
        ("apart", {"parameters": [SAME, dict.fromkeys(SAME, 8)], "sent": 39_000, "most_sent": 500, "summed": 39_000}),
        ("", {**OF_DDP, "is_changed": [True, False]}),
        ("", {**OF_DDP, "losses": [BATCHES, BATCHES[::-1]]}),
        ("", {**OF_DDP, "losses": BATCHES}),  # a benchmark: one batch again and again
        ("", {"losses": BATCHES, "is_varied": True}),
        ("", {**OF_DDP, "sent": 39_000, "most_sent": 500, "summed": 39_000, "is_hooked": True}),
        ("", {**OF_DDP, "sent": 39_000, "most_sent": 500, "summed": 39_000, "is_skipped": True}),
        ("", {**OF_DDP, "sent": 39_000, "most_sent": 500}),  # broadcasts
        ("", {**OF_DDP, "sent": 20_000, "most_sent": 500, "summed": 20_000}),
        ("", {"sent": 39_000, "most_sent": 500, "summed": 39_000}),  # averaged by hand
        ("", OF_DDP),
        ("", {**APART, **OF_DDP}),  # processors that round in other ways
        ("", {**APART, "sent": 40 * 1000, "most_sent": 1000}),
        ("", {**APART, "sent": 500, "most_sent": 500}),  # averaged once: local SGD
        ("", {**APART, "is_peer_to_peer": True}),
        ("", {**APART, "steps": 4}),
        ("", {"parameters": [{1: 7, 2: 1, 3: 5}, {1: 7, 2: 2, 3: 5}]}),  # equal again
        ("", {"parameters": [{1: 1, 2: 1}, {1: 2, 2: 2}]}),  # a seed a rank
        ("", {**APART, "elements": [1000, 900]}),  # stages
        ("", {**APART, **OF_DDP, "group": [(0, 2), (1, 2)]}),
        ("", {**OF_DDP, **DATA, "losses": [BATCHES, BATCHES[::-1]]}),
        ("", {**OF_DDP, **DATA, "batches": [BATCHES, BATCHES[::-1]]}),
        ("", {**OF_DDP, **DATA, "is_varied": False}),
        ("", {**DATA}),  # tensor parallel
        ("", {**OF_DDP, **DATA, "group": [(0, 2), (1, 2)]}),
        ("", {"has_gradients": [True, False]}),  # a shard of another rank
        ("", {**OF_DDP, "models": 2, "statistics": [{2: 2}, {2: 3}], "statistics_size": 32}),
        ("", {**OF_DDP, "most_sent": 32, "statistics": [{2: 2}, {2: 3}], "statistics_size": 32}),
        ("", {**OF_DDP, "statistics": [{2: 2, 3: 4}, {2: 3, 3: 4}], "statistics_size": 32}),
    ],
)
def test_wrong_trainings_are_told_and_a_doubt_is_none(kind: str, fields: dict[str, Any]) -> None:
    found = find_wrong(ranks(fields), 2, is_over=True)
    assert [(each.kind, each.ranks) for each in found] == ([(kind, (0, 1))] if kind else [])
    for each in found:
        assert each.sentence.startswith("ranks 0-1 ")
        assert "; fix: " in each.sentence
    sent = {
        number: decode(RankTraining, json.loads(json.dumps(encode(rank))), "it")
        for number, rank in ranks(fields).items()
    }
    assert find_wrong(sent, 2, is_over=True) == found, "as it is sent"


def test_a_run_is_judged_at_its_end_or_after_many_steps_of_all_ranks() -> None:
    few, many = ranks(APART), ranks({**APART, "steps": 300})
    assert not find_wrong(few, 2, is_over=False)
    assert find_wrong(many, 2, is_over=False)
    assert not find_wrong(many, 3, is_over=True)


AUTOCAST, FUSED = "autocast", "fused_optimizer"
ASKED: tuple[Choice, Choice] = Choice("bf16", "asked"), Choice("on", "asked")


@pytest.mark.parametrize(
    ("notes", "said"),
    [
        ([(AUTOCAST, True, 9, ""), (FUSED, False, 0, "the optimizer is LBFGS")], ("9 steps", "optimizer is LBFGS")),
        (
            [(AUTOCAST, True, 0, ""), (FUSED, True, 7, ""), ("--rm -rf", True, 1, "")],
            ("step of an optimizer", "7 steps"),
        ),
        ([], ("no process of a rank", "no process of a rank")),
    ],
)
def test_each_option_that_was_asked_for_is_answered(notes: list[Any], said: tuple[str, str]) -> None:
    uses = asked_levers(plan(ASKED), [[LeverNote(*note) for note in notes]])
    assert [use.name for use in uses] == [AUTOCAST, FUSED]
    assert all(part in use.sentence for part, use in zip(said, uses, strict=True))


def test_an_option_that_the_plan_has_left_out_says_why() -> None:
    left = Choice("off", "no-bf16"), Choice("off", "torch-too-old")
    assert [use.reason for use in asked_levers(plan(left), [])] == [
        "not all processors have bf16 instructions",
        "torch is too old",
    ]
    assert asked_levers(small_plan(), []) == ()
    (use, _) = asked_levers(plan(ASKED, meter=False), [])
    assert use.acted is None
    assert "--no-meter" in use.sentence


def plan(fast: tuple[Choice, Choice], *, meter: bool = True) -> Plan:
    chosen = dict(zip((AUTOCAST, FUSED), fast, strict=True))
    return small_plan(rank_options=chosen, asked={"fast": True, "meter": meter})
