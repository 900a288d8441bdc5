"""Live runs of a host from the probe's lines: whose, which cores, since when; locks of calls that are starting."""

from __future__ import annotations

import pytest

from ipexctl.facts.answers import read_answers
from ipexctl.facts.cpu import CpuList
from ipexctl.facts.live_runs import RunOnHost, RunsOnHost, parse_live_runs, read_look

LOOK = """\
run.boot 1000000
run.program 70 supervisor train-1 1001 500
run.account 1001 alice
run.program 71 rank train-1 1001 600
run.program 72 rank train-1 1001 620
run.program 80 lock other-2 1002 90000
run.program 81 lock other-2 1002 90010
run.cores 71 0-3
run.cores 72 4
run.cores 72 4-7
machine 5c-2 pid:[41]
looked yes
"""


def look(text: str) -> RunsOnHost:
    found = read_look(text)
    assert found is not None
    return found.runs


def test_programs_of_a_run_are_one_run_with_the_cores_of_its_ranks() -> None:
    lock, run = look(LOOK).runs
    assert run == RunOnHost("train-1", 1001, "alice", 1000005.0, CpuList.of(range(8)))
    assert lock == RunOnHost("other-2", 1002, None, 1000900.0, CpuList(), is_starting=True)
    assert (run.owner, lock.owner) == ("alice", "uid 1002")


def test_a_run_whose_lock_is_still_there_is_running() -> None:
    text = LOOK.replace("looked", "run.program 90 lock train-1 1001 400\nlooked")
    assert look(text).runs[1] == look(LOOK).runs[1]


def test_the_same_id_of_two_accounts_is_two_runs() -> None:
    text = LOOK.replace("looked", "run.program 90 rank train-1 1003 400\nlooked")
    assert [(live.run, live.uid) for live in look(text).runs] == [
        ("other-2", 1002), ("train-1", 1001), ("train-1", 1003),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        "run.program 70 rank ../x 1001 500",
        "run.program 70 rank $(id) 1001 500",
        "run.program 70 rank x me 500",
        "run.program 70 other x 1001 500",
        "run.program 70 rank",
    ],
)
def test_lines_that_no_probe_prints_count_for_nothing(line: str) -> None:
    assert look(f"{line}\nlooked yes\n").runs == ()


def test_names_of_accounts_are_matched() -> None:
    text = LOOK.replace("1001 alice", "1001 \x1b[31mroot")
    assert [live.owner for live in look(text).runs] == ["uid 1002", "uid 1001"]


def test_an_answer_without_its_end_is_none() -> None:
    assert read_look(LOOK.replace("looked yes\n", "")) is None
    assert read_look(LOOK) == (look(LOOK), "5c-2 pid:[41]")
    assert look("looked yes\n") == RunsOnHost()
    assert look("run.hidden yes\nlooked yes\n") == RunsOnHost((), hides_others=True)
    assert parse_live_runs(read_answers("")) == RunsOnHost()
