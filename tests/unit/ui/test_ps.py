"""`ipexctl ps` with nothing to show says whether there was never a run, or none goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipexctl.ui.ps import show

if TYPE_CHECKING:
    import pytest


def test_nothing_that_goes_on_is_not_nothing_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    show([], hidden=3)
    assert capsys.readouterr().err == "no run goes on; ipexctl ps shows the 3 runs that ended\n"
    show([])
    assert capsys.readouterr().err == "no runs; ipexctl run SCRIPT.py starts one\n"
    show([], hidden=3, quiet=True)
    assert capsys.readouterr().err == ""
