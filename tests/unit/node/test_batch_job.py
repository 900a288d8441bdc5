"""A submitted run without a record of its own: its state by what Slurm says and by what the job's script has left."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from slurm_shown import RUN, shown

from ipexctl.node.common import batch_job
from ipexctl.node.common.queue_files import waits_in_queue
from ipexctl.node.common.records import QueueJob, RunStatus, read_status
from ipexctl.node.run.record.stored_status import read_status_file
from message_data import missing


def status_of(rundir: Path) -> RunStatus:
    """As the control machine reads it."""
    return read_status(json.loads(json.dumps(batch_job.document_of(str(rundir)))))


@pytest.fixture
def rundir(tmp_path: Path) -> Path:
    path = tmp_path / "runs" / RUN
    (path / "slurm").mkdir(parents=True)
    (path / "slurm" / "job").write_text("12;cluster\n")
    (path / "slurm" / "request.json").write_text(json.dumps({"script": "train.py", "submitted": 1000.0}))
    return path


def save_status(rundir: Path, state: str, *, age: float = 1000.0, **more: object) -> None:
    """Of a supervisor on another machine with the home: its process cannot be seen here."""
    document = {"state": state, "supervisor": {"pid": 1, "machine": "elsewhere", "host": "node2"}, "ranks": [], **more}
    path = rundir / "status.json"
    path.write_text(json.dumps(document))
    os.utime(path, (time.time() - age,) * 2)


class Scontrol:
    """The scontrol of the tests: prints a text, or fails with an error."""

    def __init__(self, directory: Path) -> None:
        self.program = directory / "scontrol"

    def say(self, text: str, code: int = 0) -> None:
        to = ">&2" if code else ""
        self.program.write_text(f"#!/bin/sh\ncat {to} <<'EOF'\n{text}\nEOF\nexit {code}\n")
        self.program.chmod(0o700)
        batch_job._asked.clear()


@pytest.fixture
def scontrol(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Scontrol:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return Scontrol(tmp_path)


@pytest.mark.parametrize(
    ("text", "state"),
    [
        (shown("PENDING", "Priority"), "queued"),
        (shown("CONFIGURING"), "queued"),
        (shown("RUNNING"), "starting"),
        (shown("COMPLETING"), "starting"),
        (shown("CANCELLED"), "stopped"),
        (shown("FAILED", code="77:0"), "failed"),
        (shown("NODE_FAIL"), "failed"),
        (shown("COMPLETED"), "failed"),
        (shown("PENDING", name="another-job"), "lost"),
        ("garbage", "lost"),
    ],
)
def test_state_of_a_run_that_has_no_record(rundir: Path, scontrol: Scontrol, text: str, state: str) -> None:
    scontrol.say(text)
    status = status_of(rundir)
    assert status.state == state
    assert status.slurm is not None
    assert status.slurm.id == "12"
    assert (status.script, status.started, status.world_size) == ("train.py", 1000.0, 0)


def test_a_silent_slurm_is_no_end(rundir: Path, scontrol: Scontrol) -> None:
    scontrol.say("Unable to contact slurm controller", 1)
    job = batch_job.job_of(str(rundir))
    assert job is not None
    assert (job.state, job.reason, job.run_state) == ("", "Unable to contact slurm controller", "unknown")
    assert not job.is_over


def test_a_job_that_slurm_has_forgotten_ended_as_its_script_says(rundir: Path, scontrol: Scontrol) -> None:
    scontrol.say("slurm_load_jobs error: Invalid job id specified", 1)
    assert status_of(rundir).state == "lost"
    (rundir / "slurm" / "ended").write_text("1\n")
    (rundir / "slurm" / "output").write_text("a\nlast\n")
    status = status_of(rundir)
    assert (status.state, status.slurm and status.slurm.lines) == ("failed", ("a", "last"))
    (rundir / "slurm" / "notice").write_text("stop\n")
    assert status_of(rundir).state == "stopped"


def test_the_last_word_of_slurm_is_kept_and_secrets_go(rundir: Path, scontrol: Scontrol) -> None:
    secrets = rundir / "slurm" / "env"
    secrets.write_text("export TOKEN=x")
    scontrol.say(shown("PENDING"))
    batch_job.job_of(str(rundir))
    assert secrets.exists(), "it may begin again"
    scontrol.say(shown("TIMEOUT", "TimeLimit"))
    assert waits_in_queue(str(rundir), {})
    batch_job.job_of(str(rundir))
    assert not waits_in_queue(str(rundir), {})
    assert not secrets.exists()
    scontrol.say("slurm_load_jobs error: Invalid job id specified", 1)
    job = batch_job.job_of(str(rundir))
    assert job is not None
    assert (job.state, job.reason) == ("TIMEOUT", "TimeLimit")


def test_other_runs_have_no_job(tmp_path: Path) -> None:
    assert batch_job.job_of(str(tmp_path)) is None
    assert batch_job.document_of(str(tmp_path)) is None
    document = {"state": "ok"}
    assert batch_job.with_job(str(tmp_path), document) is document
    assert not waits_in_queue(str(tmp_path), {})


def test_a_silent_run_is_lost_at_once_if_its_job_has_ended(rundir: Path, scontrol: Scontrol) -> None:
    ranks = [{"rank": 0, "host": "node2"}]
    save_status(rundir, "running", ranks=ranks)
    scontrol.say(shown("RUNNING"))
    assert read_status_file(str(rundir)).status.state == "running"
    scontrol.say(shown("NODE_FAIL"))
    save_status(rundir, "running", ranks=ranks, age=0)
    assert read_status_file(str(rundir)).status.state == "running", "a young status asks nobody"
    save_status(rundir, "running", ranks=ranks)
    lost = read_status_file(str(rundir)).status
    assert (lost.state, lost.ranks[0].state, lost.slurm and lost.slurm.state) == ("lost", "lost", "NODE_FAIL")
    assert missing(lost.reason, "job 12 lost a node") == []


def test_a_run_that_slurm_has_not_taken_is_not_known(rundir: Path) -> None:
    (rundir / "slurm" / "job").unlink()
    assert QueueJob().run_state == "unknown"
    assert status_of(rundir).state == "unknown"


@pytest.mark.parametrize(
    ("stored", "job", "state"),
    [
        ("queued", shown("PENDING", "BeginTime"), "queued"),
        ("queued", shown("RUNNING"), "starting"),
        ("queued", shown("COMPLETING"), "queued"),
        ("queued", shown("CANCELLED"), "stopped"),
        ("queued", shown("NODE_FAIL"), "failed"),
        ("running", shown("PENDING", "BeginTime"), "queued"),
    ],
)
def test_a_run_whose_job_waits_again_is_queued(
    rundir: Path, scontrol: Scontrol, stored: str, job: str, state: str
) -> None:
    """`queued` is the last word of a supervisor; after the loss of its node it has none."""
    save_status(rundir, stored)
    scontrol.say(job)
    found = read_status_file(str(rundir)).status
    assert (found.state, found.slurm and found.slurm.id) == (state, "12")


@pytest.mark.parametrize("what", ["call", "home", "neither"])
def test_a_next_start_that_begins_no_run_is_why_the_run_has_failed(rundir: Path, scontrol: Scontrol, what: str) -> None:
    """The failure of the start before is no reason any more."""
    first = {"rank": 1, "host": "node3", "kind": "lost", "ranks": [1]}
    save_status(rundir, "queued", first_failure=first, reason="lost")
    scontrol.say(shown("FAILED", code="1:0"))
    place = rundir / "slurm/state/ipexctl/runs"
    place.mkdir(parents=True)
    if what == "call":
        (place / "failed-call").write_text(json.dumps({"reason": "there is no environment", "fix": "ipexctl install"}))
    if what == "home":
        (rundir / "slurm/no-home").write_text("node4\n")
    found = read_status_file(str(rundir)).status
    assert (found.state, found.first_failure) == ("failed", None)
    words = {"call": "not start again environment", "home": "not start again node4 home", "neither": "12 failed"}
    assert missing(found.reason, words[what]) == []


def test_stop_takes_a_run_that_is_over_out_of_the_queue_if_slurm_lets_it_begin_again(
    rundir: Path, scontrol: Scontrol, monkeypatch: pytest.MonkeyPatch
) -> None:
    scontrol.say(shown("PENDING", "BeginTime"))
    assert not batch_job.begins_again(str(rundir)), "without --requeue its end is its end"
    (rundir / "slurm/requeue").touch()
    assert batch_job.begins_again(str(rundir))
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    assert not batch_job.begins_again(str(rundir)), "the next start asks about itself"
    monkeypatch.delenv("SLURM_JOB_ID")
    scontrol.say(shown("COMPLETED"))
    assert not batch_job.begins_again(str(rundir))


@pytest.mark.parametrize(
    ("document", "job", "is_over"),
    [
        ({}, shown("PENDING"), False),
        ({}, shown("RUNNING"), False),
        ({}, shown("CANCELLED"), True),
        ({"state": "queued", "ended": None}, shown("COMPLETING"), False),
        ({"state": "queued", "ended": None}, shown("CANCELLED"), True),
        ({"state": "running", "ended": None}, shown("RUNNING"), False),
        ({"state": "ok", "ended": 12.0}, shown("COMPLETED"), None),
    ],
)
def test_a_cancelled_job_uses_its_tree_no_more(
    rundir: Path, scontrol: Scontrol, document: dict[str, object], job: str, is_over: bool | None
) -> None:
    (rundir / "slurm/requeue").touch()
    scontrol.say(job)
    assert batch_job.is_finished(str(rundir), document) is is_over
    (rundir / "slurm/ended").touch()
    has_record = bool(document) and document["state"] != "queued"
    assert batch_job.is_finished(str(rundir), document) is (None if has_record else True)


@pytest.mark.parametrize(
    ("document", "is_requeued", "waits"),
    [
        ({}, False, True),
        ({"state": "running", "ended": None}, False, False),
        ({"state": "running", "ended": None}, True, True),
        ({"state": "queued", "ended": None}, True, True),
        ({"state": "ok", "ended": 12.0}, True, False),
    ],
)
def test_a_run_that_may_begin_again_keeps_its_record_and_its_tree(
    rundir: Path, document: dict[str, object], is_requeued: bool, waits: bool
) -> None:
    if is_requeued:
        (rundir / "slurm" / "requeue").touch()
    assert waits_in_queue(str(rundir), document) == waits
    (rundir / "slurm" / "ended").touch()
    assert not waits_in_queue(str(rundir), document)
