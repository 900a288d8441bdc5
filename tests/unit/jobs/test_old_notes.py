"""Records of older versions: a note is found by its text, however its bytes arrive, and nothing else is cut."""

from __future__ import annotations

import pytest

from ipexctl.jobs.old_notes import OldNotes
from ipexctl.node.common.frames import Chunk, Note, OutputPart, StreamName

RESTART = b"[ipexctl: restart 1 of 2 after: rank 1 on node2 ended with exit code 5]\n"
GAP = b"[ipexctl: 7 bytes are missing here: there was no room for them on node2]\n"
CHECKPOINT = b"[ipexctl: checkpoint a: 2 files]\n"
FAILED = b"ipexctl: node2: train: No such file or directory\n"


def adapted(text: bytes, size: int, stream: StreamName = "stdout") -> list[OutputPart]:
    notes = OldNotes()
    pieces = [Chunk(0, stream, text[start : start + size], start, 2.0) for start in range(0, len(text), size)]
    return [part for piece in pieces for part in notes.feed(piece)] + list(notes.flush())


@pytest.mark.parametrize("size", [1, 2, 7, 64, 1000])
@pytest.mark.parametrize(
    ("text", "stream", "kinds"),
    [
        (b"a\n" + RESTART + b"b\n" + GAP + b"no end", "stdout", ["restart", "gap"]),
        (RESTART + RESTART + CHECKPOINT, "stderr", ["restart", "restart", "checkpoint"]),
        (FAILED + b"sh: oops\n", "stderr", ["not-started"]),
        (FAILED, "stdout", []),
        (b"[ipexctl: mine]\nx " + RESTART + b" " + GAP + b"[ipexctl: ", "stdout", []),
        (b"[ipexctl: restart " + b"1" * 9000 + b"\n\n\nipexctl", "stdout", []),
    ],
)
def test_notes_are_found_in_any_pieces(text: bytes, stream: StreamName, kinds: list[str], size: int) -> None:
    parts = adapted(text, size, stream)
    assert b"".join(part.data for part in parts) == text
    assert all(part.data == text[part.offset : part.end] and part.at == 2.0 for part in parts)
    assert [part.kind for part in parts if isinstance(part, Note)] == kinds


def test_a_note_has_its_values() -> None:
    (restart, gap, checkpoint) = (part for part in adapted(RESTART + GAP + CHECKPOINT, 50) if isinstance(part, Note))
    assert restart.fields == {"attempt": 1, "restarts": 2, "reason": "rank 1 on node2 ended with exit code 5"}
    assert gap.fields == {"bytes": 7, "host": "node2"}
    assert checkpoint.fields == {"text": "checkpoint a: 2 files"}


def test_output_that_was_not_chosen_breaks_no_line() -> None:
    notes = OldNotes()
    first, later = Chunk(0, "stdout", b"[ipexctl: rest", 0), Chunk(0, "stdout", b"art 1 of 2 after: x]\n", 99)
    assert [*notes.feed(first), *notes.feed(later)] == [first, later]
