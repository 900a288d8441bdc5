"""The windows of a run on the control machine: from node0, at the end of a followed run, and from the copy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fakes import FakeSession
from ipexctl.homes.local_copy import LocalCopy
from ipexctl.hosts.host import Host
from ipexctl.node.common.frames import CompressedFrameWriter, WindowsFile, encode_json, encode_windows
from ipexctl.node.run.meter.rates import HostRates, RankRates
from ipexctl.node.run.meter.window_file import MAX_FILE, HostWindows, RankWindows, WindowWriter, windows_of
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.outcome import HostError
from ipexctl.run.follow_run import Follower, RunEnded
from ipexctl.run.windows import RunWindows, fetch_windows, read_copied_windows
from record_helpers import run_record

HOST = Host(name="node1", address="10.0.0.1")
RECORD = run_record("r1", HOST, "/home/me/.ipexctl", "python3", world_size=2)
OF_RANK, OF_HOST = RankRates(2.0, 16.0, cpu=0.5), HostRates(5e7)


@pytest.fixture
def rundir(tmp_path: Path) -> Path:
    """On node0, with four windows of each of two ranks, and one of a host."""
    ranks = tmp_path / "run/ranks"
    ranks.mkdir(parents=True)
    for rank in range(2):
        writer = WindowWriter(str(ranks / f"{rank:04}.meter"), RankRates)
        for number in range(4):
            writer.add(number, OF_RANK, 10.0 * number, 1000.0 + 10 * number)
    host = WindowWriter(str(ranks / "0000.host"), HostRates)
    host.add(0, OF_HOST, 10.0, 1000.0)
    (ranks / "0000.out").write_bytes(b"hello\n")
    (ranks / "0001.meter.part").write_bytes(b"half")
    return tmp_path / "run"


EXPECTED = RunWindows(
    dict.fromkeys(range(2), RankWindows(990.0, 10.0, (OF_RANK,) * 4)),
    {0: HostWindows(990.0, 10.0, (OF_HOST,))},
)


def answer(*frames: bytes, **last: object) -> bytes:
    said = bytearray(b'{"event": "frames"}\n')
    writer = CompressedFrameWriter(said.extend)
    for frame in frames:
        writer.send(frame)
    writer.close()
    return bytes(said) + json.dumps({"event": "done", **last}).encode() + b"\n"


def test_windows_of_node0_are_fetched(rundir: Path) -> None:
    frames = list(map(encode_windows, windows_of(str(rundir))))
    assert len(frames) == 3
    assert fetch_windows(FakeSession(HOST, answer(*frames)), RECORD) == EXPECTED


def test_a_followed_run_leaves_its_windows_in_the_copy(rundir: Path, tmp_path: Path) -> None:
    status = {"schema": "ipexctl.status/1", "id": "r1", "state": "ok", "world_size": 2, "supervisor": {}, "ranks": []}
    output = answer(encode_json({"status": status}), *map(encode_windows, windows_of(str(rundir))), status=status)
    copy = tmp_path / "copy"
    follower = Follower(RECORD, lambda _: FakeSession(HOST, output), lambda _: None, Cancel(), copy=LocalCopy(copy))
    assert isinstance(follower.follow(), RunEnded)
    assert read_copied_windows(copy) == EXPECTED
    assert (copy / "ranks/0000.meter").stat().st_mode & 0o777 == 0o600


def test_a_copy_without_windows_has_none(tmp_path: Path) -> None:
    assert read_copied_windows(tmp_path) == RunWindows()


def test_damaged_files_are_left_out(rundir: Path) -> None:
    (rundir / "ranks/0001.meter").write_bytes(b"damaged")
    found = read_copied_windows(rundir)
    assert (sorted(found.ranks), sorted(found.hosts)) == ([0], [0])


@pytest.mark.parametrize(
    "file",
    [
        WindowsFile(2, ".meter", b""),
        WindowsFile(0, ".out", b"x"),
        WindowsFile(0, "/../x", b"x"),
        WindowsFile(0, ".meter", bytes(MAX_FILE + 1)),
    ],
)
def test_files_that_the_run_cannot_have_are_a_host_error(file: WindowsFile) -> None:
    with pytest.raises(HostError):
        fetch_windows(FakeSession(HOST, answer(encode_windows(file))), RECORD)


@pytest.mark.parametrize(("part", "count", "seconds"), [(1, 4, 10.0), (2, 2, 20.0), (4, 1, 40.0)])
def test_many_windows_are_thinned(rundir: Path, part: int, count: int, seconds: float) -> None:
    limit = sum(len(file.data) for file in windows_of(str(rundir))) // part
    found = fetch_windows(FakeSession(HOST, answer(*map(encode_windows, windows_of(str(rundir), limit)))), RECORD)
    assert {(windows.seconds, len(windows.windows)) for windows in found.ranks.values()} == {(seconds, count)}
