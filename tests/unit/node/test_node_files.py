"""Files on a host are replaced whole or not at all, for this account only."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from ipexctl.node.common.files import (
    decode_name,
    encode_name,
    explain_os_error,
    make_private_directory,
    read_json,
    write_atomically,
    write_json_atomically,
)
from ipexctl.node.run.output_buffer import MEMORY, OutputBuffer


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_replaced_and_is_private(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "status.json"
    path.write_text("old")
    path.chmod(0o644)
    write_atomically(path, b"new", durable=durable)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_names_need_not_be_utf8(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/caf\xe9"
    write_json_atomically(path, {"name": decode_name(b"caf\xe9")})
    assert encode_name(read_json(path)["name"]) == b"caf\xe9"


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "status.json"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError):
        write_atomically(path, b"new")
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"status.json": "old"}


@pytest.mark.parametrize("content", [None, b"", b"[]", b"nothing", b"\xff", b"[" * 100_000])
def test_what_is_no_object_is_read_as_an_empty_one(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "x").write_bytes(content)
    assert read_json(tmp_path / "x") == {}


def test_output_that_waits_on_disk_is_private_with_any_umask(tmp_path: Path) -> None:
    buffer = OutputBuffer(str(tmp_path / "spill/0.out"), 0, "stdout")
    umask = os.umask(0)
    try:
        buffer.put(b"x" * (MEMORY + 1))
    finally:
        os.umask(umask)
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")} == {
        "spill": 0o700,
        "0.out": 0o600,
    }
    buffer.close()


def test_a_private_directory_and_those_above_it_are_closed_with_any_umask(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        make_private_directory(tmp_path / "a/b")
        make_private_directory(os.fsencode(tmp_path) + b"/a/b/c")
    finally:
        os.umask(umask)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "a/b", "a/b/c")] == [0o700] * 3
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        make_private_directory(tmp_path / "file")


def test_an_error_of_the_filesystem_names_the_place_and_what_to_do() -> None:
    full = explain_os_error(OSError(errno.ENOSPC, "No space left on device", b"/data/\xff"))
    assert (encode_name(full.reason).startswith(b"/data/\xff: "), "--home" in full.fix) == (True, True)
    other = explain_os_error(OSError(errno.EIO, "Input/output error"), "the tree", "ipexctl doctor")
    assert (other.reason, other.fix) == ("the tree: Input/output error", "ipexctl doctor")
