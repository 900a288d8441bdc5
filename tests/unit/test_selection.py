"""The choice of tests: what a change brings, what is left out, and shares that together are everything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from import_graph import ROOT, distances, is_test, project_imports
from selection import (
    PAUSE_MINUTES,
    REST,
    SHARES,
    base_of_submission,
    before_pause,
    changed_files,
    choose,
    git_lines,
    pieces_of,
    seconds_of,
    shares,
)

IMPORTS = {
    "ipexctl/a.py": frozenset[str](),
    "ipexctl/b.py": frozenset({"ipexctl/a.py"}),
    "ipexctl/c.py": frozenset({"ipexctl/b.py"}),
    "ipexctl/d.py": frozenset({"ipexctl/c.py"}),
    "tests/helpers.py": frozenset({"ipexctl/a.py"}),
    "tests/unit/test_a.py": frozenset({"tests/helpers.py"}),
    "tests/unit/test_b.py": frozenset({"ipexctl/b.py"}),
    "tests/unit/test_d.py": frozenset({"ipexctl/d.py"}),
    "tests/unit/docs/test_links.py": frozenset[str](),
    "tests/unit/golden/test_golden_a.py": frozenset({"ipexctl/d.py"}),
}


def test_imports_of_the_product_are_counted_and_helpers_are_not() -> None:
    found = distances(["ipexctl/a.py"], IMPORTS)
    assert [found[f"tests/unit/test_{name}.py"] for name in "abd"] == [0, 1, 3]
    assert "tests/unit/docs/test_links.py" not in found


@pytest.mark.parametrize(
    ("changed", "budget", "chosen", "left_out"),
    [
        (["ipexctl/a.py"], 60.0, ["a", "b"], []),
        (["ipexctl/a.py"], 5.0, ["a"], ["b"]),
        (["tests/unit/test_d.py"], 0.0, ["d"], []),
        (["tests/helpers.py"], 60.0, ["a"], []),
        (["docs/run.md"], 60.0, ["docs/test_links"], []),
        (["tests/unit/golden/a.txt"], 60.0, ["golden/test_golden_a"], []),
        (["tests/unit/d.txt", "tests/unit/none.txt"], 60.0, ["d"], []),
        (["LICENSE"], 60.0, [], []),
    ],
)
def test_nearest_tests_come_first_until_the_budget_is_used(
    changed: list[str], budget: float, chosen: list[str], left_out: list[str]
) -> None:
    seconds = dict.fromkeys(IMPORTS, 4.0)
    choice = choose(changed, IMPORTS, seconds, budget=budget)
    names = [f"tests/unit/{name if '/' in name else f'test_{name}'}.py" for name in chosen]
    assert list(choice.files) == names
    assert choice.left_out == tuple((f"tests/unit/test_{name}.py", 4.0) for name in left_out)


def test_shares_take_about_as_long_and_are_everything() -> None:
    seconds = {f"tests/lab/test_{number}.py": float(number % 7) for number in range(40)}
    parts = shares(seconds, seconds)
    assert sorted(file for part in parts for file in part) == sorted(seconds)
    totals = [sum(seconds[file] for file in part) for part in parts]
    assert len(parts) == SHARES
    assert max(totals) - min(totals) <= 6


def test_long_files_have_their_turn_in_pieces_that_are_everything() -> None:
    pieces = pieces_of(["tests/lab/a.py", "tests/lab/b.py"], {"tests/lab/a.py": 250.0, "tests/lab/b.py": 9.0})
    names = [f"tests/lab/a.py:{number}/3" for number in range(3)]
    assert pieces == {**dict.fromkeys(names, 250 / 3), "tests/lab/b.py": 9.0}


@pytest.mark.needs("git")
def test_a_shallow_clone_is_an_error_and_no_turn(tmp_path: Path) -> None:
    clone = ["git", "clone", "-q", "--depth", "1", f"file://{ROOT}", str(tmp_path / "clone")]
    subprocess.run(clone, check=True, timeout=60)
    for mode in ("ci", "units"):
        argv = [sys.executable, "tests/selection.py", mode]
        done = subprocess.run(argv, cwd=tmp_path / "clone", capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, done.stdout) == (1, "")
        assert "shallow" in done.stderr
        assert "git fetch --unshallow" in done.stderr


@pytest.mark.needs("git")
def test_graph_of_the_checkout_has_ways_through_helpers_plugins_and_named_modules() -> None:
    imports = project_imports()
    near = {file for file, far in distances(["ipexctl/node/run/supervisor/__main__.py"], imports).items() if not far}
    assert "tests/process/test_run_lifecycle.py" in near, "it names the module, and starts it from a zip"
    fixtures = distances(["tests/unit/sync/sync_fixtures.py"], imports)
    assert fixtures["tests/process/test_sync_leases.py"] == 0


def test_seconds_are_read_from_the_reports_of_pytest(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    case = '<testcase classname="tests.unit.test_selection" name="{}" time="1.25"/>'
    gone = '<testcase classname="tests.unit.test_gone" name="c" time="9"/>'
    report.write_text(f"<testsuites><testsuite>{case.format('a')}{case.format('b')}{gone}</testsuite></testsuites>")
    assert seconds_of([report]) == {"tests/unit/test_selection.py": 2.5}


def test_whole_files_run_beside_the_core_of_all_others(tmp_path: Path) -> None:
    """pytest itself, with the plugin: no test runs."""
    whole = tmp_path / "whole"
    argv = [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests/lab/test_exec.py"]

    def collected(option: str, *files: str) -> set[str]:
        whole.write_text("\n".join(files))
        done = subprocess.run([*argv, option, whole], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
        return {line for line in done.stdout.splitlines() if "::" in line}

    core, every = collected("--whole"), collected("--whole", "tests/lab/test_exec.py")
    assert set() < core < every
    assert collected("--after-plain", "tests/lab/test_exec.py") == every - core
    assert collected("--after-plain") == set()
    pieces = [collected("--after-plain", f"tests/lab/test_exec.py:{number}/2") for number in range(2)]
    assert (set.union(*pieces), set.intersection(*pieces)) == (every - core, set())


@pytest.mark.needs("git")
def test_every_file_that_is_not_core_is_in_a_share() -> None:
    elsewhere = ("tests/checks/", "tests/unit/", "tests/machines/")
    rest = [file for file in project_imports() if is_test(file) and not file.startswith(elsewhere)]
    assert rest
    assert all(file.startswith(REST) for file in rest)


def test_a_submission_begins_after_the_last_pause() -> None:
    """One may take longer than the pause itself."""
    minute = 60
    work = [(f"c{number}", 1_000_000 - number * (PAUSE_MINUTES - 1) * minute) for number in range(4)]
    last = work[-1][1] - (PAUSE_MINUTES + 1) * minute
    assert before_pause([*work, ("landed", last), ("older", last - 6_000 * minute)]) == "landed"
    assert before_pause(work) == "c3"


@pytest.mark.needs("git")
def test_submission_begins_at_the_named_base_whenever_it_was_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    (older,) = git_lines("rev-parse", "HEAD~3")
    monkeypatch.setenv("IPEXCTL_TESTS_BASE", "HEAD~3")
    assert base_of_submission() == older
    monkeypatch.setenv("IPEXCTL_TESTS_BASE", "0" * 40)
    assert {"README.md", "ipexctl/__init__.py"} <= set(changed_files(base_of_submission()))


@pytest.mark.needs("git")
def test_a_file_of_which_only_imports_differ_has_not_changed(tmp_path: Path) -> None:
    def git(*args: str) -> None:
        subprocess.run(
            ["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a", *args], check=True, timeout=60
        )

    (tmp_path / "tests/unit").mkdir(parents=True)
    for name in ("imports", "code", "as it was", "tests/unit/test_less"):
        (tmp_path / f"{name}.py").write_text("from a.b import c\nx = 1\n")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "first")
    (tmp_path / "imports.py").write_text("from d import c\nx = 1\n")
    (tmp_path / "code.py").write_text("from d import c\nx = 2\n")
    (tmp_path / "new.py").touch()
    (tmp_path / "tests/unit/test_less.py").write_text("x = 1\n")
    assert changed_files("HEAD", tmp_path) == ["code.py", "new.py"]
