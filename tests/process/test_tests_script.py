"""tests/run.sh: system packages are installed only for tests that need them, and only if the caller agrees."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = ("sh", "dirname", "cmp", "cp", "cat", "mkdir", "uname")
"""What the script itself calls; git, sshd's friends and shells are absent from PATH."""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone whose .venv, root account and apt-get are stand-ins that write their arguments to `calls`."""
    for name in (".ci/environment", "tests/run.sh", "tests/requirements.txt", "pyproject.toml", "ipexctl/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    venv, bin_directory = tmp_path / ".venv", tmp_path / "bin"
    (venv / "bin").mkdir(parents=True)
    bin_directory.mkdir()
    for source, target in (("tests/requirements.txt", "installed-from"), ("pyproject.toml", "pyproject.toml")):
        shutil.copy(ROOT / source, venv / target)
    shutil.copy(ROOT / "ipexctl/__init__.py", venv / "version.py")
    for path, does in (
        (venv / "bin/python", f'echo "python $*" >>{tmp_path}/calls'),
        (bin_directory / "apt-get", f'echo "apt-get $*" >>{tmp_path}/calls'),
        (bin_directory / "id", "echo 0"),
    ):
        path.write_text(f"#!/bin/sh\n{does}\n")
        path.chmod(0o755)
    for name in PROGRAMS:
        (bin_directory / name).symlink_to(str(shutil.which(name)))
    for directory in ("unit", "lab"):
        (tmp_path / "tests" / directory).mkdir()
    return tmp_path


def call(clone: Path, *args: str, **variables: str) -> tuple[list[str], str]:
    """Return the calls of apt-get and pytest, and what the script says."""
    env = {"PATH": f"{clone}/bin", "HOME": str(clone), **variables}
    done = subprocess.run(
        [str(clone / "bin/sh"), "tests/run.sh", *args], cwd=clone, env=env, capture_output=True, text=True, check=True
    )
    return (clone / "calls").read_text().splitlines(), done.stderr


@pytest.mark.core
@pytest.mark.parametrize(
    ("args", "installs"),
    [
        (["--install-packages", "tests/lab"], True),
        (["--install-packages", "-k", "hostfile"], True),
        (["--install-packages"], True),
        (["--install-packages", "tests/unit"], False),
        (["--install-packages", "tests/unit/test_text.py::test_a", "-k", "x"], False),
        (["--install-packages", "tests/lab/test_nothing.py"], False),
        (["tests/lab"], False),
        ([], False),
    ],
)
def test_packages_are_installed_for_tests_that_need_them_if_told(clone: Path, args: list[str], installs: bool) -> None:
    calls, said = call(clone, *args)
    assert any("install" in line for line in calls if line.startswith("apt-get")) == installs
    assert calls[-1].startswith("python tests/rerun_failed.py")
    assert "--install-packages" not in calls[-1]
    needs_none = any(word.startswith(("tests/unit", "tests/lab/test_nothing")) for word in args)
    assert ("left out" in said or "git" in said) == (not needs_none)


def test_packages_that_are_not_installed_are_named_with_what_installs_them(clone: Path) -> None:
    _, said = call(clone, "tests/lab")
    assert "not installed: git (IPEXCTL_TESTS_PACKAGES=yes installs system packages)" in said
