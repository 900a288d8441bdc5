"""Sentences about a submitted run that has not begun, its place once it has, and the package for its cluster."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ipexctl.extras.slurm import submission
from ipexctl.extras.slurm.queued import diagnosis_of, explain, with_end_of_job, with_place
from ipexctl.hosts.host import Host
from ipexctl.known_errors.match import Cause
from ipexctl.node.common import batch_job
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.plan import plan_text
from ipexctl.node.common.records import Failure, QueueJob, RunStatus
from ipexctl.option_declaration import CallOptions, for_submit
from ipexctl.remote.reply import Reply
from ipexctl.run.why.diagnosis import Diagnosis
from message_data import missing
from plan_helpers import small_plan
from record_helpers import run_record

LOGIN = Host("login", "10.0.0.1", user="me", port=2222)
RECORD = run_record(
    "train-1124-101010-abcd",
    LOGIN,
    "/home/me/.ipexctl",
    "python3",
    transport_name="slurm",
    options=CallOptions(" --hosts login"),
    is_queued=True,
)


def status(run_state: Any, /, **job: Any) -> RunStatus:
    return RunStatus(RECORD.id, run_state, slurm=QueueJob("12", **job))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (status("queued", state="PENDING", reason="Priority"), "queued 12 Priority attach"),
        (status("queued", state="PENDING", reason="PartitionConfig"), "queued 12 more stop submit -N"),
        (status("queued", state="PENDING", reason="JobHeldUser"), "queued 12 held scontrol release attach"),
        (
            status("queued", state="PENDING", reason="Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs"),
            "queued 12 nodes down, attach",
        ),
        (status("starting", state="RUNNING", node="node2"), "starting node2 12 attach"),
        (status("stopped", state="CANCELLED", notice="stop"), "it was stopped before"),
        (status("stopped", state="CANCELLED"), "12 cancelled before"),
        (status("failed", exit_code=77, node="node2"), "node2 /home/me/.ipexctl login --home"),
        (status("failed", script_code=77, without_home=("node3", "node4")), "node3 node4"),
        (status("failed", script_code=78, node="node2"), "directory node2"),
        (status("failed", script_code=79), "python3 executed --hosts"),
        (status("failed", script_code=1, why="no oneCCL", fix="ipexctl install --x"), "oneCCL --x"),
        (status("failed", state="NODE_FAIL"), "12 lost a node"),
        (status("failed", state="NEW_STATE"), "NEW_STATE 12"),
        (status("lost", state="GONE"), "unknown sacct 12"),
        (status("unknown", reason="Unable to contact"), "Unable contact later"),
        (RunStatus(RECORD.id, "unknown", slurm=QueueJob()), "no job stop"),
    ],
)
def test_why_a_run_has_not_begun(found: RunStatus, words: str) -> None:
    explained = explain(RECORD, found)
    said = f"{explained.reason} {explained.fix}"
    assert missing(said, words) == []
    assert explained.reason in diagnosis_of(RECORD, found).headline


CAUSE = Cause("x", "why", "fix", "likely")


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (QueueJob("12", state="TIMEOUT"), "12 limit"),
        (QueueJob("12", notice="cancelled"), "12 cancelled"),
    ],
)
def test_what_slurm_did_stands_before_other_causes(job: QueueJob, words: str) -> None:
    found = with_end_of_job(Diagnosis("r", "failed", "h", cause=CAUSE), RunStatus("r", "failed", slurm=job))
    assert found.cause is None
    assert missing(found.notes[0], words) == []


@pytest.mark.parametrize(
    ("fix", "words"),
    [
        (Fix("check whether it is up: `ipexctl doctor --limit node4`"), "login node: sinfo -n node4"),
        (Fix("to run without it: `--limit !node4`"), "--sbatch=--exclude=node4"),
        ("nothing to do under ipexctl run", "nothing to do under ipexctl run"),
    ],
)
def test_a_fix_for_runs_over_ssh_becomes_one_for_a_job(fix: str, words: str) -> None:
    assert missing(for_submit(fix), words) == []
    cause = replace(CAUSE, fix=fix)
    found = with_end_of_job(Diagnosis("r", "failed", "h", cause=cause), RunStatus("r", "failed", slurm=QueueJob("12")))
    assert found.cause is not None
    assert found.cause.fix == for_submit(fix)


@pytest.mark.parametrize("had_notice", [True, False])
def test_a_rank_that_fails_after_the_notice_is_told_how_to_end(had_notice: bool) -> None:
    first = Failure(0, "node2", exit_code=3, kind="exit")
    failed = RunStatus("r", "failed", slurm=QueueJob("12"), first_failure=first)
    found = with_end_of_job(Diagnosis("r", "failed", "h", cause=CAUSE), failed, had_notice=had_notice)
    assert ("told of the time limit" in " ".join(found.notes)) == had_notice
    assert found.cause is not None


def test_a_run_lost_with_its_node_says_so_first() -> None:
    job = QueueJob("12", state="NODE_FAIL")
    found = with_end_of_job(Diagnosis("r", "lost", "h", notes=("dmesg",)), RunStatus("r", "lost", slurm=job))
    assert missing(found.headline, "r lost a node 12") == []
    assert found.notes == ()


@pytest.mark.parametrize(("word", "notes"), [("LIMIT_NEAR", "submit -t"), ("CANCELLED", "")])
def test_a_run_that_knows_what_slurm_did_says_what_to_type(word: str, notes: str) -> None:
    status = RunStatus("r", "stopped", job_end=word, slurm=QueueJob("12", notice="cancelled"))
    found = with_end_of_job(Diagnosis("r", "stopped", "h"), status)
    assert missing(" ".join(found.notes), notes) == []
    assert len(found.notes) == bool(notes)


@pytest.mark.parametrize("job", [None, QueueJob("12", state="FAILED"), QueueJob("12", notice="stop")])
def test_a_run_that_failed_by_itself_keeps_its_cause(job: QueueJob | None) -> None:
    before = Diagnosis("r", "failed", "h", cause=CAUSE)
    assert with_end_of_job(before, RunStatus("r", "failed", slurm=job)) == before


def test_place_of_a_run_that_has_begun() -> None:
    placed = {"world_size": 3, "hosts": ["node2", "node3"], "ranks": ["node2", "node2", "node3"]}
    record = with_place(RECORD, Reply(placed), "12")
    assert (record.plan.world_size, record.hosts, record.plan.job) == (3, ("node2", "node3"), "12")
    assert record.node0 == LOGIN
    assert record.nodes == (LOGIN, replace(LOGIN, name="node2"), replace(LOGIN, name="node3"))
    assert record.leaders == RECORD.leaders == ("login",)
    assert record.plan.rank_hosts == ("node2", "node2", "node3")


def test_place_is_read_from_the_plan_of_the_run(tmp_path: Path) -> None:
    """The copies that `run` keeps in the job may be gone at the run's end."""
    rundir = tmp_path / "runs" / RECORD.id
    (rundir / "slurm").mkdir(parents=True)
    assert batch_job.placed_record(str(rundir)) is None, "before the run begins"
    plan = rundir / "plan.json"
    plan.write_text(plan_text(small_plan(("node2", "node2", "node3"), id=RECORD.id)))
    answer = json.loads(json.dumps(batch_job.placed_record(str(rundir))))
    record = with_place(RECORD, Reply(answer), "12")
    assert (record.plan.rank_hosts, record.hosts) == (("node2", "node2", "node3"), ("node2", "node3"))
    (rundir / "slurm").rename(rundir / "other")
    assert batch_job.placed_record(str(rundir)) is None, "not submitted"
    (rundir / "other").rename(rundir / "slurm")
    plan.write_text('{"hosts": 1}')
    assert batch_job.placed_record(str(rundir)) is None, "no plan"


