"""What an option says when it acts, and what it leaves for the end of the run."""

from __future__ import annotations

import os

import pytest

from ipexctl.inrank import acted
from ipexctl.inrank.acted import ActingLever
from ipexctl.node.common.json_records import encode
from ipexctl.node.common.lever_records import Lever, measured, with_speedups
from ipexctl.node.common.records import read_status


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", acted.COPY, "TOLD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(acted, "acting_levers", {})


@pytest.mark.parametrize(
    ("variables", "is_said"),
    [({"RANK": "0"}, True), ({"RANK": "1"}, False), ({acted.COPY: "0"}, True), ({acted.COPY: "1"}, False), ({}, False)],
)
def test_rank_0_or_the_first_copy_says_once_that_an_option_acts(
    variables: dict[str, str], is_said: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    lever = ActingLever("fused_optimizer", "--fused-optimizer", "TOLD")
    assert capfd.readouterr().err == "", "not before it acts"
    lever.act()
    lever.act()
    assert capfd.readouterr().err == ("ipexctl: --fused-optimizer is on\n" if is_said else "")
    assert (os.environ.get("TOLD") == "told") == is_said, "a child need not repeat it"
    ActingLever("fused_optimizer", "--fused-optimizer", "TOLD").act()
    assert capfd.readouterr().err == ""


def test_steps_count_in_which_it_acted_and_a_reason_only_if_it_never_did() -> None:
    lever = ActingLever("autocast", "--autocast bf16")
    lever.after_step()
    assert lever.note("otherwise") == {"name": "autocast", "acted": False, "steps": 0, "reason": "otherwise"}
    lever.leave("its first reason")
    lever.leave("another")
    assert lever.note("otherwise")["reason"] == "its first reason"
    for _ in range(3):
        lever.act()
        lever.act()
        lever.after_step()
    lever.after_step()
    assert lever.note("otherwise") == {"name": "autocast", "acted": True, "steps": 3, "reason": ""}
    lever.failed = "Net failed under it"
    assert lever.note("otherwise")["reason"] == "Net failed under it"


def test_each_lever_is_there_once_with_what_a_profile_measured() -> None:
    asked = Lever("autocast", "--autocast bf16", acted=True, steps=9)
    found = with_speedups([asked], {"fast": 2.0, "autocast": 1.5, "of a newer rank": 3.0})
    others = Lever("fast", "--fast", asked=False, acted=False, reason="not asked", speedup=2.0)
    assert found == (asked._replace(speedup=1.5), others)
    assert read_status({"levers": encode(found)}).levers == found
    assert [lever.name for lever in measured((*found, Lever("wire", "--wire bf16")))] == ["fast", "autocast"]
