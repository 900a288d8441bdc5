"""Ranks that resumed from different checkpoints are the cause of a failure or a hang, by what they printed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from known_texts import account, recorded_dump

from ipexctl.known_errors.match import RankOutput
from ipexctl.run.why.cause import ResumedFrom, resume_points_by_rank
from ipexctl.run.why.diagnosis import Diagnosis, diagnose
from ipexctl.run.why.run_snapshot import read_snapshot
from message_data import missing


@pytest.mark.parametrize(
    ("line", "resumed"),
    [
        ("Resuming from checkpoint-30", ResumedFrom("checkpoint-30", "")),
        ("Loading model from checkpoints/checkpoint-30.", ResumedFrom("checkpoint-30", "checkpoints")),
        ("ValueError: Can't find a valid checkpoint at /a/b/checkpoint-60", ResumedFrom("checkpoint-60", "/a/b")),
        ("loaded './out/checkpoint-5/trainer_state.json'", ResumedFrom("checkpoint-5", "out")),
        ("Resumed from checkpoint: out/step_30", ResumedFrom("step_30", "out")),
        ("Restored all states from the checkpoint at v/epoch=1-step=10.ckpt", ResumedFrom("epoch=1-step=10.ckpt", "v")),
        ("Loading best model from out/checkpoint-30 (score: 0.1).", None),
        ("Saving model checkpoint to out/checkpoint-30", None),
        ("Deleting older checkpoint [out/checkpoint-30] due to args.save_total_limit", None),
        ("loading the tokenizer from out/tmp-checkpoint-30", None),
        ("resuming at step_30", None),
        ("out/checkpoint-30", None),
        ("", None),
    ],
)
def test_lines_about_a_resume_have_the_checkpoint(line: str, resumed: ResumedFrom | None) -> None:
    found = resume_points_by_rank(
        [RankOutput(3, "node1", ("before", line), ("from out/checkpoint-99",) if resumed else ())]
    )
    assert found == ({3: resumed} if resumed else {})


APART = {"state": "stopped", "exit_code": 143, "signal": 15}
FAILED = {"state": "failed", "exit_code": 1}


def cause(*texts: str, last: str = "") -> tuple[str, str] | None:
    """Of a run of which rank 1 failed."""
    rows = [(FAILED if rank == 1 else APART, f"{text}\n{last if rank == 1 else ''}") for rank, text in enumerate(texts)]
    first = {"kind": "exit", "rank": 1, "host": "node2", "exit_code": 1, "at": 1012.0}
    found = diagnose(read_snapshot(*account(rows, first=first), "node1")).cause
    return None if found is None else (found.id, f"{found.sentence}\n{found.fix}")


def test_ranks_that_resumed_apart_are_named_with_the_option_that_prevents_it() -> None:
    found = cause(
        "from out/checkpoint-30", *["from out/checkpoint-60"] * 2, last="Timed out waiting 1800000ms for recv"
    )
    assert found is not None
    assert found[0] == "run.resumed_apart"
    assert missing(found[1], "checkpoint-30, ranks 1-2 checkpoint-60 --checkpoint out save_on_each_node") == []


def test_better_text_of_the_failure_wins_and_equal_checkpoints_are_no_cause() -> None:
    texts = ("from out/checkpoint-30", "from out/checkpoint-60")
    other = cause(*texts, last="ModuleNotFoundError: No module named 'sklearn'")
    assert other is not None
    assert other[0] == "script.no_module"
    same = cause(*["from out/checkpoint-60"] * 2, last="ValueError: Can't find a valid checkpoint at out/checkpoint-60")
    assert same is not None
    assert same[0] == "hf.no_checkpoint"
    assert missing(same[1], "out/checkpoint-60 node2 --checkpoint") == []


def test_silent_run_of_ranks_that_resumed_apart_has_them_as_its_cause() -> None:
    rows = [({"state": "running"}, f"from out/checkpoint-{step}") for step in (30, 60)]
    document, chunks = account(rows, state="running", silent={"since": 900.0})
    found = diagnose(read_snapshot(document, chunks, "node1")).cause
    assert found is not None
    assert found.id == "run.resumed_apart"


def waiting(*texts: str, printed: float = 900.0, state: str = "running", **status: Any) -> Diagnosis:
    """A run whose stacks show its ranks in different calls, and that has not been silent for --hang-after."""
    dump = recorded_dump("mismatch")
    rows = [({"state": "running"}, text) for text in texts]
    document, chunks = account(rows, state=state, printed=printed, status={"ended": None, **status})
    return diagnose(read_snapshot(document, chunks, "node1", replace(dump, at=1000.0)))


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (
            ("resumed from out/last.pt at step 200", "step 1", "step 1"),
            ("run.resumed_apart", "0 --checkpoint out/last.pt"),
        ),
        (("Resuming at step 200", "", ""), ("run.resumed_apart", "only rank 0 barrier all_reduce node2")),
        (("resumed at 200", "resumed at 200", "resumed at 200"), ("hang.mismatch", "")),
        (("no resumed state", "step 1", "step 1"), ("hang.mismatch", "barrier all_reduce")),
        (("resumed at 200", "x\n" * 200, "step 1"), ("hang.mismatch", "")),
        (("saved checkpoint while resuming", "step 1", "step 1"), ("hang.mismatch", "")),
    ],
)
def test_ranks_in_different_calls_are_named_and_who_alone_said_that_it_resumed(
    texts: tuple[str, ...], found: tuple[str, str]
) -> None:
    cause = waiting(*texts).cause
    assert cause is not None
    assert cause.id == found[0]
    assert missing(f"{cause.sentence}\n{cause.fix}", found[1]) == []


TRAINS: dict[str, Any] = {"throughput": {"steps_per_s": 2.0, "source": "steps"}}


@pytest.mark.parametrize(
    ("more", "is_found"),
    [
        ({}, True),
        ({"printed": 939.0}, True),
        ({"printed": 941.0}, False),
        ({"printed": None}, False),
        (TRAINS, False),
        ({"state": "stopped", "ended": 1100.0, **TRAINS}, True),
    ],
)
def test_ranks_in_different_calls_have_hung_only_without_output_and_steps(
    more: dict[str, Any], *, is_found: bool
) -> None:
    assert (waiting("step 1", "step 1", "step 1", **more).cause is not None) == is_found
