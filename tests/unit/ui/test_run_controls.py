"""Keys while a run is shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipexctl.run.ranks import parse_ranks
from ipexctl.ui.run.state import Controls, read_keys
from message_data import missing


@pytest.mark.parametrize("key", ["d", "q"])
def test_d_and_q_detach(key: str) -> None:
    assert Controls().press(key) == "detach"


@pytest.mark.parametrize(("answer", "action"), [("y", "stop"), ("n", None), ("enter", None), ("q", None), ("s", None)])
def test_stop_needs_a_confirmation_with_y(answer: str, action: str | None) -> None:
    controls = Controls()
    assert controls.press("s") is None
    assert controls.press(answer) == action
    assert controls.stopping == (action == "stop")
    assert controls.mode == "watching"


def test_rank_filter_is_typed_corrected_and_applied() -> None:
    controls = Controls()
    for key in ["/", "0", "-", "x", "backspace", "3", "enter"]:
        assert controls.press(key) is None
    assert controls.ranks == parse_ranks("0-3")
    for key in ["/", "clear", "enter"]:
        controls.press(key)
    assert controls.ranks.has_all


def test_invalid_rank_filter_shows_an_error_and_stays_open() -> None:
    controls = Controls(parse_ranks("1"))
    for key in ["/", "-", "enter"]:
        controls.press(key)
    assert missing(controls.error, "1-") == []
    assert controls.mode == "filtering"
    controls.press("escape")
    assert controls.ranks == parse_ranks("1")
    assert (controls.mode, controls.error) == ("watching", "")


def test_keys_in_the_rank_filter_are_no_commands() -> None:
    controls = Controls()
    controls.press("/")
    assert controls.press("q") is None
    assert controls.press("s") is None
    assert controls.mode == "filtering"


def test_help_closes_with_any_key() -> None:
    controls = Controls()
    modes = []
    for key in "?x":
        controls.press(key)
        modes.append(controls.mode)
    assert modes == ["help", "watching"]


def test_scrolling_back_pauses_the_output() -> None:
    controls = Controls()
    controls.press("up")
    assert (controls.paused, controls.scrolled) == (True, 1)
    controls.press("escape")
    assert (controls.paused, controls.scrolled) == (False, 0)


def test_keys_are_separated_if_received_at_once() -> None:
    assert read_keys(b"/0-3\r\x1b[A\x1b[6~q\x1b") == ["/", "0", "-", "3", "enter", "up", "page-down", "q", "escape"]
    assert "d" not in read_keys(b"\x1b[1;5D\x1b[3~")


@given(st.binary(max_size=20))
def test_any_bytes_are_accepted_as_keys(data: bytes) -> None:
    controls = Controls()
    for key in read_keys(data):
        controls.press(key)
        assert controls.scrolled >= 0
