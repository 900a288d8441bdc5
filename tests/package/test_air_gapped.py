"""ipexctl installed on a machine without pip or an index, as docs/guides/air-gapped.md says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from clean_environment import package_settings
from doc_blocks import ROOT
from doc_shell import Shell
from page_scenes import CHECKOUT, Scene, play, scenes

FILES = ("ipexctl", "playbooks", "README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml", "hatch_build.py")


@pytest.mark.timeout(600)
@scenes(CHECKOUT)
def test_wheels_install_ipexctl_where_no_pip_is(context: Scene, tmp_path: Path) -> None:
    shell = Shell(tmp_path, env=package_settings())
    for name in FILES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, shell.project / name)
    assert play(context, shell) == []
    assert "0." in shell.type("env -i HOME=$HOME ~/ipexctl-venv/bin/ipexctl --version")
