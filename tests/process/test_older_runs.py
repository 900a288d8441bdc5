"""Runs and environments of older versions: this version lists, follows, stops and uses them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from run_helpers import Run

from cli_helpers import CommandResult, ipexctl
from ipexctl.jobs.registry import RunRegistry
from lab_run_helpers import by_rank
from message_data import missing

DATA = Path(__file__).parents[1] / "data"
COUNT_SCRIPT = "import time\nfor i in range(60):\n    print('number', i, flush=True)\n    time.sleep(0.05)"
SLEEP_SCRIPT = "import time\nprint('here', flush=True)\ntime.sleep(600)"


@dataclass
class OlderRun(Run):
    """Started by the agent of the version before issue 14: one script for each program, no archive."""

    def upload_agent(self) -> None:
        shutil.copytree(self.home.parent / "agent", self.rundir, dirs_exist_ok=True)

    def write_job(self) -> None:
        self.job = {**self.job, "supervisor": {"address": "127.0.0.1", "port": self.port}}
        super().write_job()

    def program(self, name: str) -> list[str]:
        return [self.python, "-I", str(self.rundir / {"supervisor": "supervise.py", "rank": "rank.py"}[name])]


@dataclass
class Older:
    """A home and the records of its runs, as an older version has left them."""

    directory: Path

    @property
    def registry(self) -> RunRegistry:
        return RunRegistry(self.directory / "state" / "ipexctl" / "runs")

    def call(self, *args: str) -> CommandResult:
        return ipexctl(*args, env={"XDG_STATE_HOME": str(self.directory / "state")})

    def json(self, *args: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.call(*args, "--json").out)
        return document

    def start(self, run: Run) -> Run:
        self.registry.save(run.start().record)
        return run


def unpack(name: str, directory: Path) -> None:
    with tarfile.open(DATA / name) as archive:
        # Debian 12's Python 3.11.2 has no filters, later versions warn without one.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(directory)


@pytest.fixture
def older(tmp_path: Path) -> Older:
    unpack("before-14.tar.xz", tmp_path)
    older = Older(tmp_path)
    older.registry.directory.mkdir(parents=True)
    for path in (tmp_path / "records").iterdir():
        text = path.read_text().replace('"HOME"', json.dumps(str(tmp_path / "home")))
        text = text.replace('"PYTHON"', json.dumps(sys.executable))
        (older.registry.directory / path.name).write_text(text)
    return older


@pytest.fixture
def live(older: Older) -> Iterator[Callable[[str], Run]]:
    started: list[Run] = []

    def start(command: str) -> Run:
        started.append(OlderRun(older.directory / "home", command, id="older-live"))
        return older.start(started[-1])

    yield start
    for run in started:
        run.close()


def test_ended_runs_are_listed_with_state_and_exit_code(older: Older) -> None:
    runs = {run["id"]: (run["state"], run["exit_code"]) for run in older.json("ps")["runs"]}
    assert runs == {"older-ok": ("ok", 0), "older-failed": ("failed", 1), "older-restarted": ("ok", 0)}


@pytest.mark.parametrize("command", ["logs", "attach"])
def test_output_of_an_ended_run_is_shown_unchanged(older: Older, command: str) -> None:
    ran = older.call(command, "older-ok")
    assert ran.rc == 0, ran.err
    assert ran.lines == ["[0] no end", "[0] out \xe9", "[1] no end", "[1] out \xe9"]
    assert older.call("logs", "older-ok", "--stderr", "-r", "1").out == "[1] err\n"
    restarted = older.call("logs", "older-restarted", "-r", "0").out
    assert [line.split()[1] for line in restarted.splitlines() if "attempt" in line] == ["attempt", "attempt"]


def test_logs_without_matching_lines_print_a_note(older: Older) -> None:
    ran = older.call("logs", "--grep", "no such (line|word)", "-r", "1")
    assert (ran.rc, ran.out) == (0, "")
    assert missing(ran.err, "older-restarted ranks 1 --grep 'no such (line|word)'") == []
    assert older.call("logs", "older-ok", "--grep", "end").err == ""
    assert older.call("logs", "-q", "--grep", "no such line").err == ""


def test_cause_of_a_failed_run_is_found(older: Older) -> None:
    verdict = older.json("why", "older-failed")
    assert (verdict["state"], verdict["cause"]["id"]) == ("failed", "script.no_module")
    assert verdict["first_failure"]["rank"] == 1


def test_stop_of_an_ended_run_changes_nothing(older: Older) -> None:
    before = (older.directory / "home/runs/older-ok/status.json").read_bytes()
    assert older.call("stop", "older-ok").rc == 0
    assert (older.directory / "home/runs/older-ok/status.json").read_bytes() == before


def test_live_run_is_followed_to_its_end(older: Older, live: Callable[[str], Run]) -> None:
    live(COUNT_SCRIPT)
    runs = {run["id"]: run["state"] for run in older.json("ps")["runs"]}
    assert runs["older-live"] in ("starting", "running")
    ran = older.call("attach", "older-live")
    assert ran.rc == 0, ran.err
    assert by_rank(ran.out) == {rank: [f"number {number}" for number in range(60)] for rank in range(2)}


def test_live_run_is_inspected_and_stopped(older: Older, live: Callable[[str], Run]) -> None:
    run = live(SLEEP_SCRIPT)
    run.wait_for_all(b"here\n")
    assert older.call("logs", "older-live").lines == ["[0] here", "[1] here"]
    assert older.json("why", "older-live")["state"] == "running"
    dump = older.call("dump", "older-live")
    assert dump.rc == 0, dump.err
    assert "<string>" in dump.out
    assert older.call("stop", "older-live").rc == 0
    assert run.wait()["state"] == "stopped"
    assert run.left() == []


@pytest.fixture
def older_account(tmp_path: Path) -> dict[str, str]:
    """The environment variables of an account whose home has an environment that ipexctl 0.1.0 installed."""
    unpack("env-0.1.0.tar.xz", tmp_path)
    (tmp_path / "home").rename(tmp_path / ".ipexctl")
    env = (tmp_path / ".ipexctl/envs/default").resolve()
    # The Python that ipexctl chooses on this host, which may be another than that of the tests.
    base = next(path for path in (Path("/usr/bin/python3"), Path(sys.executable)) if path.exists()).resolve()
    version = [str(base), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    minor = subprocess.run(version, capture_output=True, text=True, check=True).stdout.strip()
    for name in ("python", "python3"):
        (env / "bin" / name).symlink_to(base)
    if minor != "3.11":
        (env / "lib/python3.11").rename(env / f"lib/python{minor}")
    for name, old, new in (
        ("pyvenv.cfg", "BASE", str(base.parent)),
        ("env.json", "HOME", str(tmp_path / ".ipexctl")),
        ("env.json", '"python": "3.11"', f'"python": "{minor}"'),
    ):
        (env / name).write_text((env / name).read_text().replace(old, new))
    kinds = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
    return {**{kind: str(tmp_path / kind) for kind in kinds}, "HOME": str(tmp_path)}


def test_environment_is_listed_kept_by_install_and_used_by_run(older_account: dict[str, str]) -> None:
    project = Path(older_account["HOME"], "project")
    project.mkdir()
    (project / "train.py").write_text("import torch\nprint('torch', torch.__version__)\n")

    def call(command: str, *args: str) -> CommandResult:
        return ipexctl(command, "--hosts", "localhost", *args, env=older_account, cwd=project, timeout=100)

    (host,) = json.loads(call("envs", "--json").out)["hosts"]
    assert [(env["names"], env["row"], env["complete"]) for env in host["envs"]] == [(["default"], "torch-2.13", True)]
    assert call("envs", "--verify").rc == 0
    installed = call("install", "--stack", "torch", "--offline", "--json")
    assert json.loads(installed.out)["hosts"][0]["status"] == "ok", installed.err
    ran = call("run", "train.py")
    assert ran.rc == 0, ran.err
    assert "[0] torch 2.13.0" in ran.out
