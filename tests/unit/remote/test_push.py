"""Packing trees, and unpacking them through a session on this machine."""

from __future__ import annotations

import errno
import io
import itertools
import os
import shlex
import socket
import tarfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

import pytest

from ipexctl.errors import UserError
from ipexctl.hosts.host import Host
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.local import LocalSession
from ipexctl.remote.outcome import Cancelled, HostError
from ipexctl.remote.push import Bundle, Item, bundled, push_bundle, push_file, tree_items

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ipexctl.remote.command import Command
    from ipexctl.remote.session import Ended, Stream


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


def test_parents_come_before_what_is_in_them(tree: Path) -> None:
    paths = [item.path for item in tree_items(tree)]
    assert all(str(Path(path).parent) in (".", *paths[:index]) for index, path in enumerate(paths))
    assert paths == [item.path for item in tree_items(tree)]


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


def test_a_full_temporary_directory_is_named(
    here: LocalSession, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with bundled(tree_items(tree)) as bundle, pytest.raises(HostError) as caught:
        push_bundle(here, bundle, str(tmp_path / "target"))
    assert caught.value.reason == f"packing in {tmp_path}: No space left on device"
    assert "TMPDIR" in caught.value.fix


def test_a_write_that_takes_only_part_is_gone_on_with(
    here: LocalSession, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, bytes(data)[:1000], at))
    with bundled(tree_items(tree)) as bundle:
        push_bundle(here, bundle, str(tmp_path / "target"))
    assert listing(tmp_path / "target") == listing(tree)


def test_a_file_that_shrinks_while_it_is_packed_is_named(
    here: LocalSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tarfile.TarFile.gettarinfo

    def larger(self: tarfile.TarFile, name: str, arcname: str) -> tarfile.TarInfo:
        found = real(self, name, arcname)
        found.size += 1
        return found

    monkeypatch.setattr(tarfile.TarFile, "gettarinfo", larger)
    (tmp_path / "log").write_text("short")
    items = [Item(tmp_path / "log", "log")]
    with bundled(items) as bundle, pytest.raises(HostError, match="log: it changed while it was read"):
        push_bundle(here, bundle, str(tmp_path / "target"))


def broken_off(tree: Path) -> Iterator[Item]:
    yield Item(tree / "run.sh", "run.sh")
    raise LookupError("no such thing")


def test_an_iterator_that_raises_fails_the_hosts_and_reaches_the_caller(
    here: LocalSession, tree: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    with pytest.raises(LookupError, match="no such thing"), bundled(broken_off(tree)) as bundle:
        for _ in range(2):
            with pytest.raises(HostError) as caught:
                push_bundle(here, bundle, str(tmp_path / "target"))
            said.append(caught.value.reason)
    assert said == ["packing failed: no such thing"] * 2


def test_a_reader_never_takes_a_broken_archive_for_a_whole_one(tree: Path) -> None:
    bundle = Bundle()
    bundle.pack(broken_off(tree))
    with pytest.raises(OSError, match="broke off"):
        bundle.reader().read()
    bundle.close()


def test_packing_stops_when_nobody_reads_any_more(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(100_000))
    endless = (Item(tmp_path / "f", str(number)) for number in itertools.count())
    with pytest.raises(KeyError), bundled(endless) as bundle:
        bundle.reader().read(10)
        raise KeyError
    assert not [thread for thread in threading.enumerate() if thread.name == "pack"]


@pytest.mark.parametrize("missing", ["", "below"])
def test_a_directory_that_cannot_be_read_is_named(missing: str, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.scandir

    def refusing(path: Path) -> object:
        if path == tree / missing:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path)

    (tree / "below").mkdir()
    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(UserError, match=f"{tree / missing}: Permission denied"):
        tree_items(tree)


def test_a_tree_that_is_not_there_is_no_empty_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere: No such file or directory"):
        tree_items(tmp_path / "nowhere")


def test_sockets_and_fifos_stay_behind(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tree_items(tree)
    os.mkfifo(tree / "fifo")
    monkeypatch.chdir(tree)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind("sock")
        assert tree_items(tree) == before


def test_a_device_is_refused() -> None:
    with pytest.raises(UserError, match=r"/dev/.* is a device"):
        tree_items(Path("/dev"))


class At(LocalSession):
    """A session whose home is that directory."""

    def __init__(self, home: Path) -> None:
        super().__init__(Host("localhost", "localhost"))
        self.home = home

    def run(
        self,
        command: Command,
        sink: Callable[[Stream, bytes], None],
        *,
        stdin: BinaryIO | None = None,
        timeout: float | None = None,
        cancel: Cancel | None = None,
    ) -> Ended:
        there = replace(command, script=f"cd {shlex.quote(str(self.home))} || exit\n{command.script}")
        return super().run(there, sink, stdin=stdin, timeout=timeout, cancel=cancel)


def test_a_destination_may_begin_with_a_dash(tree: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with bundled(tree_items(tree)) as bundle:
        push_bundle(At(home), bundle, "-rf")
    push_file(At(home), b"content", "-i")
    assert listing(home / "-rf") == listing(tree)
    assert (home / "-i").read_bytes() == b"content"
    assert {path.name for path in home.iterdir()} == {"-rf", "-i"}


class Interrupted(LocalSession):
    """A session whose commands are fed the first half of their input, and then what `rest` returns."""

    def __init__(self, rest: Callable[[], bytes]) -> None:
        super().__init__(Host("localhost", "localhost"))
        self.rest = rest
        self.scripts: list[str] = []

    def run(
        self,
        command: Command,
        sink: Callable[[Stream, bytes], None],
        *,
        stdin: BinaryIO | None = None,
        timeout: float | None = None,
        cancel: Cancel | None = None,
    ) -> Ended:
        self.scripts.append(command.script)
        assert isinstance(stdin, io.BytesIO)
        half = iter([stdin.getvalue()[: len(stdin.getvalue()) // 2]])
        rest = self.rest

        class Source(io.RawIOBase):
            def read(self, size: int = -1) -> bytes:
                return next(half, b"") or rest()

        return super().run(command, sink, stdin=cast("BinaryIO", Source()), timeout=timeout, cancel=cancel)


def test_a_file_of_which_half_arrives_does_not_replace_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("old")
    session = Interrupted(lambda: b"")
    for _ in range(2):
        with pytest.raises(HostError, match="only part of it has arrived"):
            push_file(session, b"new content", str(tmp_path / "f"))
    assert (tmp_path / "f").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    assert session.scripts[0] != session.scripts[1]  # on a home that hosts share, process ids are no names


def test_a_push_that_is_cancelled_leaves_nothing_behind(tmp_path: Path) -> None:
    cancel, over = Cancel(), threading.Event()

    def stall() -> bytes:
        while not any(tmp_path.iterdir()):
            time.sleep(0.01)
        cancel.throw()
        over.wait(30)
        return b""

    with pytest.raises(Cancelled):
        push_file(Interrupted(stall), b"new content", str(tmp_path / "f"), cancel=cancel)
    over.set()
    assert not list(tmp_path.iterdir())


def test_a_directory_in_the_place_of_a_file_is_no_place_to_move_it_into(here: LocalSession, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    with pytest.raises(HostError, match="a directory is in its place"):
        push_file(here, b"x", str(tmp_path / "d"))
    assert [path.name for path in tmp_path.rglob("*")] == ["d"]
