"""Each directory of tests/data/projects is a project, with a line that is typed in it and what comes of the line.

`IPEXCTL_GOLDEN=write` writes what comes into each case.json; a new layout is a new directory, and no code.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ipexctl.errors import UserError
from ipexctl.launch.launchers.program import read_program
from ipexctl.launch.spec import RunSpec
from ipexctl.node.common.fix import ipexctl_command
from ipexctl.node.common.plan import PlannedProject
from ipexctl.option_declaration import NO_OPTIONS
from ipexctl.projects.layout import read_layout
from ipexctl.projects.requirement_files import find_lacking, find_requirement_files
from ipexctl.projects.script_file import ProjectLocation
from ipexctl.run.start.first_install import request_of_run, with_left_out
from ipexctl.run.start.script_imports import check_own_modules
from ipexctl.run.start.start_project import describe_project, locate_project
from ipexctl.run.start.start_request import StartError
from plan_helpers import spec_of

PROJECTS = Path(__file__).parents[2] / "data" / "projects"
NAMES = sorted(path.name for path in PROJECTS.iterdir())
_TYPED = ("line", "cwd", "repository")


def spec_of_line(line: str) -> RunSpec:
    words = shlex.split(line)
    if words[0] == "-m":
        return spec_of("module", tuple(words[1:]), takes_own_requirements=True, install=True)
    if words[0] == "--":
        spec = spec_of("command", takes_own_requirements=True, install=True)
        return replace(spec, asked=read_program(words[1:]).put_into(spec.asked))
    return spec_of("script", tuple(words), takes_own_requirements=True, install=True)


def found_in(location: ProjectLocation, home: Path) -> dict[str, Any]:
    script, layout = location.script, location.layout
    imports = script.imports if script is not None else ()
    return {
        "root": os.path.relpath(location.root, home),
        "subdirectory": location.subdirectory,
        "command": list(location.command),
        "own": [f"{package.name} {package.version}" for package in layout.own if package.name],
        "paths": list(layout.paths),
        "imports": [f"{each.module} ({each.file}:{each.line})" if each.file else each.module for each in imports],
        "requirements": list(location.requirements.files),
    }


def what_comes(case: dict[str, Any], tree: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    cwd = tree / case.get("cwd", ".")
    monkeypatch.chdir(cwd)
    spec = spec_of_line(case["line"])
    notes: list[str] = []
    found: dict[str, Any] = {}
    try:
        location = locate_project(spec, cwd, ipexctl_command("run"))
        found = found_in(location, tree)
        spec = replace(spec, project=location, options=NO_OPTIONS)
        found["shown"] = describe_project(spec, "FILES").replace(str(tree), "TREE")
        if location.script is not None:
            check_own_modules(location.script, frozenset())
        request = request_of_run(spec, notes.append)
        planned = with_left_out(PlannedProject(requirements=location.requirements.files), spec.asked, request)
        found |= {"installed": list(request.env.packages), "left_out": list(planned.left_out)}
    except (UserError, StartError) as error:
        refused = error.failure if isinstance(error, StartError) else error
        reason = refused.reason if not isinstance(refused, UserError) else refused.message
        found["refused"] = [text.replace(str(tree), "TREE") for text in (reason, refused.fix)]
    found["notes"] = [note.replace(str(tree), "TREE") for note in (*location_notes(found, spec), *notes)]
    return found


def location_notes(found: dict[str, Any], spec: RunSpec) -> tuple[str, ...]:
    return spec.project.layout.notes if found else ()


@pytest.mark.parametrize("name", NAMES)
def test_a_project_starts_by_the_line_of_its_readme(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = json.loads((PROJECTS / name / "case.json").read_text())
    tree = tmp_path / "work" / name
    shutil.copytree(PROJECTS / name / "tree", tree)
    if "repository" in case:
        (tree / case["repository"] / ".git").mkdir()
    found = what_comes(case, tree, monkeypatch)
    typed = {key: case[key] for key in _TYPED if key in case}
    if os.environ.get("IPEXCTL_GOLDEN") == "write":
        (PROJECTS / name / "case.json").write_text(json.dumps({**typed, **found}, indent=1) + "\n")
        return
    assert found == {key: value for key, value in case.items() if key not in _TYPED}


@pytest.mark.parametrize("inside", [True, False])
def test_a_member_whose_modules_are_a_link_is_sent_with_the_place_to_which_it_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: bool
) -> None:
    repository = tmp_path / "repository"
    member = repository / "apps" / "trainer"
    member.mkdir(parents=True)
    (repository / ".git").mkdir()
    (member / "pyproject.toml").write_text('[project]\nname = "trainer"\n[project.scripts]\ngo = "core.run:main"\n')
    (member / "train.py").write_text("import core\n")
    modules = (repository if inside else tmp_path) / "src"
    (modules / "core").mkdir(parents=True)
    (modules / "core" / "__init__.py").touch()
    (modules / "core" / "run.py").touch()
    (repository / "data").mkdir()
    (member / "src").symlink_to("../../src" if inside else modules)
    (member / "data").symlink_to("../../data")  # no modules
    monkeypatch.chdir(member)
    location = locate_project(spec_of_line("train.py"), member)
    assert location.script is not None
    assert location.root == (repository if inside else member)
    assert [each.module for each in location.script.imports] == ([] if inside else ["core"])
    if inside:
        assert (location.subdirectory, location.layout.paths[0]) == ("apps/trainer", "apps/trainer/src")
        assert locate_project(spec_of_line("go"), member).entry == "core.run:main"


def test_the_layouts_are_many() -> None:
    assert len(NAMES) >= 25


def test_packages_of_the_lists_that_an_environment_lacks_are_named(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(
        "tqdm\nSentence_Transformers>=2\npywin32; os_name == 'nt'\nbzip2=1.0=h7b\n"
    )
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\ndependencies = ["einops", "bitsandbytes"]\n')
    layout = read_layout(tmp_path, tmp_path)
    files = find_requirement_files(layout, tmp_path)
    assert find_lacking(layout, files, {"tqdm"}) == ("einops", "sentence-transformers")
    assert find_lacking(layout, files, {"einops", "tqdm", "sentence-transformers"}) == ()
