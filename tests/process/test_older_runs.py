"""Runs and environments of older versions: this version lists, follows, stops and uses them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from run_helpers import Run

from ipexctl.hosts.host import Host
from ipexctl.jobs.registry import RunRecord, RunRegistry
from message_data import missing

DATA = Path(__file__).parents[1] / "data"
COUNTS = "import time\nfor i in range(60):\n    print('number', i, flush=True)\n    time.sleep(0.05)"
STAYS = "import time\nprint('here', flush=True)\ntime.sleep(600)"


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

    def call(self, *args: str, timeout: float = 60) -> subprocess.CompletedProcess[bytes]:
        env = {**os.environ, "XDG_STATE_HOME": str(self.directory / "state"), "PYTHONPATH": os.pathsep.join(sys.path)}
        argv = [sys.executable, "-m", "ipexctl", *args]
        return subprocess.run(argv, env=env, capture_output=True, timeout=timeout, check=False)

    def json(self, *args: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.call(*args, "--json").stdout)
        return document

    def start(self, run: Run) -> Run:
        run.start()
        node0 = Host(name="localhost", address="localhost")
        record = RunRecord(run.id, node0, str(run.home), sys.executable, "x.py", world_size=2, started=time.time())
        self.registry.save(record)
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


def test_ended_runs_are_listed_with_how_they_ended(older: Older) -> None:
    runs = {run["id"]: (run["state"], run["exit_code"]) for run in older.json("ps")["runs"]}
    assert runs == {"older-ok": ("ok", 0), "older-failed": ("failed", 1), "older-restarted": ("ok", 0)}


@pytest.mark.parametrize("command", ["logs", "attach"])
def test_output_of_an_ended_run_is_shown_as_it_was_printed(older: Older, command: str) -> None:
    ran = older.call(command, "older-ok")
    assert ran.returncode == 0, ran.stderr
    expected = [b"[0] no end", b"[0] out \xc3\xa9", b"[1] no end", b"[1] out \xc3\xa9"]
    assert sorted(ran.stdout.splitlines()) == expected
    assert older.call("logs", "older-ok", "--stderr", "-r", "1").stdout == b"[1] err\n"
    restarted = older.call("logs", "older-restarted", "-r", "0").stdout
    assert [line.split()[1] for line in restarted.splitlines() if b"attempt" in line] == [b"attempt", b"attempt"]


def test_logs_without_a_line_say_so_and_name_the_run(older: Older) -> None:
    ran = older.call("logs", "--grep", "no such (line|word)", "-r", "1")
    assert (ran.returncode, ran.stdout) == (0, b"")
    assert missing(ran.stderr.decode(), "older-restarted ranks 1 --grep 'no such (line|word)'") == []
    assert older.call("logs", "older-ok", "--grep", "end").stderr == b""
    assert older.call("logs", "-q", "--grep", "no such line").stderr == b""


def test_the_cause_of_a_failed_run_is_found(older: Older) -> None:
    verdict = older.json("why", "older-failed")
    assert (verdict["state"], verdict["cause"]["id"]) == ("failed", "script.no_module")
    assert verdict["first_failure"]["rank"] == 1


def test_an_ended_run_is_stopped_without_a_signal(older: Older) -> None:
    before = (older.directory / "home/runs/older-ok/status.json").read_bytes()
    assert older.call("stop", "older-ok").returncode == 0
    assert (older.directory / "home/runs/older-ok/status.json").read_bytes() == before


def test_a_live_run_is_followed_to_its_end(older: Older, live: Callable[[str], Run]) -> None:
    live(COUNTS)
    runs = {run["id"]: run["state"] for run in older.json("ps")["runs"]}
    assert runs["older-live"] in ("starting", "running")
    ran = older.call("attach", "older-live")
    assert ran.returncode == 0, ran.stderr
    for rank in (b"0", b"1"):
        lines = [line for line in ran.stdout.splitlines() if line.startswith(b"[%b] " % rank)]
        assert lines == [b"[%b] number %d" % (rank, number) for number in range(60)]


def test_a_live_run_is_inspected_and_stopped(older: Older, live: Callable[[str], Run]) -> None:
    run = live(STAYS)
    run.wait_for_all(b"here\n")
    assert sorted(older.call("logs", "older-live").stdout.splitlines()) == [b"[0] here", b"[1] here"]
    assert older.json("why", "older-live")["state"] == "running"
    dump = older.call("dump", "older-live")
    assert dump.returncode == 0, dump.stderr
    assert b"<string>" in dump.stdout
    assert older.call("stop", "older-live").returncode == 0
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
    directories = {kind: str(tmp_path / kind) for kind in kinds}
    return {**os.environ, **directories, "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}


def test_an_environment_is_listed_kept_by_install_and_used_by_run(older_account: dict[str, str]) -> None:
    project = Path(older_account["HOME"], "project")
    project.mkdir()
    (project / "train.py").write_text("import torch\nprint('torch', torch.__version__)\n")

    def call(*args: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "ipexctl", args[0], "--hosts", "localhost", *args[1:]]
        return subprocess.run(
            argv, env=older_account, cwd=project, capture_output=True, text=True, timeout=100, check=False
        )

    (host,) = json.loads(call("envs", "--json").stdout)["hosts"]
    assert [(env["names"], env["row"], env["complete"]) for env in host["envs"]] == [(["default"], "torch-2.13", True)]
    assert call("envs", "--verify").returncode == 0
    installed = call("install", "--stack", "torch", "--offline", "--json")
    assert json.loads(installed.stdout)["hosts"][0]["status"] == "ok", installed.stderr
    ran = call("run", "train.py")
    assert ran.returncode == 0, ran.stderr
    assert "[0] torch 2.13.0" in ran.stdout
