"""The main path of the pages with the real torch: on this machine alone, and on three hosts of a lab."""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import TYPE_CHECKING

import pytest
from real_helpers import leave_out, pip_says

from doc_shell import Shell
from ipexctl.errors import UserError
from ipexctl.lab import LabSpec, disk, down, system, up
from page_scenes import REAL_HERE, REAL_LAB, play, scenes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ipexctl.lab import Lab
    from page_scenes import Scene

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

DISK_NEEDED = 12e9


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One home for all pages: what one has installed the next finds."""
    directory = tmp_path_factory.mktemp("ours")
    free = shutil.disk_usage(directory).free
    if free < DISK_NEEDED:
        leave_out(f"{free / 1e9:.0f} GB are free in {directory}; {DISK_NEEDED / 1e9:.0f} are needed")
    if not pip_says("index", "versions", "impi-rt"):
        leave_out("pip reaches no index that has impi-rt: no network to PyPI")
    yield directory
    shutil.rmtree(directory)  # gigabytes, which pytest would keep for three more sessions


@scenes(REAL_HERE)
def test_on_this_machine(context: Scene, ours: Path, tmp_path: Path) -> None:
    shell = Shell(tmp_path, {"IPEXCTL_HOME": str(ours)}, programs=ours / "envs/default/bin")
    play(context, shell)


@pytest.fixture
def lab() -> Iterator[Lab]:
    try:
        system.require()
    except UserError as missing:
        leave_out(f"no lab here: {missing.message} (fix: {missing.fix})")
    if not disk.can_mount_images():
        pytest.skip("the hosts' disks would be memory here, and torch doesn't fit")
    free = shutil.disk_usage("/var/lib").free
    if free < DISK_NEEDED:
        leave_out(f"{free / 1e9:.0f} GB are free in /var/lib; {DISK_NEEDED / 1e9:.0f} are needed")
    made = up(LabSpec(hosts=3, name=f"tour-{os.getpid()}"))
    yield made
    with contextlib.suppress(UserError):  # the page itself takes it down
        down(made.name)


@scenes(REAL_LAB)
def test_on_three_hosts(context: Scene, lab: Lab, tmp_path: Path) -> None:
    shell = Shell(tmp_path, {"IPEXCTL_HOSTFILE": str(lab.hostfile)}, lab=lab.name)
    shutil.copy(shell.project / "examples/train_digits.py", shell.project)
    shutil.rmtree(shell.project / "examples")
    play(context, shell)
