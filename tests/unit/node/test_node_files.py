"""Files on a host are replaced atomically and are readable by their owner only."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from ipexctl.node.common.answer import explain_os_error
from ipexctl.node.common.files import (
    decode_name,
    encode_name,
    make_private_directory,
    read_json,
    write_atomically,
    write_json_atomically,
)
from ipexctl.node.files.file_sender import RunFiles, directory_of
from ipexctl.node.run.connection.output_buffer import MEMORY, OutputBuffer
from ipexctl.node.run.connection.spill_file import SpillFile


@pytest.fixture
def open_umask() -> Iterator[None]:
    umask = os.umask(0)
    yield
    os.umask(umask)


@pytest.mark.parametrize("durable", [True, False])
def test_write_atomically_replaces_the_file_with_mode_600(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "status.json"
    path.write_text("old")
    path.chmod(0o644)
    write_atomically(path, b"new", durable=durable)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("free", [True, False])
def test_write_atomically_ends_when_all_temporary_names_are_taken(tmp_path: Path, free: bool) -> None:
    for number in range(256):
        (tmp_path / f".a.{os.getpid():06x}{number:02x}.new").touch()
    if free:
        (tmp_path / f".a.{os.getpid():06x}7f.new").unlink()
        write_atomically(tmp_path / "a", b"new")
    else:
        with pytest.raises(FileExistsError):
            write_atomically(tmp_path / "a", b"new")
    assert (tmp_path / "a").exists() is free
    assert len(list(tmp_path.iterdir())) == 256


@pytest.mark.parametrize("is_of_user", [True, False])
def test_temporary_files_of_killed_calls_are_removed_in_a_directory_of_the_user(
    tmp_path: Path, is_of_user: bool
) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    names = {
        "old": f".a.toml.{gone.pid:06x}7f.new", "young": f".a.toml.{gone.pid:06x}80.new",
        "alive": f".a.toml.{os.getpid():06x}7f.new", "other": f".b.toml.{gone.pid:06x}7f.new",
        "directory": f".a.toml.{gone.pid:06x}81.new",
    }  # fmt: skip
    for kind, name in names.items():
        (tmp_path / name).mkdir() if kind == "directory" else (tmp_path / name).touch()
        age = 5 if kind == "young" else 61
        os.utime(tmp_path / name, (time.time() - age, time.time() - age))
    write_atomically(tmp_path / "a.toml", b"new", is_of_user=is_of_user)
    kept = {"a.toml", *names.values()} - ({names["old"]} if is_of_user else set())
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_json_files_keep_names_that_are_not_utf8(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/caf\xe9"
    write_json_atomically(path, {"name": decode_name(b"caf\xe9")})
    assert encode_name(read_json(path)["name"]) == b"caf\xe9"


def test_failed_write_keeps_the_old_file_and_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "status.json"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError):
        write_atomically(path, b"new")
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"status.json": "old"}


@pytest.mark.parametrize("content", [None, b"", b"[]", b"nothing", b"\xff", b"[" * 100_000])
def test_read_json_returns_an_empty_object_for_anything_else(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "x").write_bytes(content)
    assert read_json(tmp_path / "x") == {}


@pytest.mark.usefixtures("open_umask")
def test_spilled_output_is_private_with_any_umask(tmp_path: Path) -> None:
    buffer = OutputBuffer(SpillFile(str(tmp_path / "spill/0.out")), 0, "stdout")
    buffer.put(b"x" * (MEMORY + 1))
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")} == {
        "spill": 0o700,
        "0.out": 0o600,
    }
    buffer.close()


@pytest.mark.usefixtures("open_umask")
def test_make_private_directory_closes_new_parents_too_with_any_umask(tmp_path: Path) -> None:
    make_private_directory(tmp_path / "a/b")
    make_private_directory(os.fsencode(tmp_path) + b"/a/b/c")
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "a/b", "a/b/c")] == [0o700] * 3
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        make_private_directory(tmp_path / "file")


def test_os_errors_are_explained_with_path_and_fix() -> None:
    full = explain_os_error(OSError(errno.ENOSPC, "No space left on device", b"/data/\xff"))
    assert (encode_name(full.reason).startswith(b"/data/\xff: "), "--home" in full.fix) == (True, True)
    other = explain_os_error(OSError(errno.EIO, "Input/output error"), "the tree", "ipexctl doctor")
    assert (other.reason, other.fix) == ("the tree: Input/output error", "ipexctl doctor")


def test_traces_of_a_profile_are_in_the_results_and_any_other_path_in_the_working_directory(tmp_path: Path) -> None:
    run: RunFiles = {"home": str(tmp_path), "id": "r", "cwd": "/tree", "has_record": True, "dest": "."}
    assert directory_of(run, "profile/") == b"/tree"
    (tmp_path / "results" / "r" / "profile").mkdir(parents=True)
    results = os.fsencode(tmp_path / "results" / "r")
    found = [directory_of(run, path) for path in ("profile", "profile/rank-0.json.gz", "profiles", "a/profile")]
    assert found == [results, results, b"/tree", b"/tree"]


@pytest.mark.parametrize(("left", "told"), [(0, "no inodes are left"), (8, "8 inodes are left"), (100_000, "")])
def test_a_full_disk_is_named_by_its_path_with_the_inodes_that_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int, told: str
) -> None:
    """The name of a file in an opened directory is no path."""
    status = SimpleNamespace(f_files=200_000, f_favail=left)
    monkeypatch.setattr("ipexctl.node.common.answer.os.statvfs", lambda _: status)
    error = explain_os_error(OSError(errno.ENOSPC, "No space left on device", "e3b0c442"), str(tmp_path / "home"))
    assert error.reason.startswith(f"{tmp_path / 'home'}: the disk is full")
    assert (told in error.reason, "inodes" in error.reason) == (True, bool(told))
