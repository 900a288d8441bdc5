"""`ipexctl ps`: the message without active runs, and the width of the table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ipexctl.commands.ps_command import as_json, show
from ipexctl.hosts.host import Host
from ipexctl.node.common.records import Attempt, Failure, RunStatus, SlowRank, State, Throughput, TrainingGroup
from ipexctl.option_declaration import CallOptions
from ipexctl.run.ps import KnownRun
from message_data import missing
from record_helpers import run_record


def test_ps_distinguishes_no_active_runs_from_no_runs(capsys: pytest.CaptureFixture[str]) -> None:
    show([], hidden=3)
    assert missing(capsys.readouterr().err, "ipexctl ps 3") == []
    show([])
    assert missing(capsys.readouterr().err, "ipexctl run") == []
    show([], hidden=3, quiet=True)
    assert capsys.readouterr().err == ""


def known_run(number: int, host: str, script: str, **fields: Any) -> KnownRun:
    hosts = tuple(host.format(index) for index in range(1, 65))
    node0 = Host(name=hosts[0], address=hosts[0])
    run, given = f"{script}-1120-{172300 + number}-9f3a", {"hosts": hosts, "started": 1e9, **fields}
    record = run_record(run, node0, "/h", "python3", f"src/{script}.py", **given)
    first, reason = Failure(3, hosts[1], 1), f"rank 3 on {hosts[1]} ended with exit code 1"
    status = RunStatus(
        record.id,
        "failed",
        started=1e9,
        ended=1e9 + 9e5,
        world_size=64,
        exit_code=1,
        first_failure=first,
        reason=reason,
    )
    return KnownRun(record, status)


@pytest.mark.parametrize(
    ("host", "script"),
    [("node{}", "train"), ("node{}", "x" * 24), ("worker-{}.cluster.internal.example.org", "finetune_bert")],
)
@pytest.mark.parametrize("columns", [80, 100, 140, 300])
def test_ps_table_fits_the_width_with_complete_ids(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, host: str, script: str, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    runs = [known_run(number, host, script) for number in range(40)]
    show(runs)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= columns
    assert all(run.record.id in out for run in runs)
    assert len(out.splitlines()) == 42, "a failed run is one line"
    ends = [line.partition("rank 3 on")[1:] for line in out.splitlines()[2:]]
    assert all(end[0] for end in ends) or (columns == 80 and len(script) > 20), ends
    assert columns < 300 or all(end[1].endswith("exit code 1") for end in ends), ends


@pytest.mark.parametrize("columns", [80, 0])
def test_ps_names_the_exception_of_a_failed_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    run = known_run(1, "node{}", "train", hosts=("node1", "node2"))
    assert run.status is not None
    raised = "FileNotFoundError: [Errno 2] No such file or directory: '/data/imagenet/" + "x" * 200
    show([replace(run, status=run.status._replace(raised=raised))])
    head, _, line = capsys.readouterr().out.splitlines()
    assert "ended by" in head
    assert "  FileNotFoundError:" in line
    assert line.endswith("…")
    assert len(line) <= (columns or 200)


@pytest.mark.parametrize("columns", [80, 140, 300])
def test_ps_shows_throughput_in_a_column_or_below_the_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    run = known_run(1, "node{}", "train")
    assert run.status is not None
    run = replace(run, status=run.status._replace(state="ok"))
    assert run.status is not None
    measured = Throughput(3.25, 410.0, 0.1, "dataloader")
    by_steps = replace(run, status=run.status._replace(throughput=Throughput(3.25, None, None, "steps")))
    show([run, replace(run, status=run.status._replace(throughput=measured)), by_steps])
    out = capsys.readouterr().out
    assert out.count("410 samples/s") == out.count("3.25 steps/s") == 1
    assert ("throughput" in out.splitlines()[0].lower()) == (columns > 80)
    assert max(map(len, out.splitlines())) <= columns
    show([run])
    assert "throughput" not in capsys.readouterr().out.lower()


@pytest.mark.parametrize("columns", [80, 140, 300])
def test_ps_shows_the_tag_of_a_run_in_a_column_or_below_the_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    plain, run = known_run(1, "node{}", "train"), known_run(1, "node{}", "train", asked={"tag": "lr 3e-4"})
    show([run, plain])
    out = capsys.readouterr().out
    assert out.count("lr 3e-4") == 1
    assert (" tag " in out.splitlines()[0].lower()) == (columns > 80)
    assert max(map(len, out.splitlines())) <= columns
    assert [each["tag"] for each in as_json([run, plain])["runs"]] == ["lr 3e-4", None]


@pytest.mark.parametrize(("state", "is_shown"), [("running", True), ("ok", False)])
def test_ps_names_the_rank_that_is_slow_now(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, state: State, is_shown: bool
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    run = known_run(1, "node{}", "train")
    assert run.status is not None
    slow = SlowRank(3, "node2", 47.6)
    run = replace(run, status=run.status._replace(state=state, slow=slow))
    show([run])
    out = capsys.readouterr().out
    found = f"rank 3 on node2 is slow, by 48 % of a step: ipexctl why {run.status and run.status.id}"
    assert (found in out) == is_shown
    assert as_json([run])["runs"][0]["slow"] == (slow._asdict() if is_shown else None)


def test_ps_says_that_ranks_do_not_train_together(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    run = known_run(1, "node{}", "train")
    assert run.status is not None
    for seen, is_shown in ((1, True), (4, False)):
        group = TrainingGroup(4, seen)
        apart = replace(run, status=run.status._replace(group=group))
        show([apart])
        assert ("do not train together" in capsys.readouterr().out) == is_shown
        assert as_json([apart])["runs"][0]["group"] == {"planned": 4, "seen": seen}


@pytest.mark.parametrize(("state", "note"), [("running", "restart 1 on node[1-2], without node3"), ("ok", "")])
def test_ps_has_the_hosts_that_a_run_goes_on_with(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, state: State, note: str
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    run = known_run(1, "node{}", "train")
    assert run.status is not None
    first = Attempt(0, "node3 is lost", hosts=("node1", "node2", "node3"), world_size=6)
    status = run.status._replace(
        state=state, attempt=1, attempts=(first,), hosts=("node1", "node2"), world_size=4, reason=""
    )
    show([replace(run, status=status)])
    out = capsys.readouterr().out
    assert (" 4 " in out, "node[1-2] " in out, "node[1-64]" in out) == (True, True, False)
    assert ("restart" in out) == bool(note)
    assert note in out


def test_ps_counts_hosts_whose_names_do_not_fold(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = known_run(1, "node{}", "train", hosts=tuple(f"{letter}-{letter}.example" for letter in "abcdefghijkl"))
    assert odd.status is not None
    monkeypatch.setenv("COLUMNS", "80")
    show([replace(odd, status=odd.status._replace(state="ok"))])
    out = capsys.readouterr().out
    assert "a-a.example and 11 others" in out
    assert max(map(len, out.splitlines())) <= 80
    monkeypatch.delenv("COLUMNS")
    show([odd])
    assert "l-l.example" in capsys.readouterr().out, "a pipe gets all names"


def test_ps_names_the_runs_and_the_hostfile_of_a_node0_that_does_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    call = CallOptions(" -H labs/gone/hostfile")
    runs = [known_run(number, "node{}", "train", options=call) for number in range(3)]
    show([replace(run, status=None, reason="node1: port 22 closed the connection") for run in runs])
    said = capsys.readouterr().err
    assert missing(said, f"port 22 closed the connection {runs[0].id} 2 other runs labs/gone/hostfile") == []
    assert said.count("port 22") == 1
