"""The order of steps of a run, with a start that is a fake."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ipexctl.api import before_run
from ipexctl.api import run as api
from ipexctl.hosts.host import Host
from ipexctl.launch.request import RankEnv
from ipexctl.projects.layout import read_layout
from ipexctl.projects.modules import Import
from ipexctl.projects.requirement_files import find_requirement_files
from ipexctl.run.start.request import StartFailure
from ipexctl.run.start.watcher import PlannedRun, RunWatcher, StartedRun
from ipexctl.script_file import ProjectLocation, ScriptFile
from plan_helpers import changed, spec_of

HERE = Host("localhost", "localhost")
SPEC = spec_of(hosts=(HERE,), project=ProjectLocation(Path("/p"), ".", ("train.py",)))
RECORD: Any = SimpleNamespace(id="r")
STARTED: Any = StartedRun(RECORD, RECORD)


class Recorded(RunWatcher):
    """Records the events; the run ends with this exit code."""

    def __init__(self, code: int = 0, *, is_cancelled: bool = False) -> None:
        self.events: list[str] = []
        self.pool: Any = SimpleNamespace(cancel=SimpleNamespace(thrown=is_cancelled))
        self._code = code

    @contextmanager
    def sessions(self) -> Iterator[Any]:
        self.events.append("open")
        yield self.pool
        self.events.append("close")

    def on_note(self, text: str) -> None:
        self.events.append(text)

    def on_started(self, run: Any) -> None:
        self.events.append("started")

    def follow(self, run: Any) -> int:
        self.events.append("follow")
        return self._code


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the steps return, by the name of their function; the fakes of `start_run` and of `install_first`."""
    found: dict[str, Any] = {"start_run": STARTED, "install_first": (), "probed": None}

    def submit(*_: Any, probed: Any = (), **__: Any) -> Any:
        found["probed"] = probed
        return found["start_run"]

    def remove(*given: Any) -> None:
        given[-1].removed = True

    monkeypatch.setattr("ipexctl.run.start.pipeline.start_run", submit)
    monkeypatch.setattr("ipexctl.run.start.pipeline.plan_run", lambda spec, *_, **__: spec)
    monkeypatch.setattr("ipexctl.run.start.pipeline.remove_job_files", remove)
    monkeypatch.setattr("ipexctl.run.start.upload.start_reading", lambda *_: None)
    monkeypatch.setattr(before_run, "install_first", lambda *_, **__: found["install_first"])
    return found


@pytest.mark.parametrize(("code", "after"), [(0, []), (1, ["open", "close"])])
def test_secrets_are_removed_over_new_sessions_if_the_run_may_have_left_them(
    code: int, after: list[str], answers: dict[str, Any]
) -> None:
    watcher = Recorded(code)
    assert api.run(SPEC, watcher) == replace(STARTED, exit_code=code)
    assert watcher.events == ["open", "started", "follow", "close", *after]
    assert hasattr(watcher.pool, "removed") == bool(after)


def test_a_dry_run_ends_before_the_first_step_that_changes_something(tmp_path: Path, answers: dict[str, Any]) -> None:
    (tmp_path / "requirements.txt").write_text("torch==2.13\n")
    layout = read_layout(tmp_path, tmp_path)
    requirements = find_requirement_files(layout, tmp_path)
    project = ProjectLocation(tmp_path, ".", ("train.py",), layout=layout, requirements=requirements)
    watcher, spec = Recorded(), changed(SPEC, install=True, takes_own_requirements=True, project=project)
    planned: Any = api.run(spec, watcher, dry_run=True)
    assert planned.asked.torch == "2.13"
    assert watcher.events == ["open", "close"]
    assert answers["probed"] is None


