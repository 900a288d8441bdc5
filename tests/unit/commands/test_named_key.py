"""A key that a call names must be there: else another key would log in without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipexctl.commands.target_hosts import check_identity
from ipexctl.errors import UserError


def test_a_key_that_is_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("x")
    monkeypatch.setenv("HOME", str(tmp_path))
    for there in (None, tmp_path / "key", Path("~/key")):
        check_identity(there)
    for missing in (tmp_path / "lost", Path("~/lost"), tmp_path):
        with pytest.raises(UserError, match="--identity"):
            check_identity(missing)
