"""The main path of the pages with the real torch: on this machine alone, and on three hosts of a lab."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_helpers import require_disk, require_lab, require_package

from doc_shell import Shell
from ipexctl.errors import UserError
from ipexctl.lab import Lab, LabSpec, down, up
from page_scenes import REAL_HERE, REAL_LAB, Scene, play, scenes

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

DISK_NEEDED = 12e9


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One home for all pages: what one has installed the next finds."""
    directory = tmp_path_factory.mktemp("ours")
    require_disk(directory, DISK_NEEDED)
    require_package("impi-rt")
    yield directory
    shutil.rmtree(directory)  # gigabytes, which pytest would keep for three more sessions


@scenes(REAL_HERE)
def test_on_this_machine(context: Scene, ours: Path, tmp_path: Path) -> None:
    shell = Shell(tmp_path, {"IPEXCTL_HOME": str(ours)}, programs=ours / "envs/default/bin")
    assert play(context, shell) == []


@pytest.fixture
def lab() -> Iterator[Lab]:
    require_lab()
    require_disk("/var/lib", DISK_NEEDED)
    made = up(LabSpec(hosts=3, name=f"tour-{os.getpid()}"))
    yield made
    with contextlib.suppress(UserError):  # the page itself takes it down
        down(made.name)


@scenes(REAL_LAB)
def test_on_three_hosts(context: Scene, lab: Lab, tmp_path: Path) -> None:
    shell = Shell(tmp_path, {"IPEXCTL_HOSTFILE": str(lab.hostfile)}, lab=lab.name)
    shutil.copy(shell.project / "examples/train_digits.py", shell.project)
    shutil.rmtree(shell.project / "examples")
    assert play(context, shell) == []
