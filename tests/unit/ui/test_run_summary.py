"""The summary at the end of a run: first failure or reason, restarts, missing output."""

from __future__ import annotations

import pytest

from ipexctl.commands.ps_command import show as show_runs
from ipexctl.hosts.host import Host
from ipexctl.node.common.records import (
    Attempt,
    Failure,
    NanLoss,
    Proof,
    RankStatus,
    RunStatus,
    State,
    Throughput,
    read_status,
)
from ipexctl.node.run.record.run_document import document_of_run
from ipexctl.run.ps import KnownRun
from ipexctl.run.why.diagnosis import diagnose
from ipexctl.run.why.read_snapshot import read_snapshot
from ipexctl.ui.run.end_of_run import end_lines, left_lines, throughput_text
from ipexctl.ui.run.state import RunState
from message_data import missing
from record_helpers import run_record

PLAN = run_record("r", Host("node1", "node1"), "/h", "python3").plan


@pytest.mark.parametrize(("code", "is_noted"), [(1, False), (2, True), (3, True)])
def test_script_exit_code_that_ipexctl_also_uses_is_noted(code: int, is_noted: bool) -> None:
    failure = Failure(0, "node1", code, kind="exit")
    lines = end_lines(RunStatus("run1", "failed", world_size=1, nodes=1, first_failure=failure), code)
    assert any(not missing(line, f"{code} --summary") for line in lines) == is_noted


@pytest.mark.parametrize(
    ("hosts", "size"),
    [
        ("12 12", "2 ranks on 2 nodes"),
        ("123 12", "2 ranks on 2 nodes at last, 3 on 3 at first"),
        ("123 12 1 123", "3 ranks on 3 nodes, 2 on 2 and 1 on 1 in between"),
        ("12 13", "2 ranks on 2 nodes"),  # a spare
    ],
)
def test_summary_has_the_sizes_of_attempts(hosts: str, size: str) -> None:
    sets = [tuple(f"node{number}" for number in numbers) for numbers in hosts.split()]
    before = tuple(Attempt(at, "", None, hosts=names, world_size=len(names)) for at, names in enumerate(sets[:-1]))
    last = sets[-1]
    status = RunStatus("r", "ok", world_size=len(last), nodes=len(last), hosts=last, attempt=1, attempts=before)
    assert end_lines(status, 0)[0].partition(": ")[2] == size


