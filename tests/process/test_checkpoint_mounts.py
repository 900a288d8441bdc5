"""Files that an exchange sets aside if PATH is on another mount of the home's filesystem: the device number is the
same, and a rename fails."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ipexctl.node.common.answer import AgentError
from ipexctl.node.files.checkpoint_aside import HIDDEN, AsideFiles, remove_aside

pytestmark = [pytest.mark.needs("mount"), pytest.mark.skipif(os.geteuid() != 0, reason="root alone can mount")]
EXCHANGE = "0" * 32


@pytest.fixture
def mounts(tmp_path: Path) -> Iterator[Path]:
    """`work/` is a mount of `disk/`."""
    for name in ("disk", "work", "home/checkpoints/KEY"):
        (tmp_path / name).mkdir(parents=True, mode=0o700)
    if subprocess.run(["mount", "--bind", tmp_path / "disk", tmp_path / "work"], check=False).returncode:
        pytest.skip("nothing can be mounted here")
    yield tmp_path
    subprocess.run(["umount", "-R", tmp_path / "work"], check=True)


def set_aside(base: Path, root: Path, *names: str) -> AsideFiles:
    aside_files = AsideFiles(str(base / "home/checkpoints/KEY"), str(root))
    aside_files.prepare(EXCHANGE)
    for name in names:
        path = root / name.partition("/")[2]
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            aside_files.keep(name, os.fsencode(path.name), directory)
        finally:
            os.close(directory)
    return aside_files


@pytest.mark.parametrize(("path", "place"), [("out", "work"), ("", "work")], ids=["below the mount", "the mount"])
def test_files_of_another_mount_are_set_aside_on_it(mounts: Path, path: str, place: str) -> None:
    root = mounts / "work" / path
    (root / "checkpoint-1").mkdir(parents=True)
    assert root.stat().st_dev == (mounts / "home").stat().st_dev, "the device number says nothing"
    for name in ("a.pt", "b.pt"):
        (root / "checkpoint-1" / name).write_text(name)
    top = root.name
    aside_files = set_aside(mounts, root, f"{top}/checkpoint-1/a.pt", f"{top}/checkpoint-1/b.pt")
    hidden = mounts / place / f"{HIDDEN}KEY"
    assert aside_files.path == str(hidden)
    kept = {path.name: path.read_text() for path in (hidden / EXCHANGE / top / "checkpoint-1").iterdir()}
    assert kept == {"a.pt": "a.pt", "b.pt": "b.pt"}
    assert not (mounts / f"{HIDDEN}KEY").exists()
    (root / "checkpoint-1/c.pt").write_text("c")
    assert set_aside(mounts, root, f"{top}/checkpoint-1/c.pt").path == str(hidden), "the next exchange begins there"
    remove_aside(str(mounts / "home/checkpoints/KEY/aside"))
    assert not hidden.exists()
    assert not os.path.lexists(mounts / "home/checkpoints/KEY/aside")


def test_a_mount_below_the_checkpoint_is_named(mounts: Path) -> None:
    root = mounts / "work"
    (root / "a.pt").write_text("a")
    (root / "inner").mkdir()
    (mounts / "other").mkdir()
    (mounts / "other/b.pt").write_text("b")
    subprocess.run(["mount", "--bind", mounts / "other", root / "inner"], check=True)
    with pytest.raises(AgentError, match=r"work/inner/b\.pt can't be set aside"):
        set_aside(mounts, root, "work/a.pt", "work/inner/b.pt")
    assert (root / "inner/b.pt").read_text() == "b"
