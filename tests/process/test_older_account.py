"""An account that ipexctl 0.3.0 has used: this version reads its runs, follows a live one, and uses all it has left.

`tests/data/account-0.3.0.tar.xz` was made by that version, with `tests/data/record_account.py`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from run_helpers import SLEEP_FOREVER, Run

from cli_helpers import CommandResult, ipexctl
from ipexctl.run.registry import RunRegistry
from lab_run_helpers import by_rank
from message_data import missing

RECORDED = Path(__file__).parents[1] / "data/account-0.3.0.tar.xz"
COUNT_SCRIPT = "import time\nfor i in range(60):\n    print('number', i, flush=True)\n    time.sleep(0.05)"


@dataclass
class OlderRun(Run):
    """Started by the supervisor of that version, with the ranks' hooks of that version."""

    id: str = "older-live"
    files: Path = field(default_factory=Path)

    def upload_agent(self) -> None:
        with zipfile.ZipFile(self.agent, "w") as agent:
            for path in sorted((self.files / "agent").rglob("*.py")):
                agent.write(path, path.relative_to(self.files / "agent"))
        shutil.copytree(self.files / "shim", self.rundir / "shim")

    def listen_request(self) -> dict[str, Any]:
        return {**super().listen_request(), "id": self.id, "host": "here"}

    def start_request(self) -> dict[str, Any]:
        """As that version has it, with the job of the ranks in its file."""
        plan, shared = self.document(), {"world_size": self.size, "master": {"addr": "127.0.0.1", "port": None}}
        ranks = {str(rank): {"host": "here", "local_rank": rank, "local_size": self.size} for rank in range(self.size)}
        own = {"id": self.id, "token": self.token, "rundir": str(self.rundir), "ranks": ranks}
        job = {**shared, **own, "command": plan["command"], "cwd": plan["cwd"]}
        (self.rundir / "job.json").write_text(json.dumps(job))
        places = [{"rank": rank, "host": "here", "store": "here"} for rank in range(self.size)]
        limits = {"hang_after": 600.0, "on_hang": "report"}
        return {**shared, **limits, "argv": plan["argv"], "nodes": 1, "ranks": places, "script": "test", "env": "test"}


@dataclass
class Account:
    """A home directory with what that version has left there."""

    path: Path

    @property
    def home(self) -> Path:
        return self.path / ".ipexctl"

    @property
    def registry(self) -> RunRegistry:
        return RunRegistry(self.path / ".local/state/ipexctl/runs")

    def call(self, *args: str) -> CommandResult:
        variables = {"HOME": str(self.path), "XDG_STATE_HOME": str(self.path / ".local/state")}
        variables |= {"XDG_CACHE_HOME": str(self.path / ".cache"), "XDG_CONFIG_HOME": str(self.path / ".config")}
        return ipexctl(*args, env=variables, cwd=self.path / "project", timeout=100)

    def json(self, *args: str) -> dict[str, Any]:
        called = self.call(*args, "--json")
        assert called.out, called.err
        document: dict[str, Any] = json.loads(called.out)
        return document

    def runs(self) -> dict[str, str]:
        """The ids of its three runs by how each ended, oldest first; the one that was restarted is named so."""
        ended = sorted(run["id"] for run in self.json("ps")["runs"] if run["id"] != OlderRun.id)
        return dict(zip(("ok", "failed", "restarted"), ended, strict=True))


