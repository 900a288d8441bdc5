"""The project and the home of a test, for the modules that name this one in pytest_plugins."""

from __future__ import annotations

from pathlib import Path

import pytest
from sync_helpers import Place


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A place for each test, whose cache is its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "project").mkdir()
    return Place(tmp_path / "project", tmp_path / "home")
