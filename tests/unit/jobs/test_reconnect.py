"""How long node0 may be away, and what is reported meanwhile: pure, with times as numbers."""

from __future__ import annotations

from ipexctl.jobs.reconnect import Absence


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
