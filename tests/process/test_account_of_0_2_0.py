"""An account that ipexctl 0.2.0 has used: this version reads its runs, follows a live one, and uses all it has left.

`tests/data/account-0.2.0.tar.xz` was made by that version: `home` and `state` with three runs of two ranks under Intel
MPI, an environment from tiny wheels, a `project` with its ipexctl.toml and playbook, and the `agent` of a run. Only the
hash of bin/f2py is left out, in which the path changes.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from run_helpers import Run
from test_older_runs import COUNT_SCRIPT, SLEEP_SCRIPT, unpack

from cli_helpers import CommandResult, ipexctl
from ipexctl.jobs.registry import RunRegistry
from lab_run_helpers import by_rank
from message_data import missing

RUNS = {"older-ok": ("ok", 0), "older-failed": ("failed", 1), "older-restarted": ("ok", 0)}


@dataclass
class RunOf020(Run):
    """Started by the supervisor of that version, with the ranks' hooks of that version."""

    id: str = "older-live"
    files: Path = field(default_factory=Path)

    def upload_agent(self) -> None:
        shutil.copytree(self.files / "agent", self.agent)
        shutil.copytree(self.files / "shim", self.rundir / "shim")

    def write_job(self) -> None:
        self.job = {**self.job, "supervisor": {"address": "127.0.0.1", "port": self.port}}
        super().write_job()

    def program(self, name: str) -> list[str]:
        return [self.python, "-I", str(self.agent), f"run.{name}"]


@dataclass
class Account:
    """A home directory with what 0.2.0 has left there."""

    path: Path

    @property
    def home(self) -> Path:
        return self.path / ".ipexctl"

    def call(self, *args: str, timeout: float = 100) -> CommandResult:
        variables = {"HOME": str(self.path), "XDG_STATE_HOME": str(self.path / ".local/state")}
        variables |= {"XDG_CACHE_HOME": str(self.path / ".cache"), "XDG_CONFIG_HOME": str(self.path / ".config")}
        return ipexctl(*args, env=variables, cwd=self.path / "project", timeout=timeout)

    def json(self, *args: str) -> dict[str, Any]:
        called = self.call(*args, "--json")
        assert called.out, called.err
        document: dict[str, Any] = json.loads(called.out)
        return document


@pytest.fixture
def account(tmp_path: Path) -> Account:
    unpack("account-0.2.0.tar.xz", tmp_path)
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
        (env / "env.json").write_text(
            (env / "env.json").read_text().replace('"python": "3.11"', f'"python": "{minor}"')
        )
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
        started.append(RunOf020(account.home, command, files=account.path))
        run = started[-1].start()
        RunRegistry(account.path / ".local/state/ipexctl/runs").save(run.record)
        return run

    yield start
    for run in started:
        run.close()


def test_runs_have_their_state_output_and_cause(account: Account) -> None:
    runs = {run["id"]: (run["state"], run["exit_code"]) for run in account.json("ps")["runs"]}
    assert runs == RUNS
    for command in ("logs", "attach"):
        shown = account.call(command, "older-ok")
        assert shown.rc == 0, shown.err
        lines = ["torch 2.13.0", *(f"step {step} level 3" for step in range(4))]
        assert by_rank(shown.out) == {0: lines, 1: lines}
    why = account.json("why", "older-failed")
    assert (why["state"], why["first_failure"]["rank"], why["cause"]["id"]) == ("failed", 1, "script.raised")
    again = account.call("logs", "older-restarted", "-r", "1").out
    assert ["step 2" in line for line in again.splitlines()].count(True) == 1
    assert "step 3" in again
    before = (account.home / "runs/older-failed/status.json").read_bytes()
    assert account.call("stop", "older-failed").rc == 0
    assert (account.home / "runs/older-failed/status.json").read_bytes() == before


def test_newer_commands_take_its_runs(account: Account, tmp_path: Path) -> None:
    """Its record has no windows, notes or times of newer versions."""
    assert account.call("wait", "older-ok").rc == 0
    assert account.call("wait", "older-failed").rc == 1
    page = tmp_path / "page.html"
    assert account.call("report", "older-restarted", "-o", str(page)).rc == 0
    assert "older-restarted" in page.read_text()
    assert account.json("slow", "older-ok")["findings"] == []
    assert account.call("dump", "older-ok").rc == 1
    assert account.call("fetch", "older-ok", str(tmp_path / "fetched"), "--results").rc in (0, 1)
    for call in (("report", "older-ok", "--compare", "older-failed", "-o", str(page)), ("logs", "older-ok", "-r", "0")):
        assert account.call(*call).rc == 0


def test_live_run_is_followed_to_its_end(account: Account, live: Callable[[str], Run]) -> None:
    live(COUNT_SCRIPT)
    followed = account.call("attach", "older-live")
    assert followed.rc == 0, followed.err
    assert by_rank(followed.out) == {rank: [f"number {number}" for number in range(60)] for rank in range(2)}


def test_live_run_is_inspected_and_stopped(account: Account, live: Callable[[str], Run]) -> None:
    run = live(SLEEP_SCRIPT)
    run.wait_for_all(b"here\n")
    assert {each["id"]: each["state"] for each in account.json("ps")["runs"]}["older-live"] == "running"
    assert account.json("why", "older-live")["state"] == "running"
    dump = account.call("dump", "older-live")
    assert (dump.rc, missing(dump.out, "<string>")) == (0, []), dump.err
    assert account.call("stop", "older-live").rc == 0
    assert run.wait()["state"] == "stopped"
    assert run.left() == []


def test_environment_project_and_playbook_are_used_and_everything_is_removable(account: Account) -> None:
    (host,) = account.json("envs", "--hosts", "localhost")["hosts"]
    assert [(env["names"], env["row"], env["complete"]) for env in host["envs"]] == [(["default"], "torch-2.13", True)]
    (installed,) = account.json("install", "--offline")["hosts"]
    assert installed["status"] == "ok", installed
    ran = account.call("run", "--ppn", "1", "train.py")
    assert ran.rc == 0, ran.err
    assert "step 3 level 3" in ran.out  # LEVEL is from ipexctl.toml
    played = account.call("play", "play.yml")
    assert played.rc == 0, played.err
    assert (account.path / "note.txt").read_text() == "made\n"
    removed = account.call("uninstall", "--with-results", "--yes")
    assert removed.rc == 0, removed.err
    assert not account.home.exists()
    assert not (account.path / ".local/state/ipexctl").exists()
