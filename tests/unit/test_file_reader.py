"""Files that others name are read without waiting and up to a limit; places that a call names for its output."""

from __future__ import annotations

import errno
import os
import socket
import threading
from pathlib import Path

import pytest

from ipexctl import file_reader
from ipexctl.file_reader import (
    FileKind,
    NotRegularError,
    TooLargeError,
    check_regular,
    decode_text,
    open_regular,
    read_regular,
    read_typed,
)
from ipexctl.files.named_paths import check_named_file, open_named_directory, open_named_file

KIND = FileKind("a test", 10)
pytestmark = pytest.mark.timeout(10)


@pytest.fixture(params=["fifo", "socket", "zero", "terminal"])
def special(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file whose reading may never end, behind a link."""
    target = tmp_path / "special"
    if request.param == "fifo":
        os.mkfifo(target)
    elif request.param == "socket":
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(os.path.relpath(target))
    else:
        target = Path({"zero": "/dev/zero", "terminal": "/dev/ptmx"}[request.param])
    (tmp_path / "link").symlink_to(target)
    return tmp_path / "link"


def test_special_files_are_refused_at_once(special: Path) -> None:
    with pytest.raises(NotRegularError) as caught:
        read_regular(special, KIND)
    assert (caught.value.filename, bool(caught.value.strerror)) == (str(special), True)
    with pytest.raises(NotRegularError):
        check_regular(special)
    with pytest.raises(NotRegularError), open(special, opener=open_regular):
        pass


def test_regular_files_are_read_up_to_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10)
    check_regular(path)
    for read in (read_regular, read_typed):
        assert read(path, KIND) == b"x" * 10
    path.write_bytes(b"x" * 11)
    for read in (read_regular, read_typed):
        with pytest.raises(TooLargeError, match="a test"):
            read(path, KIND)
    for read in (read_regular, read_typed):
        with pytest.raises(IsADirectoryError):
            read(tmp_path, KIND)
        with pytest.raises(FileNotFoundError):
            read(tmp_path / "missing", KIND)
    check_regular(tmp_path)


def test_the_null_device_is_an_empty_file() -> None:
    assert read_regular("/dev/null", KIND) == b""
    check_regular("/dev/null")


def test_a_typed_pipe_is_read_to_its_end_but_no_further_than_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    threading.Thread(target=lambda: path.write_bytes(b"node1"), daemon=True).start()
    assert read_typed(path, KIND) == b"node1"
    with pytest.raises(TooLargeError):
        read_typed("/dev/zero", KIND)


def test_a_typed_pipe_without_a_writer_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_reader, "PIPE_SILENCE", 0.2)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="pipe") as caught:
        read_typed(tmp_path / "pipe", KIND)
    assert (caught.value.errno, caught.value.filename) == (errno.ETIMEDOUT, str(tmp_path / "pipe"))


def test_a_typed_pipe_whose_writer_is_silent_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_reader, "PIPE_SILENCE", 0.2)
    reader, writer = os.pipe()
    try:
        os.write(writer, b"node1")
        with pytest.raises(OSError, match="pipe") as caught:
            read_typed(f"/dev/fd/{reader}", KIND)
    finally:
        os.close(reader)
        os.close(writer)
    assert caught.value.errno == errno.ETIMEDOUT


def test_descriptors_are_closed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(NotRegularError):
            read_regular(tmp_path / "fifo", KIND)
    assert len(os.listdir("/proc/self/fd")) == before


def test_all_ends_of_lines_become_newlines() -> None:
    assert decode_text(b"a\r\nb\rc\n") == "a\nb\nc\n"
    assert decode_text(b"\xef\xbb\xbfa", "utf-8-sig") == "a"


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
