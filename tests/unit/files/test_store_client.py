"""Removal of files from a store, on this machine."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from ipexctl.files.store_client import StoredFile, StoreLocation, drop
from ipexctl.files.stream import NotInStore, stream_blobs
from ipexctl.hosts.host import Host
from ipexctl.remote.local import LocalSession

LOCAL_HOST = Host("here", "localhost")


def test_drop_removes_more_files_than_fit_on_a_command_line(tmp_path: Path) -> None:
    store = tmp_path / "it's a store"
    files = [StoredFile(hashlib.sha256(b"%d" % number).hexdigest(), "content") for number in range(2200)]
    for file in (files[0], files[-1], StoredFile("other", "content")):
        (store / file.sha256).mkdir(parents=True)
        (store / file.sha256 / file.name).touch()
    drop(LocalSession(LOCAL_HOST), StoreLocation(LOCAL_HOST, "python3", str(store)), files)
    assert [path.name for path in store.iterdir()] == ["other"]


def test_drop_in_a_missing_store_does_nothing(tmp_path: Path) -> None:
    drop(
        LocalSession(LOCAL_HOST),
        StoreLocation(LOCAL_HOST, "python3", str(tmp_path / "none")),
        [StoredFile("a" * 64, "content")],
    )
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    file = StoredFile("0" * 64, "pipe", 3).to_json()
    with pytest.raises(NotInStore, match="no regular file"):
        list(stream_blobs([(file, tmp_path / "pipe")], {}))
