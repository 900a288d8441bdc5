"""One account of a host, several people: what others made is named, and stays unless --force is typed."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from test_prune import Runs

from env_helpers import Home
from forked_calls import forked_call
from ipexctl import Cluster
from ipexctl.errors import UserError
from ipexctl.homes.registry import RunRegistry
from ipexctl.hosts.host import Host
from ipexctl.remote.caller import caller_here
from record_helpers import run_record

ANN = {"user": "ann", "host": "desk", "records": "1"}
BEN = {"user": "ben", "host": os.uname().nodename, "records": "1"}
RUN = "train-1120-132512-9f3a"


class Shared:
    """A home with an environment and a run that ended long ago; both say who made them."""

    def __init__(self, base: Path, by: dict[str, str] | None) -> None:
        self.base = base
        self.home = Home.below(base)
        self.home.build(record={"by": by})
        self.runs = Runs(self.home.path, exist_ok=True)
        self.run = self.runs.make(RUN, 99)
        (self.run / "plan.json").write_text(json.dumps({"by": by}))
        (base / "ben").mkdir()

    def call(self, *words: str) -> tuple[int, str]:
        """A command of ben; returns its exit code and output."""
        kept = {name: os.environ[name] for name in ("PATH", "COVERAGE_PROCESS_START") if name in os.environ}
        env = {**kept, "HOME": str(self.base / "ben"), "LOGNAME": "ben", "PYTHONPATH": os.pathsep.join(sys.path)}
        done = forked_call(*words, cwd="/", env=env)
        return done.returncode, done.stdout + done.stderr

    def on_hosts(self, command: str, *words: str) -> tuple[int, str]:
        return self.call(command, "--hosts", "localhost", "--home", str(self.home.path), *words)

    def know(self, run: str) -> None:
        """A record of a run on this home, which ben has."""
        registry = RunRegistry(self.base / "ben/.local/state/ipexctl/runs")
        registry.save(run_record(run, Host("localhost", "localhost"), str(self.home.path), sys.executable, "train.py"))

    @property
    def left(self) -> set[str]:
        paths = {"environment": self.home.env, "name": self.home.path / "envs/default", "run": self.run}
        return {name for name, path in paths.items() if path.exists()}


@pytest.fixture
def anns(tmp_path: Path) -> Shared:
    return Shared(tmp_path, ANN)


ALL = {"environment", "name", "run"}


@pytest.mark.core
def test_uninstall_names_what_is_of_others_and_refuses_it(anns: Shared) -> None:
    code, listed = anns.on_hosts("uninstall", "--dry-run")
    assert code == 0, listed
    code, refused = anns.on_hosts("uninstall", "--yes")
    assert code == 2, refused
    for text in (listed, refused):
        assert f"run {RUN} by ann@desk" in text
        assert f"environment {anns.home.name} by ann@desk" in text
        assert f"ipexctl uninstall --hosts localhost --home {anns.home.path} --force" in text
    assert anns.left == ALL
    report = json.loads(anns.on_hosts("uninstall", "--dry-run", "--json")[1])
    assert [(each["kind"], each["by"]) for each in report["hosts"][0]["foreign"]] == [
        ("run", ANN),
        ("environment", ANN),
    ]
    code, removed = anns.on_hosts("uninstall", "--yes", "--force", "--with-results")
    assert code == 0, removed
    assert "by ann@desk" in removed
    assert anns.left == set()


@pytest.mark.parametrize("named", [BEN, {"user": "ben-before", "host": "a-name-before"}])
def test_what_is_of_the_callers_records_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: dict[str, str]
) -> None:
    with monkeypatch.context() as patched:
        patched.setenv("HOME", str(tmp_path / "ben"))
        records = caller_here().records
    shared = Shared(tmp_path, {**named, "records": records})
    assert shared.on_hosts("uninstall", "--yes", "--with-results")[0] == 0
    assert shared.left == set()


@pytest.mark.parametrize(
    ("by", "named"),
    [
        (BEN, f"by ben@{os.uname().nodename}"),  # another $HOME
        (None, "by somebody without a name (IPEXCTL_ANONYMOUS=1)"),
        ({"user": 1, "host": []}, "by somebody without a name"),
    ],
)
def test_what_another_home_or_nobody_named_made_stays(tmp_path: Path, by: Any, named: str) -> None:
    shared = Shared(tmp_path, by)
    for words in (("uninstall", "--yes"), ("envs", "--remove", "default")):
        code, text = shared.on_hosts(*words)
        assert code == 2, text
        assert f"environment {shared.home.name} {named}" in text
        assert shared.left == ALL


def test_an_anonymous_run_that_this_machine_has_a_record_of_goes(tmp_path: Path) -> None:
    shared = Shared(tmp_path, None)
    shared.know(RUN)
    assert shared.on_hosts("envs", "--remove", "default", "--force")[0] == 0
    assert shared.on_hosts("uninstall", "--yes", "--with-results")[0] == 0
    assert shared.left == set()


@pytest.mark.parametrize("name", ["default", None])
def test_envs_remove_refuses_an_environment_of_others(anns: Shared, name: str | None) -> None:
    name = name or anns.home.name
    code, text = anns.on_hosts("envs", "--remove", name)
    assert code == 2, text
    assert f"environment {anns.home.name} by ann@desk" in text
    again = f"--hosts localhost --home {anns.home.path} --remove {name} --force"
    assert f"ipexctl envs {again}" in text
    assert anns.left == ALL
    assert anns.call("envs", *again.split())[0] == 0
    assert anns.left == {"run"}


def test_a_prune_keeps_nameless_environments_of_others(anns: Shared) -> None:
    (anns.home.path / "envs/default").unlink()
    code, text = anns.on_hosts("envs", "--prune")
    assert code == 0, text
    assert f"environment {anns.home.name} by ann@desk" in text
    assert "environment" in anns.left
    assert anns.on_hosts("envs", "--prune", "--force")[0] == 0
    assert anns.left == {"run"}


def test_ps_prune_keeps_runs_of_others_and_a_run_of_the_own_records_goes(
    anns: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    for days in range(11):
        (anns.runs.make(f"new-{days}", days) / "plan.json").write_text(json.dumps({"by": ANN}))
    own = anns.runs.make("mine-1120-132512-9f3a", 98)
    (own / "plan.json").write_text(json.dumps({"by": {**BEN, "host": "a name that this machine had before"}}))
    for days in range(10):
        anns.know(anns.runs.make(f"own-{days}", days).name)
    anns.know(own.name)
    for words in (("--dry-run",), ()):
        code, text = anns.call("ps", "--prune", *words)
        assert code == 0, text
        assert f"run {RUN} by ann@desk" in text
        assert "ipexctl ps --prune --force" in text
        assert (own.exists(), anns.run.exists()) == (bool(words), True)
    code, text = anns.call("ps", "--prune", "--force")
    assert code == 0, text
    assert f"{RUN}: older than 30 days" in text
    assert "by ann@desk" in text
    assert not anns.run.exists()


def test_a_playbook_removes_an_environment_of_others_only_with_force(anns: Shared) -> None:
    book = anns.base / "ben/book.yml"

    def play(task: str, *words: str) -> tuple[int, str]:
        book.write_text(f"- hosts: all\n  tasks:\n  - env: {task}\n")
        return anns.on_hosts("play", str(book), *words)

    for words in (("--check",), ()):
        code, text = play("{name: default, state: absent}", *words)
        assert code == 1, text
        assert f"environment {anns.home.name} by ann@desk" in text
        assert "add to the task: force: true" in text
    assert anns.left == ALL
    assert play("{name: default, state: absent, force: true}")[0] == 0
    assert anns.left == {"run"}


def test_python_refuses_what_is_of_others(anns: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ben")
    cluster = Cluster(["localhost"], home=str(anns.home.path))
    for remove in (cluster.uninstall, partial(cluster.envs, remove=["default"])):
        with pytest.raises(UserError, match="by ann@desk"):
            remove()
    assert anns.left == ALL
    assert cluster.uninstall(dry_run=True).hosts[0].foreign
    cluster.envs(remove=["default"], force=True)
    assert anns.left == {"run"}


def test_a_repair_changes_no_owner(anns: Shared) -> None:
    build = anns.home.record["build"]
    anns.home.build(replace=build, record={"by": BEN})
    assert anns.home.record["build"] != build
    assert anns.home.record["by"] == ANN
