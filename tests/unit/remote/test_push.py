"""Packing trees, and unpacking them through a session on this machine."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import cast

import pytest

from ipexctl.hosts.host import Host
from ipexctl.remote.local import LocalSession
from ipexctl.remote.outcome import HostError
from ipexctl.remote.push import Item, bundled, push_bundle, push_file, tree_items


@pytest.fixture
def here() -> LocalSession:
    return LocalSession(Host("localhost", "localhost"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "it's a dir" / "empty").mkdir(parents=True)
    (root / "it's a dir" / "two\nlines").write_text("odd")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o750)
    (root / "link").symlink_to("it's a dir")
    (root / "dangling").symlink_to("nowhere")
    Path(os.fsdecode(os.fsencode(root) + b"/\xff\xfe")).write_text("not utf-8")
    return root


def listing(root: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for item in tree_items(root):
        path = root / item.path
        if path.is_symlink():
            found[item.path] = os.readlink(path)
        else:
            found[item.path] = (path.stat().st_mode, path.read_bytes() if path.is_file() else None)
    return found


def test_a_tree_arrives_as_it_was(here: LocalSession, tree: Path, tmp_path: Path) -> None:
    target = tmp_path / "far away" / "it's here"
    with bundled(tree_items(tree)) as bundle:
        push_bundle(here, bundle, str(target))
        push_bundle(here, bundle, str(tmp_path / "twice"))
    assert listing(target) == listing(tree)
    assert listing(tmp_path / "twice") == listing(tree)
    assert len(listing(tree)) == 7


def test_no_owner_travels(tree: Path) -> None:
    with bundled(tree_items(tree)) as bundle, tarfile.open(fileobj=bundle.reader(), mode="r|") as archive:
        assert {(m.uid, m.gid, m.uname, m.gname) for m in archive} == {(0, 0, "", "")}


def test_a_file_that_vanishes_while_packing_fails_the_push(here: LocalSession, tree: Path, tmp_path: Path) -> None:
    items = [*tree_items(tree), Item(tree / "gone", "gone")]
    with bundled(items) as bundle, pytest.raises(HostError, match="gone: No such file"):
        push_bundle(here, bundle, str(tmp_path / "target"))


def test_a_destination_that_cannot_be_made_is_the_hosts_reason(here: LocalSession, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        bundled(tree_items(tree)) as bundle,
        pytest.raises(HostError, match=r"could not unpack into .*Not a directory"),
    ):
        push_bundle(here, bundle, str(tmp_path / "file" / "below"))


def test_a_pushed_file_is_whole_private_and_replaces_the_old_one(here: LocalSession, tmp_path: Path) -> None:
    target = tmp_path / "a 'secret'"
    target.write_text("old")
    push_file(here, b"new\0bytes", str(target))
    assert target.read_bytes() == b"new\0bytes"
    assert target.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


def test_a_reader_waits_for_what_is_not_packed_yet(tmp_path: Path) -> None:
    for index in range(300):
        (tmp_path / f"f{index}").write_bytes(os.urandom(4096))
    with bundled(tree_items(tmp_path)) as bundle:
        readers = [bundle.reader() for _ in range(3)]
        contents = [b"".join(iter(lambda r=reader: cast("bytes", r.read(10_000)), b"")) for reader in readers]  # type: ignore[misc]
    assert len(set(contents)) == 1
    assert len(contents[0]) > 300 * 4096
