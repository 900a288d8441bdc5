"""`ipexctl ps` with nothing to show says whether there was never a run, or none goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipexctl.ui.ps import show
from message_data import missing

if TYPE_CHECKING:
    import pytest


def test_nothing_that_goes_on_is_not_nothing_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    show([], hidden=3)
    assert missing(capsys.readouterr().err, "ipexctl ps 3") == []
    show([])
    assert missing(capsys.readouterr().err, "ipexctl run SCRIPT.py") == []
    show([], hidden=3, quiet=True)
    assert capsys.readouterr().err == ""
