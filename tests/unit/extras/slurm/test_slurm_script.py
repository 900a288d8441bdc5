"""The script of a job in a queue: options of sbatch, the words of the run, and what the script does with signals."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from ipexctl.errors import UserError
from ipexctl.extras.slurm.submit_script import (
    BatchScript,
    QueueOptions,
    check_queue_options,
    environment_text,
    option_lines,
    words_of_run,
)
from ipexctl.launch.spec import RunSpec
from ipexctl.node.common.asked import Export
from plan_helpers import spec_of

RUN = "train-1124-101010-abcd"


def request(*exports: Export, kind: Any = "script", argv: tuple[str, ...] = ("train.py",), **given: Any) -> RunSpec:
    return spec_of(kind, argv, exports=exports, secrets={"TOKEN": "s3cret"}, **given)


def test_a_job_gets_whole_nodes_unless_the_call_says_how_much() -> None:
    assert "--exclusive" in option_lines(RUN, QueueOptions(nodes=2))
    lines = option_lines(RUN, QueueOptions(nodes=2, others=("--cpus-per-task=4", "--constraint=amx")))
    assert "--exclusive" not in lines
    assert {"--cpus-per-task=4", "--constraint=amx", f"--job-name={RUN}", "--nodes=2", "--no-requeue"} <= set(lines)
    assert "--no-kill" not in lines
    assert "--no-kill" in option_lines(RUN, QueueOptions(nodes=2, no_kill=True))


@pytest.mark.parametrize("time_", ["90", "1:30", "2:00:00", "1-0", "1-2:03:04", "UNLIMITED"])
def test_time_of_slurm(time_: str) -> None:
    check_queue_options(QueueOptions(time=time_))
    assert f"--time={time_}" in option_lines(RUN, QueueOptions(time=time_))


@pytest.mark.needs("sbatch")
def test_sbatch_takes_beginnings_and_no_whole_option_of_it_is_such_a_beginning(tmp_path: Path) -> None:
    config = tmp_path / "slurm.conf"
    config.write_text("ClusterName=x\nSlurmctldHost=localhost\n")
    environ = {**os.environ, "SLURM_CONF": str(config)}

    def sbatch(*words: str) -> str:
        done = subprocess.run(["sbatch", *words], env=environ, capture_output=True, text=True, timeout=20, check=False)
        return done.stdout + done.stderr

    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n")
    said = sbatch("--err=F", "--test-only", "--begin=nonsense", str(script))
    assert "Invalid time specification" in said, said  # of --begin: it knows --err
    options = set(re.findall(r"--[a-z][a-z-]+", sbatch("--help")))
    assert len(options) > 50
    for option in options:
        try:
            check_queue_options(QueueOptions(others=(f"{option}=x",)))
        except UserError as error:
            assert "sbatch reads it as" not in error.message, option


def test_the_words_of_the_run_have_each_option_that_differs_and_no_secret() -> None:
    exports = (Export("A", "-x", "b c"), Export("TOKEN", "-x", None))
    given: dict[str, Any] = {
        "ppn": 2,
        "meter": False,
        "checkpoint": "ck",
        "hang_after": 1234567.5,
        "tag": "lr 3",
        "exclude": ("*.bin",),
    }
    words = words_of_run(request(*exports, **given), ("sub/train.py", "--epochs", "3"), "/home/me/.ipexctl", "/tree")
    assert words[:2] == ("--no-config", "run")
    assert words[-3:] == ("sub/train.py", "--epochs", "3")
    text = " ".join(words)
    for part in (
        "--ppn 2",
        "--no-meter",
        "--checkpoint ck",
        "--hang-after 1234567.5",
        "--tag lr 3",
        "-x A=b c",
        "-x TOKEN ",
    ):
        assert part in text
    assert "s3cret" not in text
    assert "--exclude" not in words, "the project is synced before"
    assert environment_text({"TOKEN": "a'b"}) == "export TOKEN='a'\"'\"'b'\n"
    assert words_of_run(request(kind="module", argv=("pkg", "-n")), ("pkg", "-n"), "/h", "/t")[-3:] == (
        "-m",
        "pkg",
        "-n",
    )
    assert words_of_run(request(kind="command", argv=("env",)), ("env",), "/h", "/t")[-2:] == ("--", "env")


FAKE = """\
#!/bin/sh
shift 4
echo "called $IPEXCTL_RUN_ID $TOKEN $*" >>{log}
trap 'echo term >>{log}; exit 143' TERM
n=0; while [ $n -lt {tenths} ]; do sleep 0.1; n=$((n+1)); done
exit {code}
"""


class Job:
    """The script of a job, with a Python that only says how it was called."""

    def __init__(self, directory: Path, *, tenths: int = 0, code: int = 0) -> None:
        self.slurm = directory / "run" / "slurm"
        (self.slurm / "state").mkdir(parents=True)
        self.log = directory / "log"
        python = directory / "python"
        python.write_text(FAKE.format(log=self.log, tenths=tenths, code=code))
        python.chmod(0o700)
        (self.slurm / "nonce").write_text("n1\n")
        self.script = BatchScript(
            RUN, str(directory / "run"), str(python), "/pkg", str(directory), ("run", "a b"), QueueOptions(), "n1"
        )

    def start(self, **more: str) -> subprocess.Popen[bytes]:
        environ = {**os.environ, "SLURM_JOB_NODELIST": "node1", "SLURM_JOB_NUM_NODES": "1", **more}
        return subprocess.Popen(["sh", "-c", self.script.text()], env=environ)

    def read(self, name: str) -> str:
        path = self.slurm / name
        return path.read_text().strip() if path.exists() else ""


def test_the_script_calls_the_run_with_its_id_and_its_secrets_and_leaves_the_code(tmp_path: Path) -> None:
    job = Job(tmp_path, code=7)
    (job.slurm / "env").write_text(environment_text({"TOKEN": "s3"}))
    assert job.start().wait(20) == 7
    assert job.log.read_text() == f"called {RUN} s3 run a b\n"
    assert job.read("ended") == "7"
    assert not (job.slurm / "env").exists()


def test_stop_ends_the_run_once(tmp_path: Path) -> None:
    job = Job(tmp_path, tenths=200)
    process = job.start()
    _until(job.log.exists)
    process.send_signal(signal.SIGUSR2)
    assert process.wait(20) == 143
    assert (job.read("notice"), job.read("ended")) == ("stop", "143")
    assert job.log.read_text().count("term") == 1


def test_scancel_is_not_passed_on_because_slurm_signals_the_run_itself(tmp_path: Path) -> None:
    job = Job(tmp_path, tenths=20)
    process = job.start()
    _until(job.log.exists)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert (job.read("notice"), "term" in job.log.read_text()) == ("cancelled", False)


def test_a_job_that_slurm_begins_again_has_not_ended_and_keeps_its_secrets(tmp_path: Path) -> None:
    job = Job(tmp_path, tenths=10, code=143)
    (job.slurm / "env").write_text(environment_text({"TOKEN": "s3"}))
    (job.slurm / "requeue").touch()
    process = job.start()
    _until(job.log.exists)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 143
    assert (job.read("ended"), job.read("notice"), (job.slurm / "env").exists()) == ("", "cancelled", True)
    assert not (job.slurm / "again").exists()
    assert job.start(SLURM_RESTART_COUNT="1").wait(20) == 143
    assert (job.read("ended"), job.read("notice"), (job.slurm / "env").exists()) == ("143", "", False)
    assert (job.slurm / "again").exists()
    assert job.log.read_text().count(f"called {RUN} s3 run a b\n") == 2
    assert "--requeue" in option_lines(RUN, QueueOptions(requeue=True))


def test_another_home_a_missing_project_and_a_missing_python_have_codes(tmp_path: Path) -> None:
    job = Job(tmp_path)
    gone = dataclasses.replace(job.script, workdir=str(tmp_path / "gone"))
    for script, code in (
        (dataclasses.replace(job.script, nonce="n2"), 77),
        (gone, 78),
        (dataclasses.replace(job.script, python="/nowhere/python"), 79),
    ):
        job.script = script
        assert job.start().wait(20) == code
    assert not job.log.exists()


def _until(condition: Any) -> None:
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)
