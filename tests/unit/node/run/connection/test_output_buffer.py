"""Output that is not acknowledged: what is sent, kept in memory or on disk, and sent again; its files on node0."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ipexctl.node.common.frames import Chunk, Note
from ipexctl.node.common.records import RunStatus
from ipexctl.node.run.connection.output_buffer import MAX_UNACKNOWLEDGED, MEMORY, OutputBuffer
from ipexctl.node.run.connection.spill_file import SpillFile
from ipexctl.node.run.record.recorder import OutputFile, Recorder
from ipexctl.node.run.record.unstored_output import Held
from ipexctl.node.run.supervisor.rank_connections import RankConnection

PIECE = 1 << 16


class Supervisor:
    """Takes chunks, and knows how much it has of the stream."""

    def __init__(self, buffer: OutputBuffer) -> None:
        self.buffer = buffer
        self.received = b""

    def take(self) -> int:
        """The bytes that came."""
        before = len(self.received)
        for chunk in self.buffer.take():
            assert chunk.offset == len(self.received)
            self.received += chunk.data
        return len(self.received) - before

    def acknowledge(self) -> None:
        self.buffer.acknowledge(len(self.received))


def pieces(count: int) -> list[bytes]:
    return [bytes([number % 251]) * PIECE for number in range(count)]


@pytest.fixture
def spill(tmp_path: Path) -> SpillFile:
    return SpillFile(str(tmp_path / "spill" / "0000.out"))


@pytest.mark.parametrize(("size", "is_on_disk"), [(MEMORY // PIECE - 2, False), (MEMORY // PIECE + 1, True)])
def test_memory_first_then_disk_and_all_of_it_in_order(spill: SpillFile, size: int, is_on_disk: bool) -> None:
    buffer = OutputBuffer(spill, 0, "stdout")
    output = pieces(size)
    for piece in output:
        buffer.put(piece)
    assert spill.is_empty is not is_on_disk
    supervisor = Supervisor(buffer)
    while supervisor.take():
        supervisor.acknowledge()
    assert supervisor.received == b"".join(output)
    assert (buffer.end, buffer.is_empty) == (size * PIECE, True)


def test_new_output_waits_behind_that_on_disk(spill: SpillFile) -> None:
    buffer = OutputBuffer(spill, 0, "stdout")
    output = [b"a" * (MEMORY - PIECE), b"b" * PIECE, b"c" * 10]
    for piece in output:
        buffer.put(piece)
    supervisor = Supervisor(buffer)
    while supervisor.take():
        supervisor.acknowledge()
    assert supervisor.received == b"".join(output)


def test_no_more_is_sent_than_may_be_unacknowledged(spill: SpillFile) -> None:
    buffer = OutputBuffer(spill, 0, "stdout")
    for piece in pieces(60):
        buffer.put(piece)
    supervisor = Supervisor(buffer)
    assert supervisor.take() == MAX_UNACKNOWLEDGED
    assert supervisor.take() == 0
    supervisor.acknowledge()
    assert supervisor.take() == 60 * PIECE - MAX_UNACKNOWLEDGED


@pytest.mark.parametrize("have", [0, 1, PIECE - 1, PIECE, 3 * PIECE + 7])
def test_after_a_reconnect_output_goes_on_where_the_supervisor_has_it(spill: SpillFile, have: int) -> None:
    buffer = OutputBuffer(spill, 0, "stdout")
    output = b"".join(pieces(5))
    for piece in pieces(5):
        buffer.put(piece)
    Supervisor(buffer).take()
    buffer.rewind(have)
    rest = list(buffer.take())
    assert rest[0].offset == have
    assert output[:have] + b"".join(chunk.data for chunk in rest) == output


def test_a_start_after_others_continues_their_offsets(spill: SpillFile) -> None:
    buffer = OutputBuffer(spill, 3, "stderr", start=100)
    buffer.put(b"text")
    assert list(buffer.take()) == [Chunk(3, "stderr", b"text", 100)]


def test_a_full_disk_loses_output_and_nothing_else(spill: SpillFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    buffer = OutputBuffer(spill, 0, "stdout")
    buffer.put(b"a" * MEMORY)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", is_full)
        buffer.put(b"b" * PIECE)
    sent = list(buffer.take())
    buffer.acknowledge(MEMORY)
    buffer.put(b"c")
    (later,) = buffer.take()
    assert ([chunk.offset for chunk in sent], later.offset, later.data) == ([0], MEMORY + PIECE, b"c")


def test_a_damaged_file_loses_what_is_in_it(spill: SpillFile, tmp_path: Path) -> None:
    buffer = OutputBuffer(spill, 0, "stdout")
    buffer.put(b"a" * MEMORY)
    buffer.put(b"b" * PIECE)
    (tmp_path / "spill" / "0000.out").write_bytes(b"")
    list(buffer.take())
    buffer.acknowledge(MEMORY)
    assert list(buffer.take()) == []
    assert buffer.is_empty
    buffer.close()
    assert list((tmp_path / "spill").iterdir()) == []


@pytest.mark.parametrize(("held", "is_whole"), [(b"a line\n", True), (b"half a line", False)])
def test_a_note_after_held_output_ends_a_line_only_if_it_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: bytes, is_whole: bool
) -> None:
    chunks: list[bytes] = []
    notes: list[Note] = []

    def hold(_: int, data: bytes) -> Held:
        chunks.append(data)
        return Held(0, len(data))

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    file = OutputFile(str(tmp_path / "0.out"), "h", lambda _: None, hold, notes.append, notes.clear, (0, "stdout"))
    assert file.take(0, b"stored\n")
    monkeypatch.setattr(os, "pwrite", full)
    assert file.take(7, held)
    assert file.note("gap", {"bytes": 1, "host": "h"})
    assert chunks[:-1] == ([held] if is_whole else [held, b"\n"])
    assert len(notes) == 1
    file.close()


def test_what_a_filesystem_loses_at_close_is_named_and_all_files_are_closed(tmp_path: Path) -> None:
    recorder = Recorder(str(tmp_path), RunStatus("r", "running"))
    peer = RankConnection(3, recorder.sinks(3, "node2"), recorder.windows(3))
    os.close(peer.sinks["out"]._number)  # as on NFS, where the quota was used up
    assert peer.close_files() == {"out": "Bad file descriptor"}
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(peer.sinks["err"]._number)
