"""The mark `needs`: a test that needs a program says so, is skipped without it, and is listed at the end of the run.

As a plugin of pytest (`addopts` in pyproject.toml). The tests are green on a machine without these programs.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from typing import Any

import pytest

_PREFIX = "needs "


def find(program: str) -> str | None:
    """Also where Debian keeps the programs of root."""
    return shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")


def require(*programs: str) -> dict[str, str]:
    """The paths of these programs, for a fixture; skips its tests where one is missing."""
    found = {program: find(program) for program in programs}
    if missing := [program for program, path in found.items() if path is None]:
        pytest.skip(_PREFIX + ", ".join(missing))
    return {program: path for program, path in found.items() if path}


def pytest_runtest_setup(item: pytest.Item) -> None:
    require(*(program for mark in item.iter_markers("needs") for program in mark.args))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = terminalreporter.stats.get("skipped", [])
    reasons = [report.longrepr[2].removeprefix("Skipped: ") for report in reports if isinstance(report.longrepr, tuple)]
    left_out = Counter(reason.removeprefix(_PREFIX) for reason in reasons if reason.startswith(_PREFIX))
    for programs, count in sorted(left_out.items()):
        terminalreporter.write_line(f"left out without {programs}: {count} test{'s' * (count > 1)}")
