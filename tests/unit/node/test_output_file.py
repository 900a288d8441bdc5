"""The file of a rank's stream, and what follows it in memory while the disk is full."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ipexctl.node.common.frames import Note
from ipexctl.node.common.records import Attempt, RunStatus
from ipexctl.node.run.rank_connections import RankConnection
from ipexctl.node.run.recorder import OutputFile, Recorder, continued_status
from ipexctl.node.run.unstored_output import Held


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


@pytest.mark.parametrize(("before", "after"), [(b"a\n", b"a\nNOTEb\n"), (b"half", b"half\nNOTEb\n"), (b"", b"b\n")])
def test_output_of_the_next_start_follows_that_of_the_first(tmp_path: Path, before: bytes, after: bytes) -> None:
    path, notes, sizes = tmp_path / "0.out", list[Note](), list[int]()
    path.write_bytes(before)
    file = OutputFile(
        str(path), "h", sizes.append, lambda *_: None, notes.append, notes.clear, (0, "stdout"), is_continued=True
    )
    assert file.note("restart", {"attempt": 1, "restarts": 1, "reason": "r"})
    assert file.take(0, b"b\n")
    file.close()
    line = notes[0].data if notes else b""
    assert path.read_bytes() == after.replace(b"NOTE", line)
    assert sizes[-1] == path.stat().st_size


def test_status_of_the_next_start_has_the_first_as_an_attempt() -> None:
    first = RunStatus("r", "queued", started=10.0, reason="it was stopped", attempt=1, attempts=(Attempt(0, "x"),))
    status = continued_status(first, RunStatus("r", "starting", started=99.0, restarts=2), ended=50.0)
    assert (status.state, status.started, status.attempt, status.restarts) == ("starting", 10.0, 2, 4)
    assert [(attempt.reason, attempt.ended) for attempt in status.attempts] == [("x", None), ("it was stopped", 50.0)]
    killed = continued_status(first._replace(reason="", state="running"), RunStatus("r", "starting"), ended=50.0)
    assert "queue" in killed.attempts[-1].reason


def test_what_a_filesystem_loses_at_close_is_named_and_all_files_are_closed(tmp_path: Path) -> None:
    recorder = Recorder(str(tmp_path), RunStatus("r", "running"))
    peer = RankConnection(3, recorder.sinks(3, "node2"), recorder.windows(3))
    os.close(peer.sinks["out"]._number)  # as on NFS, where the quota was used up
    assert peer.close_files() == {"out": "Bad file descriptor"}
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(peer.sinks["err"]._number)
