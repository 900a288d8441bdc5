"""The linters, as tests: they run beside those that wait for hosts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHECKS = (
    "ruff check --no-cache .",
    "ruff format --no-cache --check .",
    "mypy",
    "lint-imports --no-cache",
    "zizmor --offline --no-progress .github",
)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("check", CHECKS)
def test_checks_find_nothing(check: str) -> None:
    program, *arguments = check.split()
    argv = [str(Path(sys.executable).with_name(program)), *arguments]
    done = subprocess.run(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout
