"""Removal of files from a store, on this machine."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ipexctl.hosts.host import Host
from ipexctl.remote.local import LocalSession
from ipexctl.remote.transfer.store_client import StoredFile, StoreLocation, drop

HERE = Host("here", "localhost")


def test_more_files_are_removed_than_a_command_line_can_name(tmp_path: Path) -> None:
    store = tmp_path / "it's a store"
    files = [StoredFile(hashlib.sha256(b"%d" % number).hexdigest(), "content") for number in range(2200)]
    for file in (files[0], files[-1], StoredFile("other", "content")):
        (store / file.sha256).mkdir(parents=True)
        (store / file.sha256 / file.name).touch()
    drop(LocalSession(HERE), StoreLocation(HERE, "python3", str(store)), files)
    assert [path.name for path in store.iterdir()] == ["other"]


def test_a_store_that_is_not_there_has_nothing_to_remove(tmp_path: Path) -> None:
    drop(LocalSession(HERE), StoreLocation(HERE, "python3", str(tmp_path / "none")), [StoredFile("a" * 64, "content")])
    assert list(tmp_path.iterdir()) == []
