"""The profile of a run from those of its ranks: parts, sentences, advice."""

from __future__ import annotations

import pytest

from ipexctl.node.run.rank_profile import OperatorTime, RankProfile
from ipexctl.run.profile import PARTS, lines_of, profile_of, share_sentence

USUAL = RankProfile(
    first_step=7,
    steps=2,
    seconds=2.0,
    usual=0.9,
    data=0.1,
    forward=0.6,
    backward=0.8,
    optimizer=0.2,
    rest=0.1,
    communication=(0.1, 0.1),
    gaps=0.1,
    cpu=14.0,
    cores=8,
    threads=8,
    operators=(OperatorTime("aten::mm", "2x3 3x4", "fp32", 4, 1.0),),
    has_shapes=True,
    flops=100_000_000_000,
    dtype="fp32",
    products=100,
    product_seconds=1.4,
    peak=200e9,
    peak_spread=1.1,
    peak_bf16=210e9,
    cost=0.5,
)


def test_parts_add_up_to_the_step() -> None:
    profile = profile_of({0: USUAL})
    assert profile is not None
    assert profile.main is not None
    assert tuple(profile.main.parts) == PARTS
    assert sum(profile.main.parts.values()) == pytest.approx(profile.main.step)
    assert profile.main.parts["all_reduce"] == pytest.approx(0.1)
    assert profile.share == pytest.approx(0.25)
    assert profile.operators[0] == OperatorTime("aten::mm", "2x3 3x4", "fp32", 2, 0.5)
    assert profile.advice == ()
    assert profile.document().keys() >= {"step", "parts", "operators", "flops", "peak", "share"}


def test_the_shortest_communication_of_each_step_is_the_all_reduce_and_more_is_waiting() -> None:
    late = USUAL._replace(communication=(0.5, 0.1), forward=0.2)
    profile = profile_of({0: late, 1: USUAL})
    assert profile is not None
    assert profile.main is not None
    assert profile.main.rank == 1
    assert profile.ranks[0].parts["wait"] == pytest.approx(0.2)
    assert profile.ranks[0].parts["all_reduce"] == pytest.approx(0.1)
    assert "rank 0 waits 20 % of a step for rank 1: ipexctl slow" in profile.advice


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"data": 0.5, "rest": 0.0, "forward": 0.3}, "waiting for data takes 25 % of a step"),
        ({"communication": (0.3, 0.3), "forward": 0.2}, "all-reduce takes 30 % of a step"),
        ({"gaps": 0.8}, "Python between operators takes 40 % of a step"),
        ({"gaps": 1.8, "cpu": 0.2}, "sleeps or waits outside torch for 90 % of a step"),
        ({"products": 100_000, "flops": 1}, "a matrix product takes 14 µs on average, too little for 8 threads"),
        ({"threads": 1}, "torch uses 1 thread on 8 cores: --omp 8"),
        ({"cpu": 2.0, "communication": (0.0, 0.0), "rest": 0.3}, "8 threads worked 12 % of a step"),
        ({"peak_spread": 5.2, "load": 14.0}, "took 5.2 times its best time, at load 14"),
    ],
)
def test_advice_has_the_number_that_it_follows_from(changes: dict[str, object], advice: str) -> None:
    profile = profile_of({0: USUAL._replace(**changes)})  # type: ignore[arg-type]
    assert profile is not None
    assert len(profile.advice) == 1
    assert advice in profile.advice[0]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "25 % of what these 8 cores can do in fp32 (50 GFLOP/s of 200)"),
        ({"peak_bf16": 800e9}, "bf16 would allow up to 4.0x: --fp32-math bf16"),
        ({"product_seconds": 0.2}, "matrix products take only 10 % of a step"),
        ({"is_compiled": True}, "compiled code is not counted in FLOP/s"),
        ({"peak": 0.0}, "50 GFLOP/s"),
        ({"flops": 0}, ""),
    ],
)
def test_share_of_the_peak(changes: dict[str, object], sentence: str) -> None:
    profile = profile_of({0: USUAL._replace(**changes)})  # type: ignore[arg-type]
    assert profile is not None
    assert sentence in share_sentence(profile)


def test_reasons_for_a_missing_profile_are_said_once() -> None:
    profile = profile_of(dict.fromkeys(range(3), RankProfile(note="another profiler is on")))
    assert lines_of(profile) == ("no profile of ranks 0-2: another profiler is on",)
    assert profile_of({}) is None
    assert lines_of(None) == ()


def test_a_damaged_profile_is_left_out_and_a_cut_one_is_named() -> None:
    assert profile_of({0: USUAL._replace(communication=())}) is None
    cut = profile_of({0: USUAL._replace(steps=0, communication=(0.2,), trace="!No space left on device")})
    assert cut is not None
    assert cut.notes == (
        "only the beginning of a step of rank 0 was profiled: it took too long",
        "no trace of rank 0: No space left on device",
    )


def test_profiles_of_an_earlier_request_are_left_out() -> None:
    live = [USUAL._replace(attempt=attempt, request=request) for attempt, request in ((1, 1), (0, 9), (0, 10))]
    profile = profile_of(dict(enumerate([USUAL, *live])))
    assert profile is not None
    assert [each.rank for each in profile.ranks] == [1], "one of a requeued job, which counts from 1 again"
    profile = profile_of(dict(enumerate([USUAL, *live[1:]])))
    assert profile is not None
    assert [each.rank for each in profile.ranks] == [2]
