"""The files by which others work on this project call the same programs as its own tests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hatchling.metadata.core import ProjectMetadata

import ipexctl
from hatch_build import Links, ManPages, with_absolute_links
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
    checks, lock = ((ROOT / "tests" / file).read_text() for file in ("checks/test_checks.py", "requirements.txt"))
    for program in {Path(entry).name for entry in called}:
        assert re.search(rf'"{program}\b', checks)
        assert re.search(rf"^{program}==", lock, re.MULTILINE)


def test_workflow_calls_the_script_that_tests_everything() -> None:
    jobs = read_yaml(".github/workflows/tests.yml")["jobs"]
    (step,) = [step for job in jobs.values() for step in job["steps"] if "run" in step]
    assert step["run"].split()[-1] == ".ci/run"
    base = step["env"]["IPEXCTL_TESTS_BASE"]
    assert "pull_request.base.sha" in base
    assert "event.before" in base
    assert 'IPEXCTL_TESTS_BASE="${IPEXCTL_TESTS_BASE:-}"' in (ROOT / ".ci/bare").read_text(), "through env -i"
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
    assert jobs["build"]["needs"] == "tests"
    assert jobs["tests"]["steps"] == read_yaml(".github/workflows/all.yml")["jobs"]["all"]["steps"]
    assert {name for name, job in jobs.items() if "permissions" in job} == {"publish"}
    assert not any("run" in step for step in jobs["publish"]["steps"]), "it publishes, and runs nothing else"
    lines = "".join(step["run"] for step in jobs["build"]["steps"] if "run" in step)
    assert lines.index("sha256sum") < lines.index("try_release.sh dist"), "tried before it is published"
    calls = ("--require-hashes -r .github/release.txt", "export IPEXCTL_RELEASE=1", "-m build --no-isolation")
    assert lines.index("-m tools.man_pages") < lines.index("-m build"), "written before a build takes them"
    for call in (*calls, "twine check --strict dist/*"):
        assert call in lines


def test_all_tests_run_each_night_and_a_newer_push_ends_only_checks_of_the_same_pull_request() -> None:
    nightly = read_yaml(".github/workflows/all.yml")
    assert "schedule" in nightly[True], "`on` is true in YAML 1.1"
    assert nightly["jobs"]["all"]["steps"][-1]["run"].endswith("sh tests/run.sh --install-packages --all")
    for path in (ROOT / ".github/workflows").iterdir():
        concurrency = read_yaml(str(path))["concurrency"]
        if concurrency["cancel-in-progress"]:
            assert "pull_request.number || github.sha" in concurrency["group"], path


def test_template_of_a_pull_request_is_short() -> None:
    assert 5 <= len((ROOT / ".github/pull_request_template.md").read_text().splitlines()) <= 10


@pytest.mark.parametrize("name", ["bug", "feature", "question"])
def test_issue_form_asks_at_most_four_things_and_requires_the_first(name: str) -> None:
    form = read_yaml(f".github/ISSUE_TEMPLATE/{name}.yml")
    assert {"name", "description", "labels", "body"} == set(form)
    assert 1 <= len(form["body"]) <= 4
    assert len({field["id"] for field in form["body"]}) == len(form["body"])
    assert form["body"][0]["validations"]["required"] is True


def test_each_action_is_pinned_and_kept_current_and_each_lock_says_how_it_is_made() -> None:
    actions, packages = read_yaml(".github/dependabot.yml")["updates"]
    assert (actions["package-ecosystem"], packages["package-ecosystem"]) == ("github-actions", "pip")
    jobs = [job for path in (ROOT / ".github/workflows").iterdir() for job in read_yaml(str(path))["jobs"].values()]
    used = [step["uses"] for job in jobs for step in job.get("steps", ()) if "uses" in step]
    assert [each for each in used if not re.search(r"@[0-9a-f]{40}$", each)] == []
    locks = [path for directory in packages["directories"] for path in (ROOT / directory[1:]).glob("*.txt")]
    assert len(locks) == 4
    assert {path.parent.name for path in locks} == {"tests", "docs", ".github"}
    for lock in locks:
        assert "uv pip compile" in "".join(lock.read_text().splitlines(keepends=True)[:3]), lock


def test_citation_has_the_fields_that_its_format_requires() -> None:
    citation = read_yaml("CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert re.search(
        rf"^ +Copyright \d+ {citation['authors'][0]['name']}$", (ROOT / "LICENSE").read_text(), re.MULTILINE
    )


HOME = "https://example.org/team/ipexctl"


def test_relative_links_and_pictures_of_a_release_lead_to_its_tag() -> None:
    text = "[a](docs/a.md#b) ![p](docs/p.svg) [m](https://example.org) [own](#own) [two\nlines](LICENSE)"
    assert with_absolute_links(text, HOME, "1.0") == (
        f"[a]({HOME}/blob/v1.0/docs/a.md#b) ![p]({HOME}/raw/v1.0/docs/p.svg) [m](https://example.org) [own](#own) "
        f"[two\nlines]({HOME}/blob/v1.0/LICENSE)"
    )


def test_metadata_names_the_home_the_pages_and_the_contact(capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"home": f"{HOME}/", "site": "https://example.org/pages", "contact": "security@example.org"}
    metadata: dict[str, Any] = {"version": "1.0"}
    Links(str(ROOT), settings).update(metadata)
    assert metadata["urls"]["Documentation"] == "https://example.org/pages/"
    assert metadata["urls"]["Issues"] == f"{HOME}/issues"
    assert metadata["authors"] == [{"email": "security@example.org"}]
    assert f"({HOME}/blob/v1.0/docs/security.md)" in metadata["readme"]["text"]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("lacks", ["home", "contact"])
def test_release_is_refused_without_a_home_or_a_contact(lacks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPEXCTL_RELEASE", "1")
    settings = {"home": HOME, "site": "", "contact": "security@example.org", lacks: ""}
    with pytest.raises(SystemExit, match=f"no release: set {lacks} in pyproject.toml"):
        Links(str(ROOT), settings).update({"version": "1.0"})


@pytest.mark.parametrize("is_release", [False, True])
def test_build_takes_the_man_pages_where_they_are_and_a_release_is_refused_without(
    is_release: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project: ProjectMetadata[Any] = ProjectMetadata(str(tmp_path), None, {})
    hook = ManPages(str(tmp_path), {}, None, project, str(tmp_path), "wheel")
    data: dict[str, Any] = {"shared_data": {}}
    if is_release:
        monkeypatch.setenv("IPEXCTL_RELEASE", "1")
        with pytest.raises(SystemExit, match=r"python -m tools\.man_pages"):
            hook.initialize("standard", data)
    else:
        hook.initialize("standard", data)
    assert data == {"shared_data": {}}
    (tmp_path / "man").mkdir()
    (tmp_path / "man/ipexctl.1").touch()
    hook.initialize("standard", data)
    assert data == {"shared_data": {f"{tmp_path}/man/ipexctl.1": "share/man/man1/ipexctl.1"}}


def test_build_without_a_home_has_no_dead_link_and_names_each_lost_one(capsys: pytest.CaptureFixture[str]) -> None:
    metadata: dict[str, Any] = {"version": "1.0"}
    Links(str(ROOT), {"home": "", "site": "", "contact": ""}).update(metadata)
    lost, contact = capsys.readouterr().err.splitlines()
    links = re.findall(r"\]\((?!https?:)([^)]+)\)", (ROOT / "README.md").read_text())
    assert lost.partition("alone: ")[2].split(", ") == list(dict.fromkeys(links))
    assert "SECURITY.md" in contact
    assert (metadata["urls"], metadata["authors"]) == ({}, [])
    shown = metadata["readme"]["text"]
    assert re.findall(r"\]\((?!https?:|#)", shown) == []
    assert " [" not in shown
    assert "Your project is copied without credentials" in " ".join(shown.split())


def test_changelog_begins_with_the_version_of_the_package() -> None:
    heading = re.search(r"^## ([\d.]+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert heading is not None and heading[1] == ipexctl.__version__


def test_changelog_has_at_most_ten_lines_on_a_version() -> None:
    versions = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)[1:]
    assert all(1 <= len(re.findall(r"^- ", version, re.M)) <= 10 for version in versions)


def test_changelog_has_one_line_for_each_entry_in_the_sections_of_keepachangelog() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()
    sections = {line.removeprefix("### ") for line in lines if line.startswith("### ")}
    assert sections <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    first = next(at for at, line in enumerate(lines) if line.startswith("### "))
    for line in lines[first:]:
        assert not line.startswith(("<<<<<<<", "=======", ">>>>>>>")), "left by a merge"
        assert not line.startswith("  "), f"an entry goes on in a second line: {line}"
        assert len(line) <= 200, line
