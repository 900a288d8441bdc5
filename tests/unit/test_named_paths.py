"""Places that a call names for its output; `test_files_of_others.py` has those that other accounts have made."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from ipexctl.named_paths import check_named_file, open_named_directory, open_named_file


def write(path: Path | str, content: bytes = b"new") -> None:
    check_named_file(path)
    with open(open_named_file(path), "wb") as file:
        file.write(content)


def test_a_file_is_made_with_the_umask_or_its_content_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write(path)
    umask = os.umask(0)
    os.umask(umask)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", 0o666 & ~umask)
    path.write_bytes(b"x" * 999)
    path.chmod(0o640)
    inode = path.stat().st_ino
    write(path)
    assert (path.read_bytes(), path.stat().st_mode & 0o777, path.stat().st_ino) == (b"new", 0o640, inode)


def test_links_of_this_account_are_followed_anywhere_in_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real/deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real/again").symlink_to(tmp_path / "link/deep")
    (tmp_path / "real/deep/file").symlink_to("../not-yet")
    write(tmp_path / "link/again/file")
    assert (tmp_path / "real/not-yet").read_bytes() == b"new"
    monkeypatch.chdir(tmp_path / "real/deep")
    write("../../link/./deep/../b")
    assert (tmp_path / "real/b").read_bytes() == b"new"
    directory, made = open_named_directory("../again/x/y", make=True)
    deep = tmp_path / "real/deep"
    assert (directory.path, made) == (f"{deep}/x/y", (f"{deep}/x", f"{deep}/x/y"))
    directory.close()


def test_an_open_file_and_a_pipe_of_this_account_are_written_to(tmp_path: Path) -> None:
    read, number = os.pipe()
    write(f"/dev/fd/{number}")
    os.close(number)
    assert os.read(read, 9) == b"new"
    os.close(read)
    write("/dev/null")
    os.mkfifo(tmp_path / "pipe")
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append((tmp_path / "pipe").read_bytes()), daemon=True)
    reader.start()
    write(tmp_path / "pipe")
    reader.join(10)
    assert found == [b"new"]


def test_what_is_not_there_and_links_without_end_are_errors_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for path, number in ((tmp_path / "no/file", errno.ENOENT), (tmp_path / "loop", errno.ELOOP)):
        with pytest.raises(OSError, match=str(tmp_path)) as caught:
            open_named_file(path)
        assert caught.value.errno == number
