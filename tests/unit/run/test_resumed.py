"""Ranks that resumed from different checkpoints are the cause of a failure or a hang, by what they printed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from known_texts import account, recorded_dump

from ipexctl.known_errors.match import RankOutput
from ipexctl.run.why.diagnosis import Diagnosis, diagnose
from ipexctl.run.why.rank_reports import Said, find_unequal_data, resume_points_by_rank
from ipexctl.run.why.read_snapshot import read_snapshot
from message_data import missing


@pytest.mark.parametrize(
    ("line", "resumed"),
    [
        ("Resuming from checkpoint-30", ("checkpoint-30", "")),
        ("Loading model from checkpoints/checkpoint-30.", ("checkpoint-30", "checkpoints")),
        ("ValueError: Can't find a valid checkpoint at /a/b/checkpoint-60", ("checkpoint-60", "/a/b")),
        ("loaded './out/checkpoint-5/trainer_state.json'", ("checkpoint-5", "out")),
        ("Resumed from checkpoint: out/step_30", ("step_30", "out")),
        ("Restored all states from the checkpoint at v/epoch=1-step=10.ckpt", ("epoch=1-step=10.ckpt", "v")),
        ("Loading best model from out/checkpoint-30 (score: 0.1).", None),
        ("Saving model checkpoint to out/checkpoint-30", None),
        ("Deleting older checkpoint [out/checkpoint-30] due to args.save_total_limit", None),
        ("loading the tokenizer from out/tmp-checkpoint-30", None),
        ("resuming at step_30", None),
        ("out/checkpoint-30", None),
        ("", None),
    ],
)
def test_lines_about_a_resume_have_the_checkpoint(line: str, resumed: tuple[str, str] | None) -> None:
    found = resume_points_by_rank(
        [RankOutput(3, "node1", ("before", line), ("from out/checkpoint-99",) if resumed else ())]
    )
    assert found == ({3: Said(resumed[0], line, resumed[1])} if resumed else {})


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


LOST = "Connection closed by peer [10.0.0.3]:4725"


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (("resumed at 1", "resumed at 11", "resumed at 21"), ("run.resumed_apart", "0 1, 1 11, 2 21")),
        (("Resuming from epoch 3", "Resuming from epoch 4", ""), ("run.resumed_apart", "epoch 3 epoch 4")),
        (("rank 0: 40 batches", "rank 1: 40 batches", "rank 2: 30 batches"), ("run.data_apart", "40 30 drop_last")),
        (("len(loader) = 9", "len(loader) = 9", "len(loader) = 8"), ("run.data_apart", "9 8 DistributedSampler")),
        (("40 batches here", "9 batches there", ""), None),
        (("resumed at 10:31:05", "resumed at 11:31:05", ""), None),
        (("saved after 40 batches", "saved after 40 batches", "saved after 40 batches"), None),
    ],
)
def test_what_ranks_say_about_themselves_explains_a_lost_peer(
    texts: tuple[str, ...], found: tuple[str, str] | None
) -> None:
    """Before the general rule that ranks must call collectives equally often."""
    said = cause(*texts, last=f"Traceback (most recent call last):\nRuntimeError: {LOST}")
    assert said is not None
    assert said[0] == (found[0] if found is not None else "peer.gone")
    assert found is None or missing(said[1], found[1]) == []


def test_a_rank_says_its_evidence_with_host_and_line() -> None:
    outputs = [RankOutput(rank, f"node{rank}", (f"{rank // 2} batches",)) for rank in range(4)]
    report = find_unequal_data(outputs)
    assert report is not None
    assert (report.sentence, report.lines) == (
        "ranks 0-1 with 0 batches, ranks 2-3 with 1 batches",
        ((0, "0 batches"), (2, "1 batches")),
    )


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


@pytest.mark.parametrize("printed", ["Resuming at step 200", "no resumed state"])
def test_ranks_in_different_calls_are_named_whatever_one_rank_printed(printed: str) -> None:
    """Many scripts print on rank 0 alone."""
    cause = waiting(printed, "", "").cause
    assert cause is not None
    assert cause.id == "hang.mismatch"
    assert missing(f"{cause.sentence}\n{cause.fix}", "barrier all_reduce") == []


TRAINS: dict[str, Any] = {"throughput": {"steps_per_s": 2.0, "source": "steps"}}


@pytest.mark.parametrize(
    ("more", "is_found"),
    [
        ({}, True),
        ({"printed": 939.0}, True),
        ({"printed": 941.0}, False),
        ({"printed": None}, False),
        (TRAINS, False),
        ({"state": "failed", "ended": 1100.0, "first_failure": {"kind": "hang", "at": 1000.0}, **TRAINS}, True),
    ],
)
def test_ranks_in_different_calls_have_hung_only_without_output_and_steps(
    more: dict[str, Any], *, is_found: bool
) -> None:
    assert (waiting("step 1", "step 1", "step 1", **more).cause is not None) == is_found


def test_ranks_that_all_receive_wait_for_a_message_that_none_sends() -> None:
    rows = [({"state": "running"}, "")] * 3
    document, chunks = account(rows, state="running", silent={"since": 900.0}, status={"ended": None})
    found = diagnose(read_snapshot(document, chunks, "node1", recorded_dump("ring"))).cause
    assert found is not None
    assert (found.id, found.confidence) == ("hang.same", "certain")
    assert missing(f"{found.sentence} {found.fix}", "recv send batch_isend_irecv") == []


def test_ranks_that_all_look_for_one_another_are_not_advised_about_shapes() -> None:
    dump = recorded_dump("rendezvous")
    waiting_ranks = replace(dump, ranks=tuple(rank for rank in dump.ranks if rank.rank != 1))
    rows = [({"state": "running"}, "")] * 3
    document, chunks = account(rows, state="running", silent={"since": 900.0}, status={"ended": None})
    found = diagnose(read_snapshot(document, chunks, "node1", waiting_ranks)).cause
    assert found is not None
    assert found.id == "hang.same"
    assert missing(f"{found.sentence} {found.fix}", "init_process_group MASTER_ADDR WORLD_SIZE") == []
    assert "shape" not in found.fix
