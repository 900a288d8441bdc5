"""The man pages are those of the help; `python tests/man_pages.py` writes them."""

from __future__ import annotations

import subprocess

import pytest

from man_pages import MAN, pages


def test_man_pages_are_those_of_the_help() -> None:
    assert {path.name: path.read_text() for path in MAN.iterdir()} == pages()


@pytest.mark.parametrize("name", ["ipexctl.1", "ipexctl-run.1", "ipexctl-lab.1"])
def test_pages_are_roff_without_a_warning(name: str) -> None:
    try:
        call = ["groff", "-man", "-Kutf8", "-Tutf8", "-ww", str(MAN / name)]
        done = subprocess.run(call, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("groff isn't installed")
    assert (done.returncode, done.stderr) == (0, "")
    assert name.removesuffix(".1").upper() in done.stdout