@pytest.mark.parametrize(
    "change", [{"world_size": 0}, {"world_size": "3"}, {"hosts": "node2"}, {"ranks": ["node2"]}, {"world_size": 10**9}]
)
def test_a_place_that_cannot_be_is_left_out(change: dict[str, object]) -> None:
    placed = {"world_size": 3, "hosts": ["node2"], "ranks": ["node2"] * 3, **change}
    assert with_place(RECORD, Reply(placed), "12") == RECORD


def test_package_runs_alone_and_has_nothing_compiled(tmp_path: Path) -> None:
    """As in a job: without any other module that is installed here, and without ssh."""
    with tarfile.open(fileobj=io.BytesIO(submission.own_package())) as archive:
        names = archive.getnames()
        archive.extractall(tmp_path / "package", filter="data")
    assert not [name for name in names if name.endswith((".so", ".pyc")) or "paramiko" in name]
    assert len(submission.own_package()) < 3_000_000
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "typer.py").write_text("raise SystemExit('the module of a project')\n")
    (tmp_path / "pyproject.toml").touch()
    from ipexctl.extras.slurm.submit_script import BOOT

    python = getattr(sys, "_base_executable", sys.executable)
    words = ["--no-config", "run", "--plain", "--no-sync", "--home", str(tmp_path / "home"), "--dry-run"]
    said = subprocess.run(
        [python, "-I", "-S", "-c", BOOT, str(tmp_path / "package"), *words, "--python", python, "train.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)},
        timeout=60,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    assert "train.py" in said.stdout
