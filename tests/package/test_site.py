"""The site of the pages, built strictly with the pinned packages: every link of it leads somewhere."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from doc_blocks import PAGES, ROOT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.timeout(300)
def test_the_site_is_built_strictly_and_has_every_page(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    pip = [str(tmp_path / "venv/bin/python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "--require-hashes", "-r", str(ROOT / "docs/requirements.lock")], check=True)
    site = tmp_path / "site"
    built = subprocess.run(
        [str(tmp_path / "venv/bin/mkdocs"), "build", "--strict", "-f", str(ROOT / "mkdocs.yml"), "-d", str(site)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    for page in PAGES:
        if page.is_relative_to(ROOT / "docs"):
            made = page.relative_to(ROOT / "docs").with_suffix("")
            html = site / ("index.html" if made.name == "index" else f"{made}/index.html")
            text = html.read_text()
            assert "<h1" in text
            assert "fonts.googleapis" not in text
    assert (site / "files/examples/train_digits.py").is_file()
    assert "<image" not in (site / "pictures/run.svg").read_text()