@pytest.fixture
def account(tmp_path: Path) -> Account:
    with tarfile.open(RECORDED) as archive:
        # Debian 12's Python 3.11.2 has no filters, later versions warn without one.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(tmp_path)
    (tmp_path / "home").rename(tmp_path / ".ipexctl")
    (tmp_path / ".local").mkdir()
    (tmp_path / "state").rename(tmp_path / ".local/state")
    # The Python that ipexctl chooses on this host, which may be another than that of the tests.
    base = next(path for path in (Path("/usr/bin/python3"), Path(sys.executable)) if path.exists()).resolve()
    version = [str(base), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    minor = subprocess.run(version, capture_output=True, text=True, check=True).stdout.strip()
    env = (tmp_path / ".ipexctl/envs/default").resolve()
    for name in ("python", "python3"):
        (env / "bin" / name).symlink_to(base)
    if minor != "3.11":
        (env / "lib/python3.11").rename(env / f"lib/python{minor}")
        record = env / "env.json"
        record.write_text(record.read_text().replace('"python": "3.11"', f'"python": "{minor}"'))
    for path in tmp_path.rglob("*"):
        if path.is_file() and not path.is_symlink() and tmp_path / "agent" not in path.parents:
            content = path.read_bytes()
            filled = content.replace(b"@ACCOUNT@", bytes(tmp_path)).replace(b"@BASE@", bytes(base.parent))
            if filled != content:
                path.write_bytes(filled)
    return Account(tmp_path)


@pytest.fixture
def live(account: Account) -> Iterator[Callable[[str], Run]]:
    started: list[Run] = []

    def start(command: str) -> Run:
        started.append(OlderRun(account.home, command, files=account.path))
        run = started[-1].start()
        account.registry.save(run.record)
        return run

    yield start
    for run in started:
        run.close()


def test_runs_have_their_state_output_and_cause(account: Account) -> None:
    ids = account.runs()
    states = {run["id"]: (run["state"], run["exit_code"]) for run in account.json("ps")["runs"]}
    assert states == {ids["ok"]: ("ok", 0), ids["failed"]: ("failed", 1), ids["restarted"]: ("ok", 0)}
    for command in ("logs", "attach"):
        shown = account.call(command, ids["ok"])
        assert shown.rc == 0, shown.err
        lines = ["torch 2.13.0", *(f"step {step} level 3" for step in range(4))]
        assert by_rank(shown.out) == {0: lines, 1: lines}
    why = account.json("why", ids["failed"])
    assert (why["state"], why["first_failure"]["rank"], why["cause"]["id"]) == ("failed", 1, "script.raised")
    again = account.call("logs", ids["restarted"], "-r", "1").out
    assert ["step 2" in line for line in again.splitlines()].count(True) == 1
    assert "step 3" in again
    before = (account.home / "runs" / ids["failed"] / "status.json").read_bytes()
    assert account.call("stop", ids["failed"]).rc == 0
    assert (account.home / "runs" / ids["failed"] / "status.json").read_bytes() == before
    assert account.call("report", ids["failed"], "-o", str(account.path / "page.html")).rc == 0
    assert account.call("fetch", "--results", ids["ok"], str(account.path / "fetched")).rc == 0
    fetched = sorted((account.path / "fetched").rglob("*.txt"))
    assert [path.name for path in fetched] == ["checkpoint-0.txt", "checkpoint-1.txt"]


@pytest.mark.core
def test_live_run_is_followed_to_its_end(account: Account, live: Callable[[str], Run]) -> None:
    live(COUNT_SCRIPT)
    followed = account.call("attach", OlderRun.id)
    assert followed.rc == 0, followed.err
    assert by_rank(followed.out) == {rank: [f"number {number}" for number in range(60)] for rank in range(2)}


def test_live_run_is_inspected_and_stopped(account: Account, live: Callable[[str], Run]) -> None:
    run = live(SLEEP_FOREVER)
    run.wait_for_all(b"here\n")
    assert {each["id"]: each["state"] for each in account.json("ps")["runs"]}[run.id] == "running"
    assert account.json("why", run.id)["state"] == "running"
    dump = account.call("why", run.id, "--stacks")
    assert (dump.rc, missing(dump.out, "<string>")) == (0, []), dump.err
    refused = account.call("uninstall", "--yes")
    assert (refused.rc, run.status["state"]) == (1, "running"), refused.err
    assert account.call("stop", run.id).rc == 0
    assert run.wait()["state"] == "stopped"
    assert run.left() == []


def test_environment_project_and_playbook_are_used_and_everything_is_removable(account: Account) -> None:
    (host,) = account.json("envs", "--hosts", "localhost")["hosts"]
    assert [(env["names"], env["row"], env["complete"]) for env in host["envs"]] == [(["default"], "torch-2.13", True)]
    (installed,) = account.json("install", "--offline", "--hosts", "localhost")["hosts"]
    assert installed["status"] == "ok", installed
    ran = account.call("run", "--hosts", "localhost", "--ppn", "1", "train.py")
    assert ran.rc == 0, ran.err
    assert "step 3 level 3" in ran.out  # LEVEL is from ipexctl.toml
    played = account.call("play", "--hosts", "localhost", "play.yml")
    assert played.rc == 0, played.err
    assert (account.path / "note.txt").read_text() == "made\n"
    removed = account.call("uninstall", "--hosts", "localhost", "--with-results", "--yes")
    assert removed.rc == 0, removed.err
    assert not account.home.exists()
    assert not (account.path / ".local/state/ipexctl").exists()
