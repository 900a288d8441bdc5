"""`ipexctl report` of a run of which this machine has a copy: the file, its mode, what is refused before any call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_cli import run_program

from ipexctl.hosts.host import Host
from ipexctl.run.registry import RunRecord, RunRegistry

RUN = "train-1120-132512-9f3a"
OTHER = "train-1121-100000-1234"


@pytest.fixture
def account(tmp_path: Path) -> dict[str, str]:
    """An account with copies of two runs that node0, this machine, has no more."""
    for name, threads in ((RUN, "4"), (OTHER, "8")):
        copy = tmp_path / ".local/state/ipexctl/runs" / name
        (copy / "ranks").mkdir(parents=True)
        ranks = [{"rank": 0, "host": "localhost", "state": "failed", "exit_code": 1, "pid": 7}]
        status = {"id": name, "state": "failed", "started": 1000.0, "ended": 1013.0, "exit_code": 1, "ranks": ranks}
        first = {"rank": 0, "host": "localhost", "exit_code": 1, "kind": "exit", "at": 1012.0}
        document = {
            "schema": "ipexctl.status/1",
            **status,
            "script": "train.py",
            "first_failure": first,
            "supervisor": {},
        }
        (copy / "status.json").write_text(json.dumps(document))
        settings = [
            {"name": "OMP_NUM_THREADS", "value": threads, "reason": "cores a rank"},
            {"name": "HF_TOKEN", "value": "hunter2", "reason": "-x", "secret": True},
        ]
        (copy / "plan.json").write_text(json.dumps({"settings": settings}))
        (copy / "ranks/0000.err").write_text("Traceback\nModuleNotFoundError: No module named 'frob<script>'\n")
        record = RunRecord(name, Host("localhost", "localhost"), str(tmp_path / ".ipexctl"), sys.executable, "train.py")
        RunRegistry(copy.parent).save(record)
    kept = {name: os.environ[name] for name in ("PATH", "COVERAGE_PROCESS_START") if name in os.environ}
    return {**kept, "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}


def call(env: dict[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    argv = (sys.executable, "-m", "ipexctl", "report", *args)
    return run_program(*argv, stdin=subprocess.DEVNULL, cwd=env["HOME"], env=env)


def test_the_page_is_a_private_file_in_this_directory(account: dict[str, str]) -> None:
    done = call(account, RUN)
    assert (done.returncode, done.stdout) == (0, f"report-{RUN}.html\n"), done.stderr
    path = Path(account["HOME"], f"report-{RUN}.html")
    assert path.stat().st_mode & 0o777 == 0o600
    text = path.read_text()
    assert "frob&lt;script&gt;" in text
    assert "OMP_NUM_THREADS" in text
    assert "hunter2" not in text


def test_two_runs_are_compared(account: dict[str, str]) -> None:
    done = call(account, RUN, "--compare", OTHER, "-o", "both.html")
    assert done.returncode == 0, done.stderr
    text = Path(account["HOME"], "both.html").read_text()
    assert f"Compared with {OTHER}" in text
    assert '<th scope="row">OMP_NUM_THREADS</th><td>8</td><td>4</td>' in text


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (("-o", "/"), "it is a directory"),
        (("-o", "none/x.html"), "there is no directory none"),
        (("-o", "/dev/null"), "it is not a regular file"),
        (("--json",), "no --json"),
        (("--compare", "none"), "none"),
    ],
)
def test_what_cannot_be_written_is_refused(account: dict[str, str], args: tuple[str, ...], reason: str) -> None:
    done = call(account, RUN, *args)
    assert done.returncode == 2
    assert reason in done.stderr
    assert not list(Path(account["HOME"]).glob("*.html"))


@pytest.mark.parametrize("option", ["--detach", "--dry-run"])
def test_a_run_that_is_not_followed_writes_no_page(option: str, account: dict[str, str]) -> None:
    argv = (sys.executable, "-m", "ipexctl", "run", option, "--report", "run.html", "train.py")
    done = run_program(*argv, stdin=subprocess.DEVNULL, cwd=account["HOME"], env=account)
    assert done.returncode == 2
    assert "ipexctl report" in done.stderr


@pytest.mark.parametrize("state", ["failed", "ok"])
def test_why_names_the_page_unless_a_cause_says_what_to_do(state: str, account: dict[str, str]) -> None:
    file = Path(account["HOME"], ".local/state/ipexctl/runs", RUN, "status.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), "state": state}))
    argv = (sys.executable, "-m", "ipexctl", "why", RUN, "--json")
    done = run_program(*argv, stdin=subprocess.DEVNULL, cwd=account["HOME"], env=account)
    assert (f"ipexctl report {RUN}" in json.loads(done.stdout)["next"]) == (state == "ok")


def test_a_file_that_is_no_page_is_not_replaced(account: dict[str, str]) -> None:
    script = Path(account["HOME"], "train.py")
    script.write_text("import torch\n")
    done = call(account, RUN, "-o", "train.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert script.read_text() == "import torch\n"
    for _ in range(2):  # an older page is replaced
        assert call(account, RUN, "-o", "page.html").returncode == 0
