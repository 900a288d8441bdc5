"""A submitted run without a record of its own: its state by what Slurm says and by what the job's script has left."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ipexctl.node.common import batch_job
from ipexctl.node.common.files import waits_in_queue
from ipexctl.node.common.records import RunStatus, SlurmJob, read_status
from ipexctl.node.run.status_file import read_status_file
from message_data import missing

RUN = "train-1124-101010-abcd"
SHOWN = (
    "JobId=12 JobName={name} UserId=me(1) GroupId=me(1) MCS_label=N/A Priority=1 Nice=0 Account=(null) QOS=(null) "
    "JobState={state} Reason={reason} Dependency=(null) Requeue=0 Restarts=0 BatchFlag=1 Reboot=0 ExitCode={code} "
    "RunTime=00:00:02 NodeList=node[2-3] BatchHost=node2 NumNodes=2 Command=/home/me/x JobState=FAKE"
)


def shown(state: str, reason: str = "None", code: str = "0:0", name: str = RUN) -> str:
    return SHOWN.format(state=state, reason=reason, code=code, name=name)


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


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """What scontrol prints: the file's text; without it, it does not answer."""
    program, text = tmp_path / "bin" / "scontrol", tmp_path / "said"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\ncat {text} 2>/dev/null && exit\necho "$(cat {text}.error)" >&2; exit 1\n')
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    batch_job._asked.clear()
    return text


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
def test_state_of_a_run_that_has_no_record(rundir: Path, says: Path, text: str, state: str) -> None:
    says.write_text(text)
    status = status_of(rundir)
    assert status.state == state
    assert status.slurm is not None
    assert status.slurm.id == "12"
    assert (status.script, status.started, status.world_size) == ("train.py", 1000.0, 0)


def test_what_slurm_says_is_read_by_its_fields() -> None:
    job = batch_job.read_job(shown("PENDING", "Nodes_required_for_job_are_DOWN,_DRAINED"), RUN, "12")
    assert job.reason == "Nodes_required_for_job_are_DOWN,_DRAINED"
    assert job.exit_code is None
    job = batch_job.read_job(shown("FAILED", code="77:0"), RUN, "12")
    assert (job.state, job.exit_code, job.signal, job.node, job.nodes) == ("FAILED", 77, None, "node2", "node[2-3]")
    assert batch_job.read_job(shown("RUNNING"), RUN, "13").state == batch_job.GONE


def test_a_silent_slurm_is_no_end(rundir: Path, says: Path) -> None:
    Path(f"{says}.error").write_text("Unable to contact slurm controller")
    job = batch_job.job_of(str(rundir))
    assert job is not None
    assert (job.state, job.reason, batch_job.state_of(job)) == ("", "Unable to contact slurm controller", "unknown")
    assert not batch_job.is_over(job)


def test_a_job_that_slurm_has_forgotten_ended_as_its_script_says(rundir: Path, says: Path) -> None:
    Path(f"{says}.error").write_text("slurm_load_jobs error: Invalid job id specified")
    assert status_of(rundir).state == "lost"
    (rundir / "slurm" / "ended").write_text("1\n")
    (rundir / "slurm" / "output").write_text("a\nlast\n")
    status = status_of(rundir)
    assert (status.state, status.slurm and status.slurm.lines) == ("failed", ("a", "last"))
    (rundir / "slurm" / "notice").write_text("stop\n")
    assert status_of(rundir).state == "stopped"


def test_the_last_word_of_slurm_is_kept(rundir: Path, says: Path) -> None:
    says.write_text(shown("TIMEOUT", "TimeLimit"))
    assert waits_in_queue(str(rundir), {})
    batch_job.job_of(str(rundir))
    assert not waits_in_queue(str(rundir), {})
    batch_job._asked.clear()
    says.unlink()
    Path(f"{says}.error").write_text("slurm_load_jobs error: Invalid job id specified")
    job = batch_job.job_of(str(rundir))
    assert job is not None
    assert (job.state, job.reason) == ("TIMEOUT", "TimeLimit")


def test_other_runs_have_no_job(tmp_path: Path) -> None:
    assert batch_job.job_of(str(tmp_path)) is None
    assert batch_job.document_of(str(tmp_path)) is None
    document = {"state": "ok"}
    assert batch_job.with_job(str(tmp_path), document) is document
    assert not waits_in_queue(str(tmp_path), {})


