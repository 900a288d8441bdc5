"""examples/start.sh: doctor, a training run in two ranks, and what to do next, also if the run is not possible."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STUB = """#!/bin/sh
echo "$* links=$PIP_FIND_LINKS" >>calls
[ "$1" = run ] && exit $RUN_ENDS_WITH
[ "$1" = doctor ] && exit 1
exit 0
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone whose .venv has a stand-in for ipexctl."""
    version = "ipexctl/__init__.py"
    for name in (".ci/environment", "examples/start.sh", "tests/requirements.txt", "pyproject.toml", version):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    shutil.copy(ROOT / "tests/requirements.txt", tmp_path / ".venv" / "installed-from")
    shutil.copy(ROOT / "pyproject.toml", tmp_path / ".venv")
    shutil.copy(ROOT / version, tmp_path / ".venv/version.py")
    (programs / "ipexctl").write_text(STUB)
    (programs / "ipexctl").chmod(0o755)
    (programs / "python").symlink_to("/bin/true")
    return tmp_path


def start(clone: Path, *args: str, run_ends_with: int = 0) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    env = {**os.environ, "RUN_ENDS_WITH": str(run_ends_with), "HOME": str(clone), "PIP_FIND_LINKS": ""}
    env.pop("IPEXCTL_HOME", None)
    done = subprocess.run(
        ["sh", "examples/start.sh", *args],
        capture_output=True,
        cwd=clone,
        text=True,
        env=env,
        check=False,
        timeout=60,
    )
    return done, (clone / "calls").read_text().splitlines()


def test_run_with_two_ranks_follows_doctor_after_any_result(clone: Path) -> None:
    done, (doctor, run) = start(clone)
    assert done.returncode == 0
    assert doctor.startswith("doctor --hosts localhost ")
    assert run.startswith("run --hosts localhost -n 2 --install examples/train_digits.py")
    assert all(step in done.stderr for step in ("sh examples/lab.sh", "hostfile", "docs/index.md"))


def test_next_steps_are_shown_after_a_failed_run(clone: Path) -> None:
    done, _ = start(clone, run_ends_with=3)
    assert done.returncode == 3
    assert "left out" in done.stderr
    assert "sh examples/lab.sh" in done.stderr


def test_torch_wheel_in_wheelhouse_is_used(clone: Path) -> None:
    (clone / "wheelhouse").mkdir()
    (clone / "wheelhouse" / "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl").touch()
    _, (_, run) = start(clone)
    assert run.endswith(f"links={clone}/wheelhouse")


@pytest.mark.core
def test_existing_environment_keeps_its_stack(clone: Path) -> None:
    (clone / ".ipexctl" / "envs" / "default").mkdir(parents=True)
    _, (_, run) = start(clone)
    assert "--install examples/train_digits.py" in run


def test_arguments_are_passed_to_ipexctl(clone: Path) -> None:
    _, calls = start(clone, "exec", "--", "uname")
    assert calls == ["exec -- uname links="]


def test_foreign_virtual_environment_is_not_deleted(clone: Path) -> None:
    (clone / ".venv/installed-from").unlink()
    (clone / "calls").touch()
    done, calls = start(clone)
    assert (done.returncode, calls) == (1, [])
    assert "mv .venv" in done.stderr
    assert (clone / ".venv/bin/ipexctl").read_text() == STUB
