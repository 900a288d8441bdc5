"""The file of a rank's stream, and what follows it in memory while the disk is full."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ipexctl.node.common.frames import Note
from ipexctl.node.run.recorder import OutputFile
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
