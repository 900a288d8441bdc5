"""The main path of the pages with the real torch, on this machine alone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_helpers import require_disk, require_package

from doc_shell import Shell
from page_scenes import REAL_HERE, Scene, play, scenes

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
def test_real_torch_pages_on_localhost(context: Scene, ours: Path, tmp_path: Path) -> None:
    env = {"IPEXCTL_HOME": str(ours), "OMP_NUM_THREADS": "1"}  # threads that wait for each other on a busy machine
    shell = Shell(tmp_path, env, programs=ours / "envs/default/bin")
    assert play(context, shell) == []
