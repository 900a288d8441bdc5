"""Fixtures for runs on this machine, for the modules that name this one in pytest_plugins."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from run_helpers import Run, runs_in


@pytest.fixture
def make(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Run]]:
    """Makes runs of two ranks, or with the options that the test's module has in RUNS."""
    with runs_in(tmp_path, **getattr(request.module, "RUNS", {})) as make_run:
        yield make_run


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a tmpfs with options; the test is skipped where that is not allowed."""
    place = tmp_path / "mounted"

    def mount(options: str) -> Path:
        place.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(place)], check=False).returncode:
            pytest.skip("no right to mount")
        return place

    yield mount
    subprocess.run(["umount", "-l", str(place)], check=False, stderr=subprocess.DEVNULL)
