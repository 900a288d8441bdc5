"""The order of steps of a run, with a start that is a fake."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from ipexctl.api import run as api
from ipexctl.errors import Refusal
from ipexctl.hosts.host import Host
from ipexctl.launch.run_context import RankEnv, RunContext
from ipexctl.projects.layout import read_layout
from ipexctl.projects.modules import Import
from ipexctl.projects.requirement_files import find_requirement_files
from ipexctl.projects.script_file import ProjectLocation, ScriptFile
from ipexctl.run.start import first_install
from ipexctl.run.start.run_start import RunStart
from ipexctl.run.start.start_request import StartFailure
from ipexctl.run.start.watcher import RunWatcher, StartedRun
from ipexctl.stack.install_context import InstallReport, InstallRequest
from ipexctl.stack.resolve.model import EnvRequest, Sources, StackRequest
from plan_helpers import changed, spec_of

HERE = Host("localhost", "localhost")
SPEC = spec_of(hosts=(HERE,), project=ProjectLocation(Path("/p"), ".", ("train.py",)))
RECORD: Any = SimpleNamespace(id="r")
LAUNCH: Any = SimpleNamespace(stopped_on_failure=lambda _: nullcontext(), is_shown=True)
STARTED: Any = StartedRun(RECORD, LAUNCH)


class Recorded(RunWatcher):
    """Records the events; the run ends with this exit code."""

    def __init__(self, code: int = 0, *, is_cancelled: bool = False, agrees: bool = False) -> None:
        self.events: list[str] = []
        self.pool: Any = SimpleNamespace(cancel=SimpleNamespace(thrown=is_cancelled))
        self._code, self._agrees = code, agrees

    @contextmanager
    def sessions(self) -> Iterator[Any]:
        self.events.append("open")
        yield self.pool
        self.events.append("close")

    def on_note(self, text: str) -> None:
        self.events.append(text)

    def agrees_to_install(self, report: Any) -> bool:
        return self._agrees

    def on_started(self, run: Any) -> None:
        self.events.append("started")

    def follow(self, run: Any) -> int:
        self.events.append("follow")
        return self._code


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the steps return, by the name of their function. `started`: the specs that were started."""
    wanted: Any = InstallRequest(EnvRequest(StackRequest()), Sources(), ())
    found: dict[str, Any] = {"start_run": STARTED, "install_first": wanted, "started": []}

    def start_run(start: RunStart) -> Any:
        found["started"].append(start.spec)
        return found["start_run"]

    def remove(*given: Any) -> None:
        given[-1].removed = True

    monkeypatch.setattr("ipexctl.run.start.pipeline.start_run", start_run)
    monkeypatch.setattr("ipexctl.run.start.pipeline.plan_run", lambda start, **_: start.spec)
    monkeypatch.setattr("ipexctl.run.start.begin.remove_job_files", remove)
    monkeypatch.setattr(first_install, "install_first", lambda *_, **__: found["install_first"])
    return found


@pytest.mark.parametrize(("code", "after"), [(0, []), (1, ["open", "close"])])
def test_secrets_are_removed_over_new_sessions_if_the_run_may_have_left_them(
    code: int, after: list[str], answers: dict[str, Any]
) -> None:
    watcher = Recorded(code)
    assert api.run(SPEC, watcher) == replace(STARTED, exit_code=code)
    assert watcher.events == ["open", "started", "follow", "close", *after]
    assert hasattr(watcher.pool, "removed") == bool(after)


def test_a_dry_run_ends_before_the_first_step_that_changes_something(answers: dict[str, Any]) -> None:
    answers["install_first"] = replace(answers["install_first"], torch="2.13")
    watcher = Recorded()
    planned: Any = api.run(changed(SPEC, install=True), watcher, dry_run=True)
    assert planned.asked == changed(SPEC, install=True).asked
    assert watcher.events == ["open", "close"]
    assert answers["started"] == []


