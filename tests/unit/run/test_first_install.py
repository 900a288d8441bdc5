"""Lines of a run whose install cannot be made, or brings too little; shell scripts in place of a script."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from ipexctl.api.run import _plan
from ipexctl.errors import Refusal
from ipexctl.hosts.host import Host
from ipexctl.launch.launchers.program import read_program
from ipexctl.launch.spec import RunSpec
from ipexctl.node.common.fix import Fix, ipexctl_command, join_fixes
from ipexctl.option_declaration import CallOptions, TypedCall
from ipexctl.projects.layout import read_layout
from ipexctl.projects.requirement_files import find_requirement_files
from ipexctl.projects.script_file import ProjectLocation
from ipexctl.run.start.first_install import (
    _as_run_fix,
    _find_lacking_packages,
    _has_failed_import,
    _imported_packages,
    _may_lack_packages,
    _newest_packages_fix,
    _with_builds,
    _with_install_option,
)
from ipexctl.run.start.run_start import RunStart
from ipexctl.run.start.script_imports import check_imports, install_by_run
from ipexctl.run.start.script_reading import project_script
from ipexctl.run.start.start_notes import copies_notes
from ipexctl.run.start.start_project import locate_project
from ipexctl.run.start.start_request import StartError, StartFailure
from ipexctl.stack.install_context import InstallReport, InstallRequest, InstallResult
from ipexctl.stack.lock.project_packages import BackendList
from ipexctl.stack.lock.wheel_lock import Lock, Wheel
from ipexctl.stack.resolve.model import EnvRequest, Sources, StackRequest
from plan_helpers import small_plan, spec_of

BUILD = "build from source, which runs the code of gym"
WANTED = InstallRequest(EnvRequest(StackRequest()), Sources(), ())


def spec_in(root: Path, code: str, monkeypatch: pytest.MonkeyPatch, **asked: Any) -> RunSpec:
    monkeypatch.chdir(root)
    (root / "train.py").write_text(code)
    layout = read_layout(root, root)
    files = find_requirement_files(layout, root)
    script = replace(project_script("train.py", root / "train.py", layout), requirements=files)
    project = ProjectLocation(root, ".", ("train.py",), script, layout, files)
    return spec_of("script", ("train.py", "--lr", "1"), project=project, takes_own_requirements=True, **asked)


def report_with(*packages: str) -> InstallReport:
    return InstallReport((), 0.0, lock=Lock("3.11", tuple(Wheel(name, "1", f"{name}.whl", "0") for name in packages)))


def test_a_package_that_the_lists_leave_out_is_added_to_the_line_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "requirements.txt").write_text("transformers\ngit+https://h/peft.git\n")
    spec = spec_in(tmp_path, "import os, torch, transformers, peft, of_nobody\n", monkeypatch)
    failure = _find_lacking_packages(report_with("torch", "transformers"), spec, WANTED)
    assert failure is not None
    assert failure.reason == "no list of the project brings the module peft that train.py imports (line 1)"
    assert failure.fix == "ipexctl run --install -r requirements.txt --with peft train.py --lr 1"
    for packages, builds in ((("transformers", "peft"), ()), (("transformers",), ("peft",))):
        assert _find_lacking_packages(report_with(*packages), spec, replace(WANTED, builds=builds)) is None


def test_what_an_install_brings_is_looked_up_before_it_if_no_list_names_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_in(tmp_path, "import os, torch, peft, of_nobody\n", monkeypatch)
    with_peft = replace(WANTED, env=EnvRequest(StackRequest(), ("peft>=0.17",)))
    unread = replace(WANTED, unread=(BackendList(Path("setup.py")),))
    asked = [
        _may_lack_packages(spec, wanted) for wanted in (WANTED, with_peft, unread, replace(WANTED, builds=("peft",)))
    ]
    assert asked == [True, False, False, False]


@pytest.mark.parametrize(
    ("code", "asked", "packages"),
    [
        ("import torch, yaml, peft", {}, ["pyyaml", "peft"]),
        ("import beside, peft", {}, ["peft"]),
        ("import of_nobody, peft", {}, []),
        ("import peft", {"extra": ("dev",)}, []),
        ("import torch", {}, []),
    ],
)
def test_the_newest_packages_stand_for_versions_that_have_no_solution(
    code: str, asked: dict[str, Any], packages: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside.py").touch()
    assert _imported_packages(spec_in(tmp_path, f"{code}\n", monkeypatch, **asked)) == packages


def test_a_module_that_is_certainly_not_the_project_s_is_missing_although_a_file_changes_sys_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "peft.py").touch()
    code = "import sys\nsys.path.append('inner')\nimport peft, trl, of_nobody\n"
    failure = _find_lacking_packages(report_with("torch"), spec_in(tmp_path, code, monkeypatch), WANTED)
    assert failure is not None
    assert failure.reason == "no list of the project brings the module trl that train.py imports (line 3)"


@pytest.mark.parametrize(
    ("refusal", "line"),
    [
        (None, "ipexctl run --install --with gym train.py"),
        (Refusal("no index", "later"), "ipexctl run --install --with gym train.py"),
        (
            Refusal("gym has no wheel for x:\n  why", Fix.of((ipexctl_command("install", "--build", "gym"),))),
            "build from source, which runs the code of gym on a: ipexctl run --install --with gym --build gym train.py",
        ),
    ],
)
def test_a_line_that_is_printed_names_the_builds_that_its_packages_need(
    refusal: Refusal | None, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_in(tmp_path, "import gym\n", monkeypatch)
    asked: list[InstallRequest] = []

    def look_up(_: Any, request: InstallRequest, **__: Any) -> InstallReport:
        asked.append(request)
        return InstallReport((), 0.0, refusal=refusal)

    monkeypatch.setattr("ipexctl.run.start.first_install.install", look_up)
    command = ipexctl_command("run", "--install", "--with", "gym", argv=("train.py",))
    lacking = StartFailure("a lacks the module gym", Fix.of((command,)), ("a",))
    failure = _with_builds(RunStart(spec, Mock(), Mock()), lacking, ())
    assert (failure.fix, failure.reason.removeprefix(lacking.reason)) == (
        line,
        ", and gym has no wheel for x" if "--build" in line else "",
    )
    assert [(each.dry_run, each.env.packages) for each in asked] == [(True, ("gym",))]
    assert _with_builds(RunStart(spec, Mock(), Mock()), replace(lacking, fix="leave .cuda() out"), ()).fix.startswith(
        "l"
    )


@pytest.mark.parametrize(
    ("needed", "builds", "options"),
    [
        (None, (), "--with h5py --with gym"),
        ((), (), None),
        (("gym",), (), "--with h5py --with gym --build gym"),
        (("gym",), ("gym", "h5py"), "--with h5py --with gym --build gym"),
        (("gym",), ("gym",), None),
        (None, ("gym",), "--with h5py --with gym"),
    ],
)
def test_the_newest_packages_are_offered_if_they_need_fewer_builds(
    needed: tuple[str, ...] | None,
    builds: tuple[str, ...],
    options: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = ipexctl_command("install", *(word for name in needed or () for word in ("--build", name)))
    refusal = None if needed is None else Refusal("no wheel", Fix.of((line,)))
    monkeypatch.setattr("ipexctl.run.start.first_install._look_up_packages", lambda *_: refusal)
    start = RunStart(spec_in(tmp_path, "import h5py, gym\n", monkeypatch), Mock(), Mock())
    newest = _newest_packages_fix(start, (), builds)
    assert newest.endswith(f": ipexctl run --install {options} train.py --lr 1") if options else newest == ""
    assert ("which runs the code of gym" in newest) is ("--build" in (options or ""))


def test_without_an_environment_each_printed_line_of_the_run_installs_it() -> None:
    lines = (("run", "--ppn", "2"), ("run", "--install", "--ppn", "2"), ("install", "--ppn", "2"))
    fix = join_fixes([Fix("cores: {line}", line=ipexctl_command(*line, argv=("train.py",))) for line in lines])
    install, run = "ipexctl install --ppn 2 train.py", "ipexctl run --install --ppn 2 train.py"
    assert _with_install_option(fix) == f"cores: {run}; cores: {run}; cores: {install}"
    assert _with_install_option("leave out .cuda()") == "leave out .cuda()"


def test_the_options_of_an_install_that_would_lose_packages_are_lines_of_the_run() -> None:
    fix = _as_run_fix(Fix("keep: `--env default-2`; change: `--downgrade`"), spec_of(requirements=("r.txt",)))
    assert fix == "keep: ipexctl run --install --env default-2 train.py; change: ipexctl install -r r.txt --downgrade"
    fix = _as_run_fix(Fix("`--downgrade`"), spec_of(packages=("torchtext",), torch="2.3"))
    assert fix == "ipexctl install --torch 2.3 --with torchtext --downgrade"


@pytest.mark.parametrize(
    ("words", "asked", "line"),
    [
        ("install -r r.txt --build a --build b", {}, "run --install --build a --build b train.py"),
        ("install -r r.txt --build a --build b", {"builds": ("a",)}, "run --install --build b train.py"),
        ("install -r r.txt --with x<2", {}, "run --install -r r.txt --with x<2 train.py"),
        ("install --with x --build a", {}, "run --install --with x --build a train.py"),
        ("install --stack torch --env e", {"env": "e"}, "run --install --stack torch train.py"),
        ("install --require-oneccl --with x", {}, "install --require-oneccl --with x"),
        ("install --with x --index-url u", {}, "install --with x --index-url u"),
        ("install --with x --build a", {"packages": ("x",)}, "run --install --build a train.py"),
        ("install --with x==2", {"packages": ("x==9",)}, "install --with x==2"),
    ],
)
def test_a_line_of_the_install_is_one_of_the_run_if_the_run_has_its_options(
    words: str, asked: dict[str, Any], line: str
) -> None:
    done = _as_run_fix(Fix("build: `ipexctl {*words}`", words=shlex.split(words)), spec_of(**asked))
    assert shlex.split(done) == shlex.split(f"build: ipexctl {line}".replace("x<2", "'x<2'"))


def test_a_list_that_the_run_would_not_take_by_itself_stays_in_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "requirements.txt").write_text("six\n")
    spec = spec_in(tmp_path, "import six\n", monkeypatch)
    line = "ipexctl run --install train.py --lr 1"
    assert _as_run_fix(Fix("`ipexctl install -r requirements.txt`"), spec) == line
    other = _as_run_fix(Fix("`ipexctl install -r pyproject.toml`"), spec)
    assert other == line.replace("--install", "--install -r pyproject.toml")


def test_python_of_a_shell_script_is_checked_and_its_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, code in (("a.py", "import peft\n"), ("b.py", "import trl\n"), ("c.py", "import yaml\n")):
        (tmp_path / name).write_text(code)
    (tmp_path / "x.sh").write_text(
        "rm -rf old\nfor i in 1 2; do\n  python -u a.py --n $i\ndone\nA=1 python3 -m b\npython c.txt\n"
    )
    location = locate_project(spec_of("command", ("bash", "-x", "x.sh", "1")), tmp_path)
    assert (location.shell_script, location.script and location.script.name) == ("x.sh", "a.py")
    assert location.script is not None
    assert [(entry.module, entry.file) for entry in location.script.imports] == [("peft", ""), ("trl", "b.py")]
    for argv in (("bash", "-c", "python a.py"), ("sh", "none.sh"), ("./none.sh",), ("bash",)):
        assert locate_project(spec_of("command", argv), tmp_path).shell_script == ""


MASON = "mason.py --cluster c -- accelerate launch train.py"
COPY_OF_LAUNCHER = "-m wave.distributed.launch --nproc_per_node 2 train.py"


@pytest.mark.parametrize(
    ("line", "asked", "ranks", "said"),
    [
        ("bash x.sh", {}, 2, "refused"),
        ("bash -c ls", {}, 2, "refused"),
        ("bash x.sh", {}, 1, ""),
        ("bash x.sh", {"ppn": 1}, 2, ""),
        ("-- bash x.sh", {}, 2, "note"),
        ("-- bash x.sh {rank}", {}, 2, ""),
        (MASON, {}, 2, "refused"),
        (f"-- python {MASON}", {}, 2, "refused"),
        (MASON, {"n": 1}, 1, ""),
        (COPY_OF_LAUNCHER, {}, 2, "refused"),
        (f"-- python {COPY_OF_LAUNCHER}", {"ppn": 2}, 2, ""),
        ("train.py --strategy deepspeed --model flux -- x", {}, 2, ""),
    ],
)
def test_what_is_no_single_rank_s_program_runs_once_unless_the_call_says_more(
    line: str, asked: dict[str, Any], ranks: int, said: str
) -> None:
    dashes, words = line.startswith("-- "), shlex.split(line.removeprefix("-- "))
    program = read_program(["python", *words] if words[0] == "-m" else words)
    shell = "x.sh" if "x.sh" in words else ""
    project = ProjectLocation(Path.cwd(), ".", program.argv, shell_script=shell)
    spec = spec_of(project=project, is_behind_dashes=dashes, **asked)
    spec = replace(spec, asked=program.put_into(spec.asked))
    options = CallOptions(call=TypedCall((), tuple(shlex.split(line)), str(Path.cwd())), program=spec.asked.program)
    plan = small_plan([f"node{number}" for number in range(ranks)])
    context: Any = SimpleNamespace(spec=spec, asked=spec.asked)
    if said != "refused":
        assert [note.startswith("each of 2 ranks runs all of x.sh") for note in copies_notes(context, plan)] == [
            True
        ] * (said == "note")
        return
    with pytest.raises(StartError) as caught:
        copies_notes(context, plan)
    fix = caught.value.failure.with_call_options(options).fix
    assert fix.startswith(f"if one is to run it: ipexctl run -n 1 {line}; if each is: ipexctl run --ppn 1 {line};")


def test_modules_that_lie_elsewhere_have_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "python/zoo").mkdir(parents=True)
    (tmp_path / "python/zoo/__init__.py").touch()
    spec = spec_in(tmp_path, "import zoo\n", monkeypatch)
    script = spec.project.script
    assert script is not None
    with pytest.raises(StartError) as caught:
        check_imports(replace(script, own=True, install_by_run=install_by_run(spec)), {"n1": ["zoo"]})
    line = "ipexctl run -x PYTHONPATH=python train.py --lr 1"
    assert caught.value.failure.fix == f"python has zoo, from where ranks do not import: {line}"


@pytest.mark.parametrize(
    ("readme", "line", "files"),
    [
        ("README.md", "conda env create -f conda_environment.yaml", ("conda_environment.yaml",)),
        ("README.md", "mamba env create -n x --file=docker/environment.yaml", ("docker/environment.yaml",)),
        ("README.md", "pip install -r lists/base.txt", ("lists/base.txt",)),
        ("../README.md", "conda env update -f ../docker/outside.yaml", ("environment.yml",)),  # not in the repository
        ("../README.md", "conda env create -f docker/above.yaml", ("../docker/above.yaml",)),
        ("README.md", "conda env create -f requirements-dev.txt", ("environment.yml",)),
        ("README.md", "pip install -r ../../../etc/passwd", ("environment.yml",)),
    ],
)
def test_the_list_that_a_line_of_a_readme_names_comes_before_guesses(
    readme: str, line: str, files: tuple[str, ...], tmp_path: Path
) -> None:
    root = tmp_path / "repository" / "project"
    (root.parent / ".git").mkdir(parents=True)
    conda = "dependencies:\n  - pip:\n    - peft==0.14\n"
    for name in ("conda_environment.yaml", "docker/environment.yaml", "lists/base.txt", "requirements-dev.txt",
                 "environment.yml", "../docker/above.yaml", "../../docker/outside.yaml"):  # fmt: skip
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("peft==0.14  # why\n" if name.endswith(".txt") else conda)
    (root / readme).write_text(f"# Install\n```\n{line}\n```\n")
    (root / "train.py").write_text("import peft\n")
    found = find_requirement_files(read_layout(root, root), root)
    assert (found.files, found.pins) == (files, ("peft==0.14",) if files[0].endswith(".txt") else ())
    assert "peft" in found.names


@pytest.mark.parametrize(
    ("status", "verify", "is_of_verify"),
    [("failed", {"ok": False}, True), ("failed", {}, False), ("changed", {"ok": True}, False)],
)
def test_a_package_that_fails_its_import_may_be_left_out(status: Any, verify: Any, *, is_of_verify: bool) -> None:
    assert _has_failed_import(InstallResult(Host("n1", "n1"), status, verify=verify)) == is_of_verify


@pytest.mark.parametrize(("unread", "checks"), [((), True), ((BackendList(Path("setup.py")),), False)])
def test_a_dry_run_of_an_install_checks_no_import_while_a_list_is_not_known(
    unread: tuple[BackendList, ...], checks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[bool]()
    wanted = replace(WANTED, unread=unread)
    monkeypatch.setattr("ipexctl.run.start.first_install.install_first", lambda *_, **__: wanted)

    def plan_run(_: object, *, checks_script: bool) -> InstallReport:
        asked.append(checks_script)
        return report_with()

    monkeypatch.setattr("ipexctl.run.start.pipeline.plan_run", plan_run)
    start: Any = SimpleNamespace(spec=spec_of(install=True))
    _plan(start, start)
    assert asked == [checks]


@pytest.mark.parametrize("found", [WANTED, StartFailure("no list of the project brings peft", "")])
def test_a_dry_run_without_an_environment_is_refused_as_the_run_is(
    found: InstallRequest | StartFailure, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = StartFailure("no environment", "", lacks_environment=True)
    monkeypatch.setattr("ipexctl.run.start.first_install.install_first", lambda *_, **__: found)
    monkeypatch.setattr("ipexctl.run.start.pipeline.plan_run", lambda _, **__: lacking)
    start: Any = SimpleNamespace(spec=spec_of(), offers_install=True)
    assert _plan(start, start) == (lacking if found is WANTED else found)


@pytest.mark.parametrize(
    ("readme", "stated"),
    [
        (
            "```\n$ pip install -U torch==1.7 'peft>=0.1' rich[x] # all\n```\nand `pip install tqdm`.",
            "peft>=0.1 rich[x] tqdm",
        ),
        ("You can pip install numpy and rich.\n", ""),
        ("pip install peft --index-url https://x/simple\npip install -e .\npip install git+https://h/x\n", ""),
        ("pip3 install flash-attn mine peft\n", "peft"),
        ("pip install -r other.txt peft\n", ""),
        ("pip install peft<1; rm -rf /\nuv pip install $(id)\n", "peft<1"),
    ],
)
def test_packages_that_a_readme_installs_by_name_are_the_projects_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, readme: str, stated: str
) -> None:
    (tmp_path / "README.md").write_text(readme)
    (tmp_path / "setup.py").write_text("setup(name='mine')")
    (tmp_path / "requirements-frozen.txt").write_text("peft==0.1\n")
    (tmp_path / "docs-requirements.txt").write_text("peft\nsphinx\n")
    spec = spec_in(tmp_path, "import peft\n", monkeypatch)
    assert " ".join(spec.project.requirements.stated) == stated
    assert spec.project.requirements.others == ("requirements-frozen.txt",)
    (tmp_path / "requirements.txt").write_text("rich\n")
    assert spec_in(tmp_path, "import peft\n", monkeypatch).project.requirements.stated == ()
