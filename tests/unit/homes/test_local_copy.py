"""The local copy of a run: every byte once, also with several followers, and complete or marked as incomplete."""

from __future__ import annotations

import errno
import json
import os
import time
import zlib
from pathlib import Path
from typing import Any

import pytest

from fakes import FakeSession
from ipexctl.homes.local_copy import LocalCopy, read_final_status, remove_copy
from ipexctl.hosts.host import Host
from ipexctl.node.common.files import disk_usage
from ipexctl.node.common.frames import Chunk, CompressedFrameWriter, encode_chunk, encode_json
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.outcome import HostError, Notice
from ipexctl.run.follow_run import Follower, RunEnded, RunUpdate, follow_copy
from record_helpers import run_record

HOST = Host(name="node1", address="10.0.0.1")
TEXT = b"".join(b"line %d \xff\r\n" % number for number in range(500))


def document(state: str, size: int = 2) -> dict[str, Any]:
    ranks = [{"rank": rank, "host": "node1", "state": state} for rank in range(size)]
    record = {"schema": "ipexctl.status/1", "id": "r1", "state": state, "world_size": size, "supervisor": {}}
    return {**record, "ranks": ranks, "odd": [1]}


def kept(directory: Path, rank: int = 0) -> bytes:
    return (directory / "ranks" / f"{rank:04}.out").read_bytes()


def test_two_concurrent_followers_write_every_byte_once(tmp_path: Path) -> None:
    one, other = LocalCopy(tmp_path / "r1"), LocalCopy(tmp_path / "r1")
    for start in range(0, len(TEXT), 700):
        one.write(Chunk(0, "stdout", TEXT[start : start + 700], start))
    for start in range(0, len(TEXT), 333):
        other.write(Chunk(0, "stdout", TEXT[start : start + 333], start))
        if start == 333 * 4:
            one.finish(document("ok"))
    other.finish(document("ok"))
    assert kept(tmp_path / "r1") == TEXT
    assert sorted(path.name for path in (tmp_path / "r1").iterdir()) == ["ranks", "status.json"]


def test_new_follower_continues_at_the_end_of_the_copy(tmp_path: Path) -> None:
    for upto in (1000, 300, len(TEXT)):
        copy = LocalCopy(tmp_path / "r1")
        copy.write_status(document("running"))
        for start in range(0, upto, 100):
            copy.write(Chunk(0, "stdout", TEXT[start : min(upto, start + 100)], start))
        copy.close()
        assert copy.error is None
    assert kept(tmp_path / "r1") == TEXT


def test_copy_is_complete_only_after_finish(tmp_path: Path) -> None:
    copy = LocalCopy(tmp_path / "r1")
    copy.write_status(document("running"))
    copy.write_status(document("ok"))  # the last bytes are still to come
    assert read_final_status(tmp_path / "r1") is None
    copy.finish(document("ok"))
    whole = read_final_status(tmp_path / "r1")
    assert whole is not None
    assert whole.state == "ok"
    assert json.loads((tmp_path / "r1" / "status.json").read_text()) == document("ok")


def test_status_is_written_when_the_state_changes_and_else_every_five_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    copy, path = LocalCopy(tmp_path / "r1"), tmp_path / "r1/status.json"
    copy.write(Chunk(0, "stdout", b"x", 0))
    written = []
    for clock[0], state in ((1000.0, "starting"), (1001.0, "running"), (1005.9, "running"), (1006.0, "running")):
        path.unlink(missing_ok=True)
        copy.write_status(document(state))
        written.append(path.exists())
    assert written == [True, True, False, True]


def test_copy_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    copy = LocalCopy(tmp_path / "runs" / "r1")
    copy.write(Chunk(0, "stderr", b"x", 0))
    copy.finish(document("ok"))
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "runs").rglob("*")}
    assert modes == {"r1": 0o700, "ranks": 0o700, "0000.err": 0o600, "status.json": 0o600}


