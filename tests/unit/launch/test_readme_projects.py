"""Lines of READMEs in stand-ins for projects of others (tests/data/readme_projects.yaml): what is printed after each
line is typed next, keeps the run and the project's lists, and is not refused."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from launch_helpers import STOCK, cpu, machine, request
from test_printed_lines import spec_of_call

from ipexctl.errors import UserError
from ipexctl.launch.planner import plan_launch
from ipexctl.launch.run_context import RankEnv
from ipexctl.launch.spec import RunSpec
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.plan import Plan
from ipexctl.projects.requirement_files import digest_of_list
from ipexctl.run.start.first_install import _NEED_NO_REQUIREMENT, request_of_run
from ipexctl.run.start.script_imports import check_imports, check_own_modules, note_on_lacking, with_environment
from ipexctl.run.start.start_notes import copies_notes
from ipexctl.run.start.start_request import StartError, StartFailure
from ipexctl.stack.install_context import with_packages
from ipexctl.stack.resolve.model import EnvRequest, StackRequest

PROJECTS: dict[str, dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parents[2] / "data" / "readme_projects.yaml").read_text()
)
HOSTS = ("--hosts", "n1,n2")


def put_files(root: Path, files: dict[str, str]) -> None:
    (root / ".git").mkdir(parents=True)
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def with_lists(spec: RunSpec) -> RunSpec:
    """As a call without --no-requirements."""
    return replace(spec, asked=spec.asked._replace(takes_own_requirements=True))


def failures_of(spec: RunSpec) -> Iterator[StartFailure]:
    """What a start on two hosts says whose environment has torch alone."""
    internal = {"n1": "10.1.0.1", "n2": "10.1.0.2"}
    context = replace(request(*[machine(cpu(4))] * 2, names=[*internal], internal=internal), spec=spec)
    plan = plan_launch(context, "run-1")
    assert isinstance(plan, Plan), plan
    script = spec.project.script
    steps: list[Callable[[], object]] = [lambda: copies_notes(context, plan)]
    if script is not None:
        modules = [each.module for each in script.imports if each.module not in _NEED_NO_REQUIREMENT]
        steps += [
            lambda: check_own_modules(script, ()),
            lambda: check_imports(with_environment(script, context), dict.fromkeys(internal, modules)),
        ]
    for step in steps:
        try:
            step()
        except StartError as error:
            yield error.failure
    if note := note_on_lacking(context):
        yield StartFailure("", note)


def printed_after(words: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[RunSpec | None, list[list[str]]]:
    """The call, and the words of each command of ipexctl that is printed after it."""
    try:
        spec = spec_of_call(words, monkeypatch)
    except UserError as error:
        commands = [*error.fix.commands] if isinstance(error.fix, Fix) else []
        return None, [shlex.split(str(each))[1:] for each in commands if each.verb]
    spec = with_lists(spec)
    fixes = [failure.with_call_options(spec.options).fix for failure in failures_of(spec)]
    commands = [each for fix in fixes if isinstance(fix, Fix) for each in fix.commands]
    return spec, [shlex.split(str(each))[1:] for each in commands if each.verb]


LINES = [(name, line) for name, each in PROJECTS.items() for line in each["lines"]]


@pytest.mark.parametrize(("name", "line"), LINES)
def test_each_printed_line_keeps_the_run_and_the_lists_and_is_taken(
    name: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = PROJECTS[name]
    put_files(tmp_path / name, project["files"])
    monkeypatch.chdir(tmp_path / name / project.get("cwd", "."))
    typed = ["run", *HOSTS, *shlex.split(line)]
    waiting, seen = [typed], list[list[str]]()
    installed = set[str]()
    while waiting:
        words = waiting.pop()
        spec, printed = printed_after(words, monkeypatch)
        if "--install" in words:
            assert spec is not None
            notes = list[str]()
            wanted = request_of_run(spec, notes.append)
            assert [note for note in notes if "left out: " in note and note.split()[1] in project["lists"]] == []
            installed |= {os.path.relpath(file) for file in wanted.files}
            continue  # what follows is the install's
        assert spec is not None or printed, words
        new = [each for each in printed if each not in seen]
        assert all(each[0] == "run" for each in new), new
        seen += new
        waiting += new
        assert len(seen) < 12, seen
    run = {each for each in shlex.split(line) if each not in ("--", "python")}
    assert [each for each in seen if "--install" in each and not run <= {*each}] == []
    assert [each for each in project["lists"] if each not in installed] == []


def note_of(env: RankEnv, monkeypatch: pytest.MonkeyPatch) -> str:
    spec = with_lists(spec_of_call(["run", *HOSTS, "python", "-u", "train.py", "--lr", "1"], monkeypatch))
    return note_on_lacking(replace(request(machine(cpu(4)), env=env), spec=spec))


def test_a_start_compares_the_environment_with_the_project_s_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"pack{number}" for number in range(12)]
    put_files(tmp_path, {"requirements.txt": "\n".join([*names, "torch"]), "train.py": ""})
    monkeypatch.chdir(tmp_path)
    shown = "12 packages of requirements.txt (pack0, pack1, pack2, pack3 and 8 more)"
    line = "ipexctl run --install train.py --lr 1"
    assert note_of(STOCK, monkeypatch) == f"the environment lacks {shown}: {line}"
    has_all = replace(STOCK, packages={**STOCK.packages, **dict.fromkeys(names, "1")})
    assert note_of(has_all, monkeypatch) == ""


def test_a_list_that_only_a_build_reads_is_compared_with_what_an_install_has_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_files(tmp_path, {"setup.py": "setup(install_requires=read())\n", "train.py": ""})
    monkeypatch.chdir(tmp_path)
    assert note_of(STOCK, monkeypatch).startswith(
        "the environment was not made from setup.py, or the list has changed: "
    )
    made = EnvRequest(StackRequest(), lists=(digest_of_list(tmp_path / "setup.py"),))
    read = EnvRequest.from_json(
        with_packages(EnvRequest.from_json(made.to_json()), EnvRequest(StackRequest())).to_json()
    )
    assert note_of(replace(STOCK, lists=read.lists), monkeypatch) == ""
    (tmp_path / "setup.py").write_text("setup(install_requires=read_more())\n")
    assert "setup.py" in note_of(replace(STOCK, lists=read.lists), monkeypatch)


def test_a_lock_is_compared_by_what_its_project_requires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = PROJECTS["fish_speech"]["files"]
    put_files(tmp_path, {**files, "train.py": ""})
    monkeypatch.chdir(tmp_path)
    assert "3 packages of uv.lock (hydra-core, loguru, natsort)" in note_of(STOCK, monkeypatch)


@pytest.mark.parametrize("line", ["spktrain experiment=x", "-- spktrain experiment=x"])
def test_a_script_that_an_install_makes_a_command_is_started_as_its_file(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_files(tmp_path, PROJECTS["schnet"]["files"])
    (tmp_path / "hosts").mkdir()
    monkeypatch.chdir(tmp_path / "hosts")
    location = spec_of_call(["run", *HOSTS, *shlex.split(line)], monkeypatch).project
    assert location.command[-2:] == ("../src/scripts/spktrain", "experiment=x")
    assert location.script is not None
    assert {each.module for each in location.script.imports} == {"hydra", "ase"}
