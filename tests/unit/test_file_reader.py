"""Files that other files name are read without waiting and up to a limit."""

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
    decoded,
    open_regular,
    read_regular,
    read_typed,
)

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
    assert decoded(b"a\r\nb\rc\n") == "a\nb\nc\n"
    assert decoded(b"\xef\xbb\xbfa", "utf-8-sig") == "a"
