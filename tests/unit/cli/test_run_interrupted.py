"""A run that is interrupted before it begins blames no host."""

from __future__ import annotations

import pytest

from ipexctl.cli.run import _print_not_started
from ipexctl.jobs.submit.request import StartFailure
from message_data import missing

HALTED = StartFailure("node1: REASON", "FIX: -l '!node1'", ("node1",))


def test_what_was_interrupted_before_it_began_says_that_and_nothing_of_hosts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _print_not_started(HALTED, 130) == 130
    assert missing(capsys.readouterr().err, "node1") == ["node1"]


def test_a_refusal_nobody_interrupted_is_told_with_its_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert _print_not_started(HALTED, None) == 1
    assert capsys.readouterr().err == "refused: node1: REASON\n  FIX: -l '!node1'\n"


def test_a_run_that_may_have_begun_is_told_of_also_where_it_was_interrupted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    unsure = StartFailure("node1: REASON", "FIX: ipexctl ps", is_unsure=True)
    assert _print_not_started(unsure, 130) == 130
    assert "FIX: ipexctl ps" in capsys.readouterr().err
