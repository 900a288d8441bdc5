"""The fixture `place`, for test modules that list this module in pytest_plugins."""

from __future__ import annotations

from pathlib import Path

import pytest
from sync_helpers import Place

pytest_plugins = ["compiled_agent"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled_agent: None) -> Place:
    """A project and a home for each test, with its own cache directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "project").mkdir()
    return Place(tmp_path / "project", tmp_path / "home")
