"""Wrong trainings, and those that only look so, from what ranks say of them. Real trainings:
`tests/stack/test_wrong_trainings.py`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ipexctl.node.common.json_records import decode, encode, parse_json
from ipexctl.node.common.lever_records import LeverNote, asked_levers
from ipexctl.node.common.plan import Plan
from ipexctl.node.common.rank_options import Choice
from ipexctl.node.common.training import RankTraining, find_wrong
from plan_helpers import small_plan

LOOKED_AT = (1, 2, 3, 4, 5, 6, 7, 8, 9, 17)
SAME = dict.fromkeys(LOOKED_AT, 7.0)
ROUNDED = dict.fromkeys(LOOKED_AT, 7.00001)
OTHER = dict.fromkeys(LOOKED_AT, 8.0)
APART: dict[str, Any] = {"parameters": [SAME, {**OTHER, 1: 7.0}]}
BATCHES = tuple(range(1, 9))
DATA: dict[str, Any] = {"inputs": BATCHES, "losses": BATCHES, "is_varied": True}
OF_DDP: dict[str, Any] = {"models": 1, "group": (0, 2), "is_synced": True}
ALONE: dict[str, Any] = {"models": 1, "group": (0, 2)}
OTHERS = BATCHES[::-1]
TRAINED: dict[str, Any] = {"steps": 40, "backwards": 40, "elements": 1000, "largest": 500, "parameters": SAME}
IDLE: dict[str, Any] = {"steps": [40, 0], "is_changed": [True, False]}
LARGE: dict[str, Any] = {"sent": 39_000, "most_sent": 500}


def ranks(fields: dict[str, Any]) -> dict[int, RankTraining]:
    """A list has a value for each of the two ranks."""
    rows = [{name: value[n] if isinstance(value, list) else value for name, value in fields.items()} for n in (0, 1)]
    return {number: RankTraining(**{**TRAINED, **row}) for number, row in enumerate(rows)}


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("same-data", {**OF_DDP, **DATA}),
        ("same-order", {**OF_DDP, "is_order_repeated": True}),
        ("divided-twice", {**OF_DDP, "divided": [(1, 48, 2), (2, 48, 2)]}),
        ("bypassed", {**APART, **ALONE}),
        ("no-sync", {**APART, **ALONE, "is_skipped": True}),
        ("no-gradients", {**OF_DDP, "has_gradients": False, "is_changed": False}),
        ("cleared", {**OF_DDP, "has_gradients": False, "is_changed": False, "is_cleared": True}),
        ("cleared", {**OF_DDP, "has_nonzero": False, "is_changed": False, "is_cleared": True}),
        ("zero-gradients", {**OF_DDP, "has_nonzero": False, "is_changed": False}),
        ("unchanged", {**OF_DDP, "is_changed": False, "rate": 0.0}),
        ("not-cleared", {**OF_DDP, "intervals": 9, "carried": 9}),
        ("summed-twice", {**OF_DDP, **LARGE, "reduced": 9}),
        ("apart", {"parameters": [SAME, OTHER], **LARGE, "reduced": 9}),
        ("apart", {**APART, **LARGE, "reduced": 9}),  # a rate a rank, averaged by hand
        ("differ", {**OF_DDP, **APART}),
        ("differ", {**OF_DDP, "parameters": [SAME, {**SAME, 9: 7.1, 17: 7.2}]}),
        ("no-exchange", {**APART, "sent": 40, "most_sent": 1}),
        ("no-exchange", {"parameters": [SAME, OTHER]}),
        ("small-groups", {**APART, **ALONE, "is_synced": True, "group": [(0, 1), (1, 1)]}),
        ("outside", {**OF_DDP, "outside": [SAME, OTHER]}),
        ("same-inputs", {**OF_DDP, **DATA, "losses": [BATCHES, OTHERS]}),  # noise inside of the model
        ("same-losses", {**DATA}),
        ("same-losses", {**OF_DDP, **DATA, "inputs": (0,) * 8}),
        ("", {**OF_DDP, **DATA, "is_joint": True}),  # a global loss
        ("", {**DATA, "is_joint": True}),
        ("", {**DATA, "inputs": [BATCHES, OTHERS]}),
        ("", {**OF_DDP, **DATA, "inputs": [BATCHES, OTHERS]}),
        ("", {**OF_DDP, **DATA, "is_varied": False}),  # a benchmark: one batch again and again
        ("", {**OF_DDP, **DATA, "group": [(0, 2), (1, 2)]}),
        ("", {**OF_DDP, **DATA, "losses": BATCHES[:4], "inputs": BATCHES[:4]}),
        ("", {**OF_DDP, "is_changed": [True, False]}),
        ("", {**OF_DDP, "has_nonzero": False}),  # the weights at the end are others
        ("", {**OF_DDP, "has_gradients": False, "is_cleared": True}),
        ("", {**OF_DDP, "intervals": 9, "carried": 9, "is_written": True}),  # cleared once, at a step not looked at
        ("same-inputs", {**OF_DDP, **DATA, "all_losses": [1, 2]}),  # equal data at the first steps only
        ("", {**DATA, "all_losses": [1, 2]}),
        ("", {**OF_DDP, **APART, "ends": (41, 7.0, 0.0)}),  # equal again at the end
        ("differ", {**OF_DDP, "parameters": [SAME, {**SAME, 17: 8.0}], "ends": [(41, 7.0, 0.0), (41, 8.0, 0.0)]}),
        ("", {**OF_DDP, "is_cleared": True}),
        (
            "",
            {**OF_DDP, "intervals": 9, "carried": 8, "parameters": dict.fromkeys(range(1, 11), 7.0)},
        ),  # a GAN's critic
        ("", {**OF_DDP, **LARGE, "reduced": 3}),
        ("", {**OF_DDP, **LARGE, "reduced": 9, "is_hooked": True}),
        ("", {**OF_DDP, **LARGE, "reduced": 9, "is_skipped": True}),
        ("", {**LARGE, "reduced": 9}),  # averaged by hand
        ("", {"parameters": [SAME, ROUNDED], **LARGE, "reduced": 9}),
        ("", OF_DDP),
        ("", {**OF_DDP, "parameters": [SAME, ROUNDED]}),  # processors that round in other ways
        ("", {**OF_DDP, "parameters": [SAME, {**SAME, 9: 8.0}]}),  # equal again
        ("", {**OF_DDP, "parameters": [SAME, {**SAME, 17: 8.0}]}),
        ("", {**OF_DDP, **APART, **LARGE}),
        ("", {**OF_DDP, **APART, "is_hooked": True}),
        ("", {**OF_DDP, **APART, "is_skipped": True}),
        ("", {**OF_DDP, **APART, "models": 2}),
        ("", {**OF_DDP, **APART, "elements": [1000, 900]}),
        ("", {**OF_DDP, **APART, "group": [(0, 2), (1, 2)]}),
        ("", {**OF_DDP, "outside": [SAME, OTHER], **LARGE}),  # experts
        ("", {**APART, **LARGE}),
        ("", {**APART, "sent": 500, "most_sent": 500}),  # averaged once: local SGD
        ("", {**APART, "is_peer_to_peer": True}),
        ("", {**APART, "steps": 4}),
        ("", {**APART, "elements": [1000, 900]}),  # stages
        ("", {"has_gradients": [True, False], "is_changed": [True, False]}),  # a shard of another rank
    ],
)
def test_wrong_trainings_are_told_and_a_doubt_is_none(kind: str, fields: dict[str, Any]) -> None:
    found = find_wrong(ranks(fields), 2, is_over=True)
    assert [(each.kind, each.ranks) for each in found] == ([(kind, (0, 1))] if kind else [])
    for each in found:
        assert each.sentence.startswith("ranks 0-1 ")
        assert each.certain == ("; fix: " in each.sentence) == ("; check: " not in each.sentence)
    sent = {
        number: decode(RankTraining, json.loads(json.dumps(encode(rank))), "it")
        for number, rank in ranks(fields).items()
    }
    assert find_wrong(sent, 2, is_over=True) == found, "as it is sent"


@pytest.mark.parametrize(
    ("idle", "fields"),
    [
        ((1,), {**OF_DDP, **IDLE}),
        ((), {**OF_DDP, **IDLE, "is_changed": True}),  # its parameters came by broadcast
        ((), {**OF_DDP, **IDLE, "is_synced": [True, False]}),  # an evaluation
        ((), {**OF_DDP, **IDLE, "steps": [4, 0]}),
    ],
)
def test_a_rank_without_a_step_is_told_if_it_exchanged_gradients(idle: tuple[int, ...], fields: dict[str, Any]) -> None:
    found = find_wrong(ranks(fields), 2, is_over=True)
    assert [(each.kind, each.ranks) for each in found] == ([("no-step", idle)] if idle else [])
    assert not find_wrong(ranks(fields), 2, is_over=False)


@pytest.mark.parametrize("loss", [1e21, -1e300, 5, 3.0e-30])
def test_a_loss_of_any_size_drops_no_evidence(loss: float) -> None:
    document = {"steps": 9, "progress": {"step": 9, "loss": loss}, "parameters": {"1": -1e19}}
    read = decode(RankTraining, parse_json(json.dumps(document)), "it")
    assert (read.steps, read.progress.loss, read.parameters) == (9, loss, {1: -1e19})


def test_a_run_is_judged_at_its_end_or_after_many_steps_of_all_ranks() -> None:
    few, many = ranks({**OF_DDP, **APART}), ranks({**OF_DDP, **APART, "steps": 300})
    assert not find_wrong(few, 2, is_over=False)
    assert find_wrong(many, 2, is_over=False)
    assert not find_wrong(many, 3, is_over=True)
    asked = find_wrong(ranks({**OF_DDP, "is_changed": False, "steps": 300}), 2, is_over=False)
    assert [(each.kind, each.certain) for each in asked] == [("nothing-yet", False)], "a later step may change one"
    question = ranks({**APART, "steps": 300})
    assert find_wrong(question, 2, is_over=True)
    assert not find_wrong(question, 2, is_over=False), "they may still exchange something"


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
        ([], ("unknown whether it acted", "no process of a rank told it before its end")),
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