@pytest.mark.parametrize("ended", [1e9 - 3600, 1e9 + 7, 1e9 + 3600, None])
def test_the_duration_of_a_run_does_not_depend_on_the_clock_of_node0(
    ended: float | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """The clock of node0 was set while the run was running."""
    state: State = "ok" if ended else "running"
    status = RunStatus("r", state, started=1e9, ended=ended, elapsed=425.0, world_size=1)
    snapshot = read_snapshot({"status": status.to_json(), "now": ended or 1e9 + 3600}, (), "node1")
    screen = RunState(status)
    screen.tick(50.0)
    assert (status.took, screen.elapsed(50.0)) == (425.0, 425.0)
    if ended:
        assert "7:05" in end_lines(status, 0)[0]
        assert snapshot.took == 425.0
    else:
        assert screen.elapsed(53.0) == 428.0
        assert "7 min" in diagnose(snapshot).headline
    show_runs([KnownRun(run_record("r", Host("node1", "node1"), "/h", "python3", started=1e9), status)])
    assert "7:05" in capsys.readouterr().out


def test_an_older_record_has_no_negative_duration() -> None:
    assert RunStatus("r", "ok", started=20.0, ended=10.0).took == 0.0
    assert RunStatus("r", "running", started=20.0).took is None


@pytest.mark.parametrize(
    ("throughput", "data"),
    [
        (Throughput(3.214, 410.42, 0.043, "dataloader"), "3.21 410 DataLoader 4"),
        (Throughput(3.214, 41042.2, None, "dataloader"), "3.21 41042 DataLoader"),
        (Throughput(3.2, None, None, "steps"), "3.2 steps/s"),
        (Throughput(2031.7, None, None, "steps"), "2032 steps/s"),
        (Throughput(3.2, 410.0, None, "dataloader", 52480.0), "410 52480 tokens/s"),
    ],
)
def test_throughput_says_what_was_measured(throughput: Throughput, data: str) -> None:
    text = throughput_text(throughput)
    assert missing(text, data) == []
    assert ("samples" in text) == (throughput.samples_per_s is not None)
    assert ("waiting" in text) == (throughput.data_wait is not None)
    status = RunStatus("run1", "ok", world_size=2, throughput=throughput)
    assert text in "\n".join(end_lines(status, 0))
    assert document_of_run(PLAN, status).throughput == throughput


def test_processes_that_a_script_left_behind_are_named() -> None:
    left = tuple(Proof("daemon", f"tensorboard ({pid})") for pid in (11, 12))
    rows = (RankStatus(0, "node1", state="ok"), RankStatus(1, "node2", state="ok", evidence=left))
    lines = end_lines(RunStatus("run1", "ok", world_size=2, nodes=2, ranks=rows), 0)
    (line,) = [line for line in lines if "tensorboard" in line]
    assert missing(line, "rank 1 node2 (11) 1 more") == []


def test_a_run_whose_ranks_differ_from_the_plan_says_so_at_its_end() -> None:
    far = "290.0 MB of its 355.0 MB of memory lay on NUMA node 0 instead of 1"
    rows = tuple(RankStatus(rank, "node1", state="ok", mismatch=(far,) * (rank > 0)) for rank in range(7))
    lines = end_lines(RunStatus("run1", "ok", world_size=7, nodes=1, ranks=rows[:2]), 0)
    assert f"  rank 1 on node1: {far}" in lines
    assert [line for line in end_lines(RunStatus("run1", "ok", ranks=rows), 0) if "memory" in line] == [
        f"  rank {rank} on node1: {far}" for rank in (1, 2, 3)
    ]
    assert any("3 more" in line for line in end_lines(RunStatus("run1", "ok", ranks=rows), 0))


def test_throughput_is_in_the_record_of_a_run_and_may_be_missing() -> None:
    measured = Throughput(3.2, 410.0, 0.05, "dataloader")
    status = RunStatus(
        "run1", "ok", ranks=(RankStatus(0, "a", throughput=measured), RankStatus(1, "a")), throughput=measured
    )
    read = read_status(status.to_json())
    assert (read.throughput, read.ranks[0].throughput, read.ranks[1].throughput) == (measured, measured, None)
    assert read_status({"id": "run1", "throughput": 7}).throughput is None
    assert document_of_run(None, None).throughput is None
    assert throughput_text(None) == ""


def test_a_run_that_succeeded_with_a_nan_loss_says_so_in_one_sentence() -> None:
    status = RunStatus("r", "ok", elapsed=12.0, world_size=2, nodes=2, nan=NanLoss(16, 1))
    found = diagnose(read_snapshot({"status": status.to_json()}, (), "node1"))
    seen = "but the loss of rank 1 is nan or inf since step 16"
    assert end_lines(status, 0) == [f"run r succeeded after 0:12, {seen}: 2 ranks on 2 nodes"]
    assert (found.headline.count(seen), found.notes) == (1, ())
    assert document_of_run(PLAN, status).state == "ok"
    failed = end_lines(status._replace(state="failed"), 1)
    assert failed[1] == "  the loss of rank 1 is nan or inf since step 16"


@pytest.mark.parametrize(
    ("unseen", "seen"),
    [
        (0.0, "detached; run r1 continues"),
        (40.0, "detached; node1 does not answer; run r1 was last seen 40 s ago"),
        (None, "detached; node1 has not answered, so it is not known whether run r1 continues"),
    ],
)
def test_who_detaches_is_told_when_the_run_was_last_seen(unseen: float | None, seen: str) -> None:
    assert left_lines("r1", "node1", unseen) == (f"{seen}: ipexctl attach r1", "  to stop it: ipexctl stop r1")