def test_rank_without_output_has_no_file(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    copy = LocalCopy(runs / "r1")
    copy.write(Chunk(1, "stdout", b"hello\n", 0))
    copy.finish(document("ok"))
    watched: list[RunUpdate] = []
    follow_copy(run_record("r1", HOST, "/nowhere", "python3", world_size=2), runs, watched.append, Cancel())
    assert [event for event in watched if isinstance(event, Chunk)] == [Chunk(1, "stdout", b"hello\n")]


def test_copy_is_read_in_order_of_time(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    chunks = [Chunk(n % 2, "stdout", b"%d\n" % n, n // 2 * 2, 100.0 + n) for n in range(8)]
    for upto in (5, 8):  # the second follower begins at the first line again
        copy = LocalCopy(runs / "r1")
        for chunk in chunks[:upto]:
            copy.write(chunk)
        copy.finish(document("ok"))
    watched: list[RunUpdate] = []
    follow_copy(run_record("r1", HOST, "/nowhere", "python3", world_size=2), runs, watched.append, Cancel())
    assert [event for event in watched if isinstance(event, Chunk)] == chunks


def test_more_streams_than_open_files_are_written(tmp_path: Path) -> None:
    copy = LocalCopy(tmp_path / "r1")
    for offset in range(3):
        for rank in range(400):
            copy.write(Chunk(rank, "stdout", b"abc"[offset : offset + 1], offset))
    copy.finish(document("ok", 400))
    assert all(kept(tmp_path / "r1", rank) == b"abc" for rank in range(400))


def test_remove_copy_removes_one_copy_only(tmp_path: Path) -> None:
    for run in ("r1", "r2"):
        copy = LocalCopy(tmp_path / run)
        copy.write(Chunk(0, "stdout", b"x" * 5000, 0))
        copy.finish(document("ok"))
    assert disk_usage(tmp_path / "r1") >= 5000
    remove_copy(tmp_path, "r1")
    remove_copy(tmp_path, "r1")
    assert disk_usage(tmp_path / "r1") == 0
    assert kept(tmp_path / "r2") == b"x" * 5000


def following(tmp_path: Path, *frames: bytes, last: dict[str, Any]) -> tuple[list[RunUpdate], Follower]:
    said = bytearray(b'{"event": "frames"}\n')
    writer = CompressedFrameWriter(said.extend)
    for frame in frames:
        writer.send(frame)
        writer.flush()
    writer.close()
    return followed(tmp_path, bytes(said) + json.dumps(last).encode() + b"\n")


def followed(tmp_path: Path, output: bytes) -> tuple[list[RunUpdate], Follower]:
    watched: list[RunUpdate] = []
    record = run_record("r1", HOST, "/home/me/.ipexctl", "python3", world_size=2)
    copy = LocalCopy(tmp_path / "r1")
    return watched, Follower(record, lambda _: FakeSession(HOST, output), watched.append, Cancel(), copy=copy)


def chunk(offset: int, data: bytes) -> bytes:
    return encode_chunk(Chunk(0, "stdout", data, offset))


def test_followed_output_is_copied_unchanged(tmp_path: Path) -> None:
    status = encode_json({"status": document("running")})
    pieces = [chunk(start, TEXT[start : start + 900]) for start in range(0, len(TEXT), 900)]
    watched, follower = following(tmp_path, status, *pieces, last={"event": "done", "status": document("ok")})
    assert follower.follow() == watched[-1]
    assert b"".join(event.data for event in watched if isinstance(event, Chunk)) == TEXT
    assert kept(tmp_path / "r1") == TEXT


def test_full_disk_is_reported_once_and_following_continues(tmp_path: Path) -> None:
    place = tmp_path / "r1" / "ranks"
    place.mkdir(parents=True)
    (place / "0000.out").symlink_to("/dev/full")
    pieces = [chunk(start, TEXT[start : start + 900]) for start in range(0, len(TEXT), 900)]
    watched, follower = following(tmp_path, *pieces, last={"event": "done", "status": document("ok")})
    follower.follow()
    assert b"".join(event.data for event in watched if isinstance(event, Chunk)) == TEXT
    (said,) = [event for event in watched if isinstance(event, Notice)]
    assert said.warning
    assert "No space left on device" in said.text
    assert isinstance(watched[-1], RunEnded)
    assert read_final_status(tmp_path / "r1") is None


def test_quota_error_on_close_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    close = os.close

    def full(number: int) -> None:
        is_output = os.readlink(f"/proc/self/fd/{number}").startswith(str(tmp_path))
        close(number)
        if is_output:
            raise OSError(errno.EDQUOT, "Disk quota exceeded")

    last = {"event": "done", "status": document("ok")}
    watched, follower = following(tmp_path, chunk(0, TEXT), encode_chunk(Chunk(1, "stderr", TEXT)), last=last)
    monkeypatch.setattr("os.close", full)
    ended = follower.follow()
    monkeypatch.undo()
    assert ended == watched[-1]
    (said,) = [event for event in watched if isinstance(event, Notice)]
    assert said.warning
    assert "Disk quota exceeded" in said.text
    assert read_final_status(tmp_path / "r1") is None


@pytest.mark.parametrize(
    "output",
    [
        b"not compressed",
        zlib.compress(b"\xff" * 100),
        zlib.compress(b"\0\0\0\1Jx"),
        zlib.compress(b"\0\0\0\1O\0"),
        zlib.compress(b"\0\0\0\0X"),
        zlib.compress(encode_chunk(Chunk(2, "stdout", b"of no rank"))),
    ],
)
def test_malformed_frames_are_a_host_error(tmp_path: Path, output: bytes) -> None:
    watched, follower = followed(tmp_path, b'{"event": "frames"}\n' + output)
    with pytest.raises(HostError, match="can't be read"):
        follower.follow()
    assert watched == []


@pytest.mark.parametrize("mpirun", [["pid", "tail"], "x", 3, {"tail": 5}, {"tail": [None, {}]}])
def test_a_malformed_record_of_mpirun_does_not_end_the_call(tmp_path: Path, mpirun: object) -> None:
    watched, follower = following(tmp_path, last={"event": "done", "status": {**document("failed"), "mpirun": mpirun}})
    assert follower.follow() == watched[-1]
