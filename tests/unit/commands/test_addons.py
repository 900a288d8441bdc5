"""The list of addons, and installations with entry points of extras that are gone."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path

import pytest
from test_cli import run_program

import ipexctl
from ipexctl.addons_list import ADDITIONS, COMMANDS
from ipexctl.commands.app import CORE, load_command

STALE = "export = ipexctl.addons.export.extension:EXTRA\nslurm = ipexctl.addons.slurm.extension:EXTRA\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_of_an_addon_is_there_and_none_of_the_core(name: str) -> None:
    assert name not in CORE
    assert callable(load_command(name))


@pytest.mark.parametrize("added", ADDITIONS.values())
def test_what_the_core_calls_is_there(added: str) -> None:
    module, _, name = added.partition(":")
    assert callable(getattr(import_module(f"ipexctl.addons.{module}"), name))


@pytest.mark.parametrize(("word", "code"), [("--help", 0), ("play", 2), ("export", 2)])
def test_an_installation_with_old_entry_points_answers(tmp_path: Path, word: str, code: int) -> None:
    """An editable one keeps the metadata of the day it was made."""
    metadata = tmp_path / f"ipexctl-{ipexctl.__version__}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.4\nName: ipexctl\nVersion: {ipexctl.__version__}\n")
    (metadata / "entry_points.txt").write_text(f"[ipexctl.extras]\n{STALE}")
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
    }
    done = run_program(sys.executable, "-m", "ipexctl", word, cwd=tmp_path, env=environ)
    assert done.returncode == code, done.stderr
    assert "did not expect" not in done.stderr + done.stdout
