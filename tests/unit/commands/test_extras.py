"""The core without its extras, as a wheel that lacks their folders; and what their entry points name."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from test_cli import run_program

import ipexctl
from ipexctl.commands.app import CORE, HIDDEN, load_command
from ipexctl.extensions import commands_of_extras, extras

PACKAGE = Path(ipexctl.__file__).parent


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for PYTHONPATH with the package but its extras, and what pip writes about it."""
    place = tmp_path_factory.mktemp("core")
    shutil.copytree(PACKAGE, place / "ipexctl", ignore=shutil.ignore_patterns("extras", "__pycache__"))
    metadata = place / f"ipexctl-{ipexctl.__version__}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.4\nName: ipexctl\nVersion: {ipexctl.__version__}\n")
    return place


def call(core: Path, home: Path, *words: str) -> CompletedProcess[str]:
    environ = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": os.pathsep.join([str(core), *sys.path])}
    return run_program(sys.executable, "-m", "ipexctl", *words, cwd=home, env=environ)


def test_help_lists_the_commands_of_the_core_alone(core: Path, tmp_path: Path) -> None:
    done = call(core, tmp_path, "--help")
    listed = {line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ") and line.strip()}
    assert done.returncode == 0, done.stderr
    assert {*CORE} - HIDDEN <= listed
    assert not listed & set(commands_of_extras())


@pytest.mark.parametrize("name", CORE)
def test_each_command_of_the_core_explains_itself(core: Path, tmp_path: Path, name: str) -> None:
    done = call(core, tmp_path, name, "--help")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("play", "site.yml"), "there is no command 'play'"),
        (("run", "--hosts", "localhost", "--report", "page.html", "train.py"), "--report: this installation"),
    ],
)
def test_what_an_extra_does_is_refused_in_words(core: Path, tmp_path: Path, words: Sequence[str], problem: str) -> None:
    (tmp_path / "train.py").touch()
    done = call(core, tmp_path, *words)
    assert done.returncode == 2
    assert problem in done.stderr


def test_a_command_on_a_host_needs_no_extra(core: Path, tmp_path: Path) -> None:
    done = call(core, tmp_path, "doctor", "--hosts", "localhost", "--json")
    document = json.loads(done.stdout)
    assert document["schema"] == "ipexctl.doctor/1", done.stderr


def test_each_extra_has_what_its_entry_point_promises() -> None:
    assert extras()
    for extra in extras():
        for command in extra.commands:
            assert command.name not in CORE
            assert callable(load_command(command.name))
        for added in extra.adds.values():
            module, _, name = added.partition(":")
            assert getattr(import_module(module), name, None) is not None