class Hosts:
    """What hosts without an environment, or with one, answer, and the installs that they got."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_there: bool, code: int = 0) -> None:
        self.probes = 0
        self.installs: list[bool] = []
        self.report = InstallReport((), 0.0, refusal=Refusal("no wheel of it", exit_code=code) if code else None)
        monkeypatch.setattr(first_install, "is_everywhere", lambda *_: is_there)
        monkeypatch.setattr(first_install, "find_unchanged", lambda *_: None)
        monkeypatch.setattr(first_install, "install", self._install)
        monkeypatch.setattr("ipexctl.run.start.run_start.gather_facts", self._gather)
        monkeypatch.setattr("ipexctl.run.start.run_start.ProjectUpload", lambda *_: Mock())
        monkeypatch.setattr(
            "ipexctl.run.start.run_start.gather_context", lambda _, __, probe, **___: (probe(), self.context)[1]
        )
        self.context: RunContext = RunContext(SPEC, {}, {}, "", RankEnv("", name="default", is_installed=False))
        monkeypatch.setattr(first_install, "ranks_on", lambda *_: None)

    def _install(self, _: Any, request: Any, *__: Any, probed: Any) -> Any:
        self.installs.append(request.dry_run)
        return self.report

    def _gather(self, *_: Any, **__: Any) -> tuple[str, ...]:
        self.probes += 1
        return ("facts",)


def first(spec: Any, *, dry_run: bool = False, lacking: Any = None, agrees: bool = False) -> tuple[Any, RunStart]:
    watcher = Recorded(agrees=agrees)
    start = RunStart(spec, watcher.pool, watcher)
    return first_install.install_first(start, watcher, lacking=lacking, dry_run=dry_run), start


BARE = StartFailure("no environment", hosts=("a",), lacks_environment=True)
INSTALL = changed(SPEC, install=True, packages=("frobnicate==9",))


@pytest.mark.parametrize("is_there", [True, False])
def test_a_dry_run_of_an_install_locks_and_ends_as_the_install_would(
    is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = Hosts(monkeypatch, is_there=is_there, code=2)
    failed, _ = first(INSTALL, dry_run=True)
    assert (failed.exit_code, "no wheel of it" in failed.reason) == (2, True)
    hosts.report = InstallReport((), 0.0)
    planned, _ = first(INSTALL, dry_run=True)
    assert isinstance(planned, InstallRequest)
    assert hosts.installs == [True, True]


@pytest.mark.parametrize(("agrees", "installs"), [(False, [True]), (True, [True, False])])
def test_nothing_is_installed_on_bare_hosts_before_the_user_agrees(
    agrees: bool, installs: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = Hosts(monkeypatch, is_there=False)
    result, start = first(INSTALL, lacking=BARE, agrees=agrees)
    assert hosts.installs == installs
    assert isinstance(result, InstallRequest) is agrees
    assert agrees or "ipexctl run --install" in result.fix
    assert hosts.probes == 1, "the checks and the install use the same facts"
    start.probe()
    assert hosts.probes == 1 + agrees, "an install changes them"


def test_facts_that_still_hold_after_an_install_are_not_gathered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = Hosts(monkeypatch, is_there=True)
    wanted, start = first(changed(SPEC, install=True))
    assert isinstance(wanted, InstallRequest)
    start.probe()
    assert (hosts.probes, hosts.installs) == (1, [])


def test_an_install_is_refused_if_the_new_environment_cannot_have_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules of packages that the call names are not known before the install."""
    hosts = Hosts(monkeypatch, is_there=False)
    script = ScriptFile("x.py", imports=(Import("frobnicate", 1),))
    spec = changed(SPEC, install=True, sync=True, project=ProjectLocation(Path(), ".", (), script))
    hosts.context = replace(hosts.context, spec=spec)
    for dry_run in (True, False):
        failed, _ = first(spec, dry_run=dry_run)
        assert "frobnicate" in failed.reason
    assert hosts.installs == []
    assert isinstance(first(changed(spec, packages=("peft",)))[0], InstallRequest)


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
    assert answers["started"] == []


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
    request = first_install.request_of_run(spec, notes.append)
    assert bool(request.files) is is_taken
    assert is_taken or any(f"{tmp_path}/{open_to_all}" in note for note in notes)
