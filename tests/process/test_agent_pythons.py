"""Every module of the agent can be imported by every Python of the contract that this machine has, 3.8 the oldest."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import ipexctl.node
from agent_helpers import agent_file, all_pythons

FOLDERS = {"env": "env", "files": "files", "network": "network", "run": "run files", "uninstall": "uninstall"}
"""Each folder, and the folders of the zip that it is sent in; a run with --checkpoint has those of `files` too."""
NOT_IMPORTED = ("run.sitecustomize",)
"""It runs in a rank and changes the interpreter that imports it."""


@pytest.mark.parametrize("python", all_pythons())
@pytest.mark.parametrize("folder", FOLDERS)
def test_every_module_can_be_imported(python: str, folder: str) -> None:
    directory = Path(ipexctl.node.__file__).parent
    names = [
        f"{path.parent.name}.{path.stem}" for part in ("common", folder) for path in (directory / part).glob("*.py")
    ]
    modules = [f"ipexctl.node.{name.replace('.__init__', '')}" for name in names if name not in NOT_IMPORTED]
    program = f"import sys; sys.path.insert(0, {agent_file(FOLDERS[folder])!r})\nimport {', '.join(modules)}"
    done = subprocess.run([python, "-I", "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_every_folder_of_the_agent_is_tried() -> None:
    directory = Path(ipexctl.node.__file__).parent
    assert {path.parent.name for path in directory.glob("*/__init__.py")} == {*FOLDERS, "common"}
