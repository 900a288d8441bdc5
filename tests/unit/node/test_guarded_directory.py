"""Work in a directory that others may change: whatever happens to its name, nothing is read or written elsewhere."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.guarded_directory import DirectoryChain, GuardedDirectory, check_name


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "ours").mkdir()
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim/file").write_text("kept")
    return tmp_path / "ours"


def swap(directory: Path) -> Path:
    """The directory under another name, and a link to the victim in its place."""
    moved = directory.with_name("moved")
    directory.rename(moved)
    directory.symlink_to(directory.with_name("victim"))
    return moved


@pytest.mark.parametrize("name", ["", ".", "..", "/etc/passwd", "a/../b", "a//b", "a/", "/", "a\0b", "../x"])
def test_names_that_lead_out_are_refused(name: str) -> None:
    with pytest.raises(AgentError, match="leads out"):
        check_name(name)


def test_names_below_are_taken_apart() -> None:
    assert check_name("a/b.c/...") == ["a", "b.c", "..."]


def test_a_directory_that_is_swapped_for_a_link_redirects_nothing(directory: Path) -> None:
    with GuardedDirectory.open(str(directory)) as guarded:
        moved = swap(directory)
        guarded.write(b"file", (b"new", b"er"), 0o640)
        with guarded.enter(b"a/b", make=True) as below:
            below.link_to(b"../x", b"link")
        guarded.remove_tree(b"missing")
        assert Path(guarded.anchor, "file").read_text() == "newer"
    assert (moved / "file").read_text() == "newer"
    assert stat.S_IMODE((moved / "file").stat().st_mode) == 0o640
    assert os.readlink(moved / "a/b/link") == "../x"
    assert [path.name for path in directory.with_name("victim").iterdir()] == ["file"]
    assert (directory.with_name("victim") / "file").read_text() == "kept"


def test_links_below_are_not_followed(directory: Path) -> None:
    (directory / "link").symlink_to("../victim")
    with GuardedDirectory.open(str(directory)) as guarded:
        with pytest.raises(AgentError, match="is a link"):
            guarded.enter(b"link")
        with pytest.raises(OSError, match="symbolic"):
            guarded.open_to_read(b"link")
        (directory / "pipe").touch()
        (directory / "pipe").unlink()
        os.mkfifo(directory / "pipe")
        with pytest.raises(OSError, match="not a regular file"):
            guarded.open_to_read(b"pipe")
        guarded.write(b"link", (b"a file now",))
        guarded.remove_tree(b"link")
    assert (directory.with_name("victim") / "file").read_text() == "kept"


def test_an_entry_that_was_made_meanwhile_is_not_replaced(directory: Path) -> None:
    (directory / "file").write_text("of another")
    (directory / "dir").mkdir()
    with GuardedDirectory.open(str(directory)) as guarded:
        with pytest.raises(FileExistsError), guarded.written(b"file", 0o600, replace=False):
            pass
        with pytest.raises(FileExistsError):
            guarded.link_to(b"x", b"file", replace=False)
        with pytest.raises(IsADirectoryError):
            guarded.write(b"dir", (b"new",))
        with guarded.written(b"other", 0o600, replace=False):
            pass
    assert {path.name for path in directory.iterdir()} == {"file", "dir", "other"}
    assert (directory / "file").read_text() == "of another"


def test_a_full_disk_leaves_nothing(directory: Path) -> None:
    def fails() -> object:
        yield b"begun"
        raise OSError(28, "No space left on device")

    with GuardedDirectory.open(str(directory)) as guarded, pytest.raises(OSError, match="space"):
        guarded.write(b"file", fails())  # type: ignore[arg-type]
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize(("owner", "mode", "reason"), [(65534, 0o700, "65534"), (0, 0o750, "750"), (0, 0o701, "701")])
def test_a_directory_of_others_is_not_private(directory: Path, owner: int, mode: int, reason: str) -> None:
    if owner and os.geteuid():
        pytest.skip("only root can give a directory away")
    directory.chmod(0o700)
    with GuardedDirectory.open(str(directory)) as guarded:
        guarded.check_private("fix")
        directory.chmod(mode)
        if owner:
            os.chown(directory, owner, owner)
        with pytest.raises(AgentError, match=reason):
            guarded.check_private("fix")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_account_or_a_large_one_is_not_read(directory: Path) -> None:
    (directory / "file").write_text("12345")
    with GuardedDirectory.open(str(directory)) as guarded:
        assert guarded.read(b"file", 5) == b"12345"
        with pytest.raises(AgentError, match="the limit is 4"):
            guarded.read(b"file", 4)
        os.chown(directory / "file", 65534, 65534)
        with pytest.raises(AgentError, match="another account"):
            guarded.read(b"file", 5)


def test_a_tree_deeper_than_descriptors_reach_is_removed(directory: Path) -> None:
    deep = os.open(directory, os.O_RDONLY)
    for _ in range(400):
        os.mkdir("d", dir_fd=deep)
        below = os.open("d", os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    os.close(deep)
    (directory / "d/link").symlink_to("../../victim")
    with GuardedDirectory.open(str(directory)) as guarded:
        guarded.remove_tree(b"d")
    assert list(directory.iterdir()) == []
    assert (directory.with_name("victim") / "file").read_text() == "kept"


def test_chain_keeps_only_the_way_to_the_last_directory_open(directory: Path) -> None:
    for name in ("a/b", "a/c", "d"):
        (directory / name).mkdir(parents=True)
    opened: list[bytes] = []

    def open_below(above: GuardedDirectory, names: Sequence[bytes]) -> GuardedDirectory:
        opened.append(b"/".join(names))
        return above.enter(names[-1])

    before = len(os.listdir("/proc/self/fd"))
    with GuardedDirectory.open(str(directory)) as top:
        chain = DirectoryChain(top, open_below)
        for way in ([b"a", b"b"], [b"a", b"b"], [b"a", b"c"], [b"a"], [b"d"], []):
            entered = chain.enter(way)
            assert entered.status().st_ino == directory.joinpath(*map(os.fsdecode, way)).stat().st_ino
        assert opened == [b"a", b"a/b", b"a/c", b"d"]
        assert entered is top
    assert len(os.listdir("/proc/self/fd")) == before
