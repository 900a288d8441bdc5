"""The docs site, built as CONTRIBUTING says: strictly, with the pinned packages, every page in it."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from clean_environment import package_settings
from doc_blocks import PAGES, ROOT
from doc_shell import Shell
from page_scenes import PACKAGE, Scene, play, scenes

NOT_OURS = shutil.ignore_patterns(".*", "__pycache__", "build", "checkpoints")


@pytest.mark.timeout(300)
@scenes(PACKAGE)
def test_site_builds_strictly_with_every_page(context: Scene, tmp_path: Path) -> None:
    shell = Shell(tmp_path, env=package_settings())
    shutil.copytree(ROOT, shell.project, ignore=NOT_OURS, dirs_exist_ok=True)
    (shell.project / ".venv").symlink_to(sys.prefix)
    assert play(context, shell) == []
    site = shell.project / "build/site"
    for page in PAGES:
        if page.is_relative_to(ROOT / "docs"):
            made = page.relative_to(ROOT / "docs").with_suffix("")
            html = site / ("index.html" if made.name == "index" else f"{made}/index.html")
            text = html.read_text()
            assert "<h1" in text
            assert "fonts.googleapis" not in text
    for moved in ("accelerate", "exec", "team", "trackers"):
        (target,) = re.findall(r"url=\.\./([\w/#-]+)", (site / moved / "index.html").read_text())
        page, _, anchor = target.partition("#")
        assert f'id="{anchor}"' in (site / page / "index.html").read_text()
    assert (site / "files/examples/train_digits.py").is_file()
    assert "<image" not in (site / "pictures/lost-host.svg").read_text()
