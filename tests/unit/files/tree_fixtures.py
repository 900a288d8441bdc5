"""The fixture `top`, for test modules that list this module in pytest_plugins."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ipexctl.node.files import push


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An account with umask 022."""
    monkeypatch.setenv("HOME", str(tmp_path / "account"))
    monkeypatch.setattr(push, "_umask", 0o022)
    umask = os.umask(0o022)
    yield tmp_path
    os.umask(umask)
