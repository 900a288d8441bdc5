"""Sentences for ipexctl's notes in a rank's output (`node/run/output_notes.py`), the same in every view. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ipexctl.node.run.output_notes import note_sentence
from ipexctl.text import printable

if TYPE_CHECKING:
    from ipexctl.node.common.frames import Note

_OF_THE_RUN: Final = ("restart", "checkpoint", "job-limit")


class ShownNotes:
    """Shows each note once: a restart is in the output of every rank."""

    def __init__(self) -> None:
        self._shown: set[tuple[str, str]] = set()

    def text_of(self, note: Note) -> str | None:
        """None if it was shown for another rank."""
        text = printable(note_sentence(note))
        if note.kind not in _OF_THE_RUN:
            return f"rank {note.rank}, {note.stream}: {text}"
        key = note.kind, text
        if key in self._shown:
            return None
        self._shown.add(key)
        return text