def test_a_dry_run_of_an_install_fails_if_the_new_environment_cannot_have_a_module(
    answers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The modules of packages that the call names are not known before the install."""
    plan: Any = SimpleNamespace(project=None, _replace=lambda **_: None)
    checks = list[bool]()
    context: Any = SimpleNamespace(
        spec=replace(
            SPEC, project=ProjectLocation(Path(), ".", (), ScriptFile("x.py", imports=(Import("frobnicate", 1),)))
        ),
        asked=SPEC.asked._replace(sync=True),
        facts={},
        env=RankEnv("python", name="default", is_installed=False),
    )

    def planned(*_: Any, checks_script: bool) -> Any:
        checks.append(checks_script)
        return PlannedRun(plan, context)

    monkeypatch.setattr("ipexctl.run.start.pipeline.plan_run", planned)
    monkeypatch.setattr(before_run, "with_left_out", lambda *_: None)
    failed: Any = api.run(changed(SPEC, install=True), Recorded(), dry_run=True)
    assert "frobnicate" in failed.reason
    assert isinstance(api.run(changed(SPEC, install=True, packages=("peft",)), Recorded(), dry_run=True), PlannedRun)
    assert checks == [True, False]


@pytest.mark.parametrize(("is_cancelled", "last"), [(False, "started"), (True, "follow")])
def test_a_detached_run_is_followed_only_to_stop_it_after_a_signal(
    is_cancelled: bool, last: str, answers: dict[str, Any]
) -> None:
    watcher, spec = Recorded(is_cancelled=is_cancelled), changed(SPEC, is_followed=False)
    assert (api.run(spec, watcher) == STARTED) is not is_cancelled
    assert watcher.events[-2] == last


@pytest.mark.parametrize("failed", [StartFailure("no"), SimpleNamespace(exit_code=1)])
def test_nothing_starts_if_the_install_fails(failed: Any, answers: dict[str, Any]) -> None:
    watcher, spec = Recorded(), changed(SPEC, install=True)
    answers["install_first"] = failed
    assert api.run(spec, watcher) == failed
    assert answers["probed"] is None


def test_facts_that_still_hold_after_an_install_are_not_gathered_again(answers: dict[str, Any]) -> None:
    facts: Any = ("facts of localhost",)
    answers["install_first"] = facts
    api.run(changed(SPEC, install=True), Recorded())
    assert answers["probed"] == facts


def test_a_run_that_did_not_start_is_not_followed(answers: dict[str, Any]) -> None:
    answers["start_run"] = failure = StartFailure("no")
    watcher = Recorded()
    assert api.run(SPEC, watcher) == failure
    assert watcher.events == ["open", "close"]


@pytest.mark.parametrize(("is_bare", "offers"), [(True, True), (True, False), (False, True)])
def test_bare_hosts_lead_to_an_install_only_if_the_caller_can_ask(
    answers: dict[str, Any], monkeypatch: pytest.MonkeyPatch, is_bare: bool, offers: bool
) -> None:
    answers["start_run"] = failure = StartFailure("no", lacks_environment=is_bare)
    monkeypatch.setattr(Recorded, "offers_install", offers)
    answers["install_first"] = refused = StartFailure("the user said no")
    assert api.run(SPEC, Recorded()) == (refused if is_bare and offers else failure)


@pytest.mark.parametrize(
    ("files", "open_to_all", "is_taken"),
    [
        ({"requirements.txt": "peft\n"}, "", True),
        ({"requirements.txt": "-r team/base.txt\n", "team/base.txt": "peft\n"}, "", True),
        ({"requirements.txt": "peft\n"}, "requirements.txt", False),
        ({"requirements.txt": "-r team/base.txt\n", "team/base.txt": "peft\n"}, "team", False),
        ({"requirements.txt": "-c team/base.txt\n", "team/base.txt": "peft\n"}, "team/base.txt", False),
        ({"uv.lock": "", "pyproject.toml": "[project]\ndependencies = ['peft']\n"}, "pyproject.toml", False),
    ],
)
def test_a_found_file_of_requirements_counts_with_all_that_it_reads_or_not_at_all(
    tmp_path: Path, files: dict[str, str], open_to_all: str, is_taken: bool
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    if open_to_all:
        (tmp_path / open_to_all).chmod(0o777)
    notes: list[str] = []
    layout = read_layout(tmp_path, tmp_path)
    requirements = find_requirement_files(layout, tmp_path)
    project = ProjectLocation(tmp_path, ".", ("train.py",), layout=layout, requirements=requirements)
    spec = changed(SPEC, install=True, takes_own_requirements=True, project=project)
    request = before_run.request_of_run(spec, notes.append)
    assert bool(request.files) is is_taken
    assert is_taken or any(f"{tmp_path}/{open_to_all}" in note for note in notes)
