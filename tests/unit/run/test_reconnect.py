"""Limits for a node0 that is away, and what is reported meanwhile: pure, with times as numbers."""

from __future__ import annotations

from ipexctl.run.reconnect import Absence


def test_the_first_loss_and_each_minute_are_reported_until_the_time_is_over() -> None:
    absence = Absence(300)
    absence.on_frame(1000.0)
    attempts = [0.5 + 10 * count for count in range(31)]
    found = {at: absence.on_loss(1000 + at) for at in attempts}
    assert {at: step for at, step in found.items() if step != "again"} == {
        0.5: "lost", 60.5: "away", 120.5: "away", 180.5: "away", 240.5: "away", 300.5: "over",
    }  # fmt: skip


def test_a_host_that_sends_a_frame_now_and_then_does_not_begin_anew() -> None:
    absence = Absence(100)
    found = []
    for start in range(0, 200, 30):  # each connection brings one frame, and is silent for 30 seconds
        absence.on_frame(float(start))
        found.append(absence.on_loss(start + 30.0))
    assert found[:3] == ["lost"] * 3
    assert set(found[3:]) == {"over"}


def test_a_connection_that_brings_frames_for_half_a_minute_begins_anew() -> None:
    absence = Absence(100)
    for start in range(0, 1000, 100):  # away for 90 seconds each time
        for second in range(11, 0, -1):
            absence.on_frame(start + 95.0 - 4 * second)
        assert absence.on_loss(start + 95.0) == "lost"
        assert absence.left(start + 95.0) == 100 - 4


def test_a_limit_of_nothing_is_over_at_the_first_loss() -> None:
    absence = Absence(0)
    absence.on_frame(5.0)
    assert absence.on_loss(5.0) == "over"


def test_one_attempt_is_made_also_if_the_silence_has_taken_all_of_the_time() -> None:
    absence = Absence(5)
    absence.on_frame(0.0)
    assert absence.on_loss(10.0) == "lost"
    assert absence.left(10.0) == 0
    assert absence.on_loss(10.1) == "over"
    absence.on_frame(10.2)  # it answers, and is silent again
    assert absence.on_loss(20.2) == "over"


def test_a_run_is_unseen_since_the_last_frame_once_node0_is_late_or_lost() -> None:
    absence = Absence(300)
    assert absence.unseen(5.0) is None
    absence.on_frame(10.0)
    assert absence.unseen(19.9) == 0
    assert absence.unseen(40.0) == 30
    absence.on_frame(41.0)
    assert absence.unseen(42.0) == 0
    absence.on_loss(43.0)
    assert absence.unseen(43.0) == 2
    absence.on_frame(50.0)
    assert absence.unseen(50.0) == 0