def test_a_run_whose_job_has_ended_is_lost_at_once_and_one_whose_job_goes_on_is_not(rundir: Path, says: Path) -> None:
    """Another machine with the home asks: the supervisor's process cannot be seen there."""
    supervisor = {"pid": 1, "machine": "elsewhere", "host": "node2"}
    path = rundir / "status.json"
    path.write_text(json.dumps({"state": "running", "supervisor": supervisor, "ranks": [{"rank": 0, "host": "node2"}]}))
    says.write_text(shown("RUNNING"))
    old = path.stat().st_mtime - 1000
    os.utime(path, (old, old))
    assert read_status_file(str(rundir)).status.state == "running"
    batch_job._asked.clear()
    says.write_text(shown("NODE_FAIL"))
    lost = read_status_file(str(rundir)).status
    assert (lost.state, lost.slurm and lost.slurm.state) == ("lost", "NODE_FAIL")


def test_a_young_status_asks_nobody(rundir: Path, says: Path) -> None:
    supervisor = {"pid": 1, "machine": "elsewhere", "host": "node2"}
    (rundir / "status.json").write_text(json.dumps({"state": "running", "supervisor": supervisor, "ranks": []}))
    says.write_text(shown("NODE_FAIL"))
    assert read_status_file(str(rundir)).status.state == "running"


def test_a_run_that_slurm_has_not_taken_is_not_known(rundir: Path) -> None:
    (rundir / "slurm" / "job").unlink()
    assert batch_job.state_of(SlurmJob()) == "unknown"
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
def test_a_run_whose_job_waits_again_is_queued(rundir: Path, says: Path, stored: str, job: str, state: str) -> None:
    """`queued` is the last word of a supervisor; after the loss of its node it has none."""
    supervisor = {"pid": 1, "machine": "elsewhere", "host": "node2"}
    path = rundir / "status.json"
    path.write_text(json.dumps({"state": stored, "supervisor": supervisor, "ranks": []}))
    old = path.stat().st_mtime - 1000
    os.utime(path, (old, old))
    says.write_text(job)
    found = read_status_file(str(rundir)).status
    assert (found.state, found.slurm and found.slurm.id) == (state, "12")


@pytest.mark.parametrize("what", ["call", "home", "neither"])
def test_a_next_start_that_begins_no_run_is_why_the_run_has_failed(rundir: Path, says: Path, what: str) -> None:
    """The failure of the start before is no reason any more."""
    first = {"rank": 1, "host": "node3", "kind": "lost", "ranks": [1]}
    supervisor = {"pid": 1, "machine": "elsewhere", "host": "node2"}
    document = {"state": "queued", "supervisor": supervisor, "ranks": [], "first_failure": first, "reason": "lost"}
    (rundir / "status.json").write_text(json.dumps(document))
    says.write_text(shown("FAILED", code="1:0"))
    place = rundir / "slurm/state/ipexctl/runs"
    place.mkdir(parents=True)
    if what == "call":
        (place / "failed-call").write_text(json.dumps({"reason": "there is no environment", "fix": "ipexctl install"}))
    if what == "home":
        (rundir / "slurm/no-home").write_text("node4\n")
    found = read_status_file(str(rundir)).status
    assert (found.state, found.first_failure) == ("failed", None)
    words = {"call": "not begin again environment", "home": "not begin again node4 home", "neither": "12 FAILED"}
    assert missing(found.reason, words[what]) == []


def test_stop_takes_a_run_that_is_over_out_of_the_queue_if_slurm_lets_it_begin_again(
    rundir: Path, says: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says.write_text(shown("PENDING", "BeginTime"))
    assert not batch_job.begins_again(str(rundir)), "without --requeue its end is its end"
    (rundir / "slurm/requeue").touch()
    assert batch_job.begins_again(str(rundir))
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    assert not batch_job.begins_again(str(rundir)), "the next start asks about itself"
    monkeypatch.delenv("SLURM_JOB_ID")
    batch_job._asked.clear()
    says.write_text(shown("COMPLETED"))
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
    rundir: Path, says: Path, document: dict[str, object], job: str, is_over: bool | None
) -> None:
    (rundir / "slurm/requeue").touch()
    says.write_text(job)
    assert batch_job.is_finished(str(rundir), document) is is_over
    (rundir / "slurm/ended").touch()
    has_record = bool(document) and document["state"] != "queued"
    assert batch_job.is_finished(str(rundir), document) is (None if has_record else True)


def test_secrets_go_when_slurm_has_ended_the_job(rundir: Path, says: Path) -> None:
    (rundir / "slurm" / "env").write_text("export TOKEN=x")
    says.write_text(shown("PENDING"))
    batch_job.job_of(str(rundir))
    assert (rundir / "slurm" / "env").exists(), "it may begin again"
    batch_job._asked.clear()
    says.write_text(shown("CANCELLED"))
    batch_job.job_of(str(rundir))
    assert not (rundir / "slurm" / "env").exists()


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
