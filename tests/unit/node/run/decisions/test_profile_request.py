"""Which steps the ranks of a live run profile, and what the user is told who asked for that."""

from __future__ import annotations

import json

import pytest
from supervised_run import Supervised, exit_of

from ipexctl.node.common.node_limits import DUMP_REPLIES, PROFILE_STEPS
from ipexctl.node.run.connection.messages import read_message
from ipexctl.node.run.decisions import supervisor_state as m
from ipexctl.node.run.decisions.profile_request import SILENT, steps_to_profile
from ipexctl.node.run.meter.rank_profile import RankProfile, StepCount

SENT = m.RankSent


def counted(rank: int, steps: int, usual: float = 0.5, since: float = 0.1, request: str = "a") -> m.RankSent:
    return SENT(rank, StepCount(request, steps, usual, since))


def asked(ranks: int = 2) -> Supervised:
    run = Supervised(ranks).begin().at(5, m.ReportAsked("a", "profile"))
    assert run.sent("count-steps") == list(range(ranks))
    return run


def begun() -> Supervised:
    run = asked().at(6, counted(0, 100), counted(1, 101))
    sent = [send for send in run.done(m.Send) if send.kind == "profile"]
    assert [(send.rank, send.fields["after_step"]) for send in sent] == [(0, 105), (1, 105)]
    return run


def answers(run: Supervised) -> list[tuple[str, list[str]]]:
    written = [each for each in run.done(m.WriteDump) if each.kind == "profile"]
    return [(each.id, [row["why"] for row in each.rows]) for each in written]


@pytest.mark.parametrize(
    ("steps", "usual", "after"),
    [
        ((100, 101), 0.5, (105, 105)),
        ((100, 100), 30.0, (102, 102)),
        ((5000, 5040), 0.001, (7040, 7040)),
        ((3, 900), 0.5, (7, 904)),
    ],
)
def test_ranks_that_step_together_profile_the_same_steps(
    steps: tuple[int, int], usual: float, after: tuple[int, int]
) -> None:
    counts = {rank: StepCount("a", number, usual) for rank, number in enumerate(steps)}
    assert tuple(steps_to_profile(counts).values()) == after


def test_a_request_is_answered_once_all_ranks_have_sent_their_profile() -> None:
    run = begun().at(9, SENT(0, RankProfile(seconds=1.0, request=1)))
    assert not answers(run)
    run.at(10, SENT(1, RankProfile(seconds=1.0, request=0)))
    assert not answers(run)
    run.at(11, SENT(1, RankProfile(note="the script has a profiler of its own", request=1)))
    assert answers(run) == [("a", ["", "the script has a profiler of its own"])]
    assert run.state.profile is None


def test_requests_at_once_get_the_same_answer() -> None:
    run = begun().at(7, m.ReportAsked("b", "profile"))
    assert not run.done(m.Send)
    run.at(9, *(SENT(rank, RankProfile(seconds=1.0, request=1)) for rank in (0, 1)))
    assert answers(run) == [("a", ["", ""]), ("b", ["", ""])]


def test_ranks_without_steps_are_left_out() -> None:
    run = asked(3).at(6, counted(0, 100), counted(1, 1, usual=0.0), SENT(2, StepCount("a")))
    assert run.sent("profile") == [0]
    run.at(7, SENT(0, RankProfile(seconds=1.0, request=1)))
    assert answers(run) == [("a", ["", *["no two optimizer steps of it were counted yet"] * 2])]


def test_a_rank_that_stands_still_is_not_waited_for() -> None:
    run = asked().at(6, counted(0, 100, since=70.4), counted(1, 100, since=70.0))
    assert answers(run) == [("a", ["its last optimizer step was 70 s ago"] * 2)]


def test_ranks_that_end_or_take_too_long_are_named() -> None:
    run = begun()
    run.state = run.state._replace(asked=run.state.asked._replace(keep_going=True))
    limit = 6 + PROFILE_STEPS + 3 * (5 + 2) * 0.5
    run.at(7, exit_of(1, 0)).run_until(limit)
    assert not answers(run)
    run.run_until(limit + 2)
    assert answers(run) == [("a", ["its steps took longer than 40 s", "it has ended"])]


def test_wrappers_that_do_not_answer_are_not_waited_for() -> None:
    run = asked()
    run.run_until(5 + DUMP_REPLIES)
    assert not answers(run)
    run.run_until(7 + DUMP_REPLIES)
    assert answers(run) == [("a", [SILENT, SILENT])]


@pytest.mark.parametrize(("kind", "field"), [("profile", "seconds"), ("steps", "usual")])
def test_a_time_too_short_to_divide_by_is_none(kind: str, field: str) -> None:
    """1 / 5e-324 is no number, and 3600 / 1e-308 is an infinity that has no integer."""
    for number in (5e-324, 1e-308, 1e-10):
        fields = {"t": kind, field: number, **({"id": "a"} if kind == "steps" else {"communication": [0.0]})}
        assert getattr(read_message(json.dumps(fields).encode()), field) == 0.0
