"""Lines of a run whose install cannot be made, or brings too little."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ipexctl.launch.spec import RunSpec
from ipexctl.node.common.fix import Fix
from ipexctl.projects.layout import read_layout
from ipexctl.projects.requirement_files import find_requirement_files
from ipexctl.projects.script_file import ProjectLocation
from ipexctl.run.start.first_install import _left_out_packages, _line_of_run, _newest_packages
from ipexctl.run.start.script_imports import project_script
from ipexctl.stack.install_context import InstallReport, InstallRequest
from ipexctl.stack.lock.wheel_lock import Lock, Wheel
from ipexctl.stack.resolve.model import EnvRequest, Sources, StackRequest
from plan_helpers import spec_of

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
    failure = _left_out_packages(report_with("torch", "transformers"), spec, WANTED)
    assert failure is not None
    assert failure.reason == "no list of the project brings the module peft that train.py imports (line 1)"
    assert failure.fix == "ipexctl run --install -r requirements.txt --with peft train.py --lr 1"
    for packages, builds in ((("transformers", "peft"), ()), (("transformers",), ("peft",))):
        assert _left_out_packages(report_with(*packages), spec, replace(WANTED, builds=builds)) is None


@pytest.mark.parametrize(
    ("code", "asked", "line"),
    [
        ("import torch, yaml, peft", {}, "run --install --with pyyaml --with peft train.py --lr 1"),
        ("import beside, peft", {}, "run --install --with peft train.py --lr 1"),
        ("import of_nobody, peft", {}, ""),
        ("import peft", {"extra": ("dev",)}, ""),
        ("import torch", {}, ""),
    ],
)
def test_the_newest_packages_stand_for_versions_that_have_no_solution(
    code: str, asked: dict[str, Any], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside.py").touch()
    fix = _newest_packages(spec_in(tmp_path, f"{code}\n", monkeypatch, **asked))
    assert fix == (f"or, in place of the project's versions, the newest: ipexctl {line}" if line else "")


@pytest.mark.parametrize(
    ("words", "asked", "line"),
    [
        ("install -r r.txt --build a --build b", {}, "run --install --build a --build b train.py"),
        ("install -r r.txt --build a --build b", {"builds": ("a",)}, "run --install --build b train.py"),
        ("install -r r.txt --with x<2", {}, "install -r r.txt --with x<2"),
        ("install --with x --build a", {}, "install --with x --build a"),
        ("install --with x --build a", {"packages": ("x",)}, "run --install --build a train.py"),
    ],
)
def test_a_build_is_an_option_of_the_run(words: str, asked: dict[str, Any], line: str) -> None:
    done = _line_of_run(Fix("build: `ipexctl {*words}`", words=shlex.split(words)), spec_of(**asked))
    assert shlex.split(done) == shlex.split(f"build: ipexctl {line}".replace("x<2", "'x<2'"))
