"""`--events`: the fields of each kind are a contract, a line is whole, and nothing a rank prints breaks it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ipexctl.hosts.host import Host
from ipexctl.node.common.frames import Chunk, Note
from ipexctl.node.common.json_records import encode
from ipexctl.node.common.records import Attempt, Failure, RankStatus, RunStatus, TrainingProgress
from ipexctl.node.run.record.output_notes import note_line
from ipexctl.node.run.record.run_document import document_of_run
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.outcome import Notice
from ipexctl.run.follow_run import RunEnded
from ipexctl.run.ranks import parse_ranks
from ipexctl.ui.error_output import requests_events
from ipexctl.ui.run.events import KINDS, EventsView, print_failed_call
from message_data import missing
from record_helpers import run_record

Captured = pytest.CaptureFixture[str]
RECORD = run_record("r7", Host("n1", "n1"), "/h", "python3", "train.py", env="default", started=1.0, hosts=("n1", "n2"))
RUNNING = RunStatus(
    "r7", "running", world_size=2, ranks=(RankStatus(0, "n1", "running"), RankStatus(1, "n2", "running"))
)
FAILED = RUNNING._replace(
    state="failed", exit_code=5, first_failure=Failure(1, "n2", 5, kind="exit", ranks=(1,)), reason="rank 1 ended"
)._replace(progress=TrainingProgress(1, 9, 2.5, age=3.0, epoch=2.0))
CONTRACT: dict[str, list[str]] = {kind: list(event._fields) for event, kind in KINDS.items()}


def read_events(text: str) -> list[dict[str, Any]]:
    assert text.isascii()
    assert text == "" or text.endswith("\n")
    events = [json.loads(line) for line in text.splitlines()]
    assert {event["schema"] for event in events} <= {"ipexctl.run-event/1"}
    return events


def shown(capfd: Captured, *updates: Any, ranks: str = "all", code: int = 0, **end: str) -> list[dict[str, Any]]:
    view = EventsView(Cancel(), ranks=parse_ranks(ranks))
    view.record = RECORD
    with view:
        for update in updates:
            view.watch(update)
    ended = next((update.status for update in updates if isinstance(update, RunEnded)), None)
    view.finish(code, ended, **end)
    return read_events(capfd.readouterr().out)


def test_events_have_these_fields(capfd: Captured) -> None:
    updates = (RUNNING, Chunk(0, "stdout", b"loss 2.5 step 1/9\n"), Notice("away", True), RunEnded(5, FAILED))
    events = shown(capfd, *updates, code=5)
    kinds = [event["kind"] for event in events]
    assert kinds == ["plan", "start", "figures", "line", "note", "figures", "failure", "end"]
    for event in events:
        assert list(event) == ["schema", "kind", "time", *CONTRACT[event["kind"]]]
    assert events[2]["ranks"] == encode(document_of_run(RECORD.plan, RUNNING).ranks)
    names = ("loss", "step", "steps", "step_age", "epoch", "speed")
    assert [events[5][name] for name in names] == [2.5, 1, 9, 3.0, 2.0, None]
    assert (events[-1]["id"], events[-1]["state"], events[-1]["call"]["exit_code"]) == ("r7", "failed", 5)


def test_words_of_ipexctl_are_on_stderr_too(capfd: Captured) -> None:
    view = EventsView(Cancel())
    view.record = RECORD
    with view:
        view.watch(Notice("node0 is away", True))
        view.watch(RunEnded(5, FAILED))
    view.finish(5, FAILED)
    out, err = capfd.readouterr()
    assert missing(err, "node0 away r7 failed") == []
    assert read_events(out)[2]["warning"] is True


def test_lines_are_text_whatever_a_rank_prints(capfd: Captured) -> None:
    data = b'\xff\xe2\x82\n"\x1b[31m\x00\xe2\x80\xa8\xc3\xa9\nbar 1\rbar 2\nno end'
    events = shown(capfd, *(Chunk(1, "stderr", data[at : at + 1], at, 2.5) for at in range(len(data))))
    lines = [event for event in events if event["kind"] == "line"]
    assert [line["text"] for line in lines] == ["\ufffd\ufffd", '"\x1b[31m\x00\u2028\xe9', "bar 2", "no end"]
    assert {(line["rank"], line["host"], line["stream"], line["time"]) for line in lines} == {(1, "n2", "stderr", 2.5)}


def test_a_forged_time_and_a_loss_that_is_no_number_are_null(capfd: Captured) -> None:
    events = shown(capfd, Chunk(0, "stdout", b"loss nan step 1\n", 0, float("inf")), RUNNING)
    assert [event["time"] for event in events if event["kind"] == "line"] == [None]
    assert [event["loss"] for event in events if event["kind"] == "figures"] == [None]


def test_a_forged_number_of_a_note_is_null(capfd: Captured) -> None:
    nan = float("nan")
    note = Note(0, "stdout", b"x\n", 0, nan, "gap", {"bytes": nan, "host": "n1"})
    (event,) = (event for event in shown(capfd, note) if event["kind"] == "note")
    assert (event["time"], event["details"]) == (None, {"bytes": None, "host": "n1"})


def test_only_chosen_ranks_have_lines(capfd: Captured) -> None:
    events = shown(capfd, *(Chunk(rank, "stdout", b"here\n") for rank in range(2)), ranks="1")
    assert [event["rank"] for event in events if event["kind"] == "line"] == [1]


def test_each_attempt_has_one_start_and_one_failure(capfd: Captured) -> None:
    before = Attempt(0, "rank 0 ended", Failure(0, "n1", 3, kind="exit", ranks=(0,)), 9.0)
    again = RUNNING._replace(attempt=1, attempts=(before,))
    last = FAILED._replace(attempt=1, attempts=(before,))
    events = shown(capfd, RUNNING, again._replace(state="starting"), again, again, RunEnded(5, last), code=5)
    starts = [event["attempt"] for event in events if event["kind"] == "start"]
    failures = [(event["attempt"], event["failure"], event["rank"]) for event in events if event["kind"] == "failure"]
    assert (starts, failures) == ([0, 1], [(0, "exit", 0), (1, "exit", 1)])


def test_a_restart_is_one_note_and_then_the_start_of_its_attempt(capfd: Captured) -> None:
    fields = {"attempt": 1, "restarts": 2, "reason": "rank 0 ended"}
    notes = [Note(rank, "stdout", note_line("restart", fields), 0, 7.0, "restart", fields) for rank in (0, 1)]
    again = RUNNING._replace(attempt=1)
    events = shown(capfd, *notes, again, Chunk(0, "stdout", b"[ipexctl: restart 2 of 2 after: me]\n", 99))
    assert [event["kind"] for event in events] == ["plan", "start", "note", "start", "figures", "line", "end"]
    note, start = events[2:4]
    assert (note["note"], note["details"], note["rank"], note["time"]) == ("restart", fields, 0, 7.0)
    assert (start["attempt"], start["time"]) == (1, 7.0)


def test_a_run_that_can_not_be_followed_has_a_failure_and_an_unknown_state(capfd: Captured) -> None:
    *_, failure, end = shown(capfd, RUNNING, code=3, reason="n1: timed out", fix="ipexctl attach r7")
    assert (failure["failure"], failure["reason"], failure["fix"]) == (
        "not-followed",
        "n1: timed out",
        "ipexctl attach r7",
    )
    assert (end["state"], end["call"]["exit_code"]) == ("unknown", 3)


def test_a_call_that_starts_nothing_has_a_failure_and_an_end(capfd: Captured) -> None:
    view = EventsView(Cancel())
    view.fail("not-started", "node2 lacks tqdm", "ipexctl install")
    view.finish(1, None)
    print_failed_call("no such file", "ls", 2)
    events = read_events(capfd.readouterr().out)
    for code, failure, end in ((1, events[0], events[1]), (2, events[2], events[3])):
        assert list(failure)[3:] == CONTRACT["failure"]
        assert list(end)[3:] == CONTRACT["end"]
        assert (failure["failure"], end["id"], end["state"], end["call"]["exit_code"]) == (
            "not-started",
            None,
            None,
            code,
        )


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("run --events train.py", True),
        ("attach --events last", True),
        ("run train.py --events", False),
        ("run -- train --events", False),
        ("logs --events", False),
    ],
)
def test_only_the_own_option_asks_for_events(call: str, expected: bool) -> None:
    assert requests_events(call.split()) is expected
