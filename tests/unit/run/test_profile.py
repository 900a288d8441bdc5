"""The profile of a run from those of its ranks: parts, sentences, advice."""

from __future__ import annotations

import pytest

from ipexctl.node.common.lever_records import measured_sentence, with_speedups
from ipexctl.node.run.meter.rank_profile import LeverTime, OperatorTime, RankProfile
from ipexctl.run.profile import STEP_PARTS, lines_of, profile_of, share_sentence

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
    thread_cpu=1.7,
    queued=0.0,
    cores=8,
    threads=8,
    operators=(OperatorTime("aten::mm", "2x3 3x4", "fp32", 4, 1.0),),
    flops=100_000_000_000,
    dtype="fp32",
    products=100,
    product_seconds=1.4,
    peak=200e9,
    peak_spread=1.1,
    cost=0.5,
)


def test_parts_add_up_to_the_step() -> None:
    profile = profile_of({0: USUAL})
    assert profile is not None
    assert profile.main is not None
    assert tuple(profile.main.parts) == STEP_PARTS
    assert sum(profile.main.parts.values()) == pytest.approx(profile.main.step)
    assert profile.main.parts["all_reduce"] == pytest.approx(0.1)
    assert profile.share == pytest.approx(0.25)
    assert profile.operators[0] == OperatorTime("aten::mm", "2x3 3x4", "fp32", 2, 0.5)
    assert profile.advice == ()
    assert set(profile.document()._fields) >= {"step", "parts", "operators", "flops", "peak", "share"}


def test_the_shortest_communication_of_each_step_is_the_all_reduce_and_more_is_waiting() -> None:
    late = USUAL._replace(communication=(0.5, 0.1), forward=0.2)
    profile = profile_of({0: late, 1: USUAL})
    assert profile is not None
    assert profile.main is not None
    assert profile.main.rank == 1
    assert profile.ranks[0].parts["wait"] == pytest.approx(0.2)
    assert profile.ranks[0].parts["all_reduce"] == pytest.approx(0.1)
    assert "rank 0 waits 20 % of a step for rank 1: give both the same work, and their own cores" in profile.advice


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"data": 0.5, "rest": 0.0, "forward": 0.3}, "waiting for data takes 25 % of a step"),
        # --wire is named by the figures of the network, if the gradients are DDP's; FSDP's would not be sent shorter.
        (
            {"communication": (0.3, 0.3), "forward": 0.2},
            "collectives take 30 % of a step: larger batches or gradient accu",
        ),
        ({"gaps": 0.8}, "Python between operators takes 40 % of a step"),
        ({"gaps": 1.6, "thread_cpu": 0.2}, "sleeps or waits outside torch for 75 % of a step"),
        # What preempted threads lose is neither sleep nor Python.
        (
            {"gaps": 1.6, "thread_cpu": 0.2, "queued": 1.4},
            "80 % of a step passes between operators, and its thread waited 70 %",
        ),
        ({"gaps": 1.6, "queued": None}, "in Python or asleep, or in a queue for a processor: not measured"),
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


FUSED = LeverTime("fused_optimizer", 0.1, 0.05)
AUTOCAST, ROUNDED = LeverTime("autocast", 1.4, 0.9), LeverTime("fp32_math", 1.4, 1.3)


@pytest.mark.parametrize(
    ("levers", "expected"),
    [
        ((), []),
        ((ROUNDED, AUTOCAST), [("--autocast bf16", 2 / 1.5), ("--fp32-math bf16", 2 / 1.9)]),
        # Both parts are worth it together; products of this script are slower in the other form.
        (
            (LeverTime("fused_optimizer", 0.2, 0.1), AUTOCAST, LeverTime("fp32_math", 1.4, 2.4)),
            [
                ("--fast", 2 / 1.4),
                ("--autocast bf16", 2 / 1.5),
                ("--fused-optimizer", 2 / 1.9),
                ("--fp32-math bf16", 2 / 3),
            ],
        ),
        (
            (LeverTime("fused_optimizer", 0.1, 0.05), AUTOCAST),
            [("--autocast bf16", 2 / 1.5), ("--fused-optimizer", 2 / 1.95)],
        ),
        ((LeverTime("of 0.9", 1.0, 0.1),), []),
    ],
)
def test_levers_are_named_with_what_was_measured_the_best_first(
    levers: tuple[LeverTime, ...], expected: list[tuple[str, float]]
) -> None:
    profile = profile_of({0: USUAL._replace(levers=levers)})
    assert profile is not None
    found = profile.document().levers
    assert [each.option for each in found] == [name for name, _ in expected]
    assert [each.speedup for each in found] == pytest.approx([speedup for _, speedup in expected])
    sentence = "".join(profile.advice)
    assert [sentence.count(name) for name, _ in expected] == [speedup >= 1.05 for _, speedup in expected]
    assert not expected or sentence.startswith(f"a step would be {expected[0][1]:.2f}x as fast with {expected[0][0]}")


def test_a_lever_that_is_not_worth_it_is_not_advised() -> None:
    profile = profile_of({0: USUAL._replace(levers=(ROUNDED, LeverTime("fused_optimizer", 0.2, 0.19)))})
    assert profile is not None
    assert profile.advice[0].startswith("a step would be 1.05x as fast with --fp32-math bf16: by its own products")
    assert "--fused-optimizer" not in profile.advice[0]
    slower = USUAL._replace(levers=(LeverTime("autocast", 1.4, 1.4),)).speedups
    assert measured_sentence(with_speedups((), slower)).startswith("--autocast bf16: none makes a step 1.05x as fast")
    assert measured_sentence(()) == ""


def test_threads_that_the_user_chose_are_not_advised_against() -> None:
    one = {0: USUAL._replace(threads=1, cpu=1.9)}
    for omp, count in ((None, 1), (4, 1), (1, 0)):
        profile = profile_of(one, omp)
        assert profile is not None
        assert len(profile.advice) == count


def test_a_damaged_profile_is_left_out_and_a_cut_one_is_named() -> None:
    damaged = profile_of({0: USUAL._replace(communication=()), 1: USUAL})
    assert damaged is not None
    assert damaged.notes == ("no profile of rank 0: its figures contradict each other",)
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
