"""The files by which others work on this project call the same programs as its own tests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from linux_tests import left_out

ROOT = Path(__file__).resolve().parents[2]


def read_yaml(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text())


def test_hooks_before_a_commit_are_the_checks_of_the_tests_with_the_locked_versions() -> None:
    """They call the programs of .venv, which tests/run.sh makes from the lock."""
    (repository,) = read_yaml(".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    called = [hook["entry"].split()[0] for hook in repository["hooks"]]
    assert set(called) == {".venv/bin/ruff", ".venv/bin/mypy"}
    checks, lock = ((ROOT / "tests" / file).read_text() for file in ("checks/test_checks.py", "requirements.lock"))
    for program in {Path(entry).name for entry in called}:
        assert re.search(rf'"{program}\b', checks)
        assert re.search(rf"^{program}==", lock, re.MULTILINE)


def test_workflow_calls_the_script_that_tests_everything() -> None:
    jobs = read_yaml(".github/workflows/tests.yml")["jobs"]
    steps = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert len(steps) == 1
    assert steps[0].split()[-1] == ".ci/run"
    assert (ROOT / ".ci/run").stat().st_mode & 0o111


def test_workflow_on_a_mac_runs_the_unit_tests_but_those_that_the_reasons_name() -> None:
    (job,) = read_yaml(".github/workflows/macos.yml")["jobs"].values()
    assert job["runs-on"] == "macos-latest"
    assert [step["run"] for step in job["steps"] if "run" in step] == ["sh tests/run.sh tests/unit"]
    unit = ROOT / "tests/unit"
    assert unit / "node/test_macos.py" not in left_out()
    assert len(left_out()) < 0.5 * len(list(unit.rglob("test_*.py")))


def test_release_is_off_until_a_person_turns_it_on_and_one_job_alone_can_publish() -> None:
    jobs = read_yaml(".github/workflows/release.yml")["jobs"]
    assert jobs["build"]["if"] == "vars.PUBLISH == 'pypi'"
    assert jobs["publish"]["needs"] == "build"
    assert {name for name, job in jobs.items() if "permissions" in job} == {"publish"}
    assert not any("run" in step for step in jobs["publish"]["steps"]), "it publishes, and runs nothing else"
    (lines,) = (step["run"] for step in jobs["build"]["steps"] if "run" in step)
    for call in ("--require-hashes -r .github/release.lock", "-m build --no-isolation", "twine check --strict dist/*"):
        assert call in lines


@pytest.mark.parametrize("name", ["ISSUE_TEMPLATE/bug.md", "pull_request_template.md"])
def test_templates_are_short(name: str) -> None:
    assert 5 <= len((ROOT / ".github" / name).read_text().splitlines()) <= 10


def test_changelog_has_one_line_for_each_entry_in_the_sections_of_keepachangelog() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()
    sections = {line.removeprefix("### ") for line in lines if line.startswith("### ")}
    assert sections <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    first = next(at for at, line in enumerate(lines) if line.startswith("### "))
    for line in lines[first:]:
        assert not line.startswith(("<<<<<<<", "=======", ">>>>>>>")), "left by a merge"
        assert not line.startswith("  "), f"an entry goes on in a second line: {line}"
        assert len(line) <= 200, line
