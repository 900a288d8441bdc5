"""The protocol of a run's views: `commands/watch.py` follows a run and knows nothing else about what shows it.

Updates come from one thread, notices from any. A view never decides about the run: it asks through its maker's
callbacks (stop, detach). It may block `watch`, as a blocked reader does; the follower then waits, but never the run.
`ShownNotes` has the sentences for ipexctl's notes in a rank's output (`node/run/output_notes.py`).
"""

from __future__ import annotations

from typing import Final, Protocol

from ipexctl.node.common.frames import Note
from ipexctl.node.common.records import RunStatus
from ipexctl.node.run.output_notes import note_sentence
from ipexctl.run.follow import RunUpdate
from ipexctl.text import printable


class RunView(Protocol):
    """Entered while the run is followed; `finish` comes after that."""

    @property
    def figures_interval(self) -> float:
        """Seconds between updates in which only rank figures differ."""

    @property
    def drops_output(self) -> bool:
        """True if unread output is dropped once the call is cancelled."""

    @property
    def detached(self) -> bool:
        """True if the user detached by a key; the view has shown how to come back."""

    @property
    def broken(self) -> OSError | None:
        """Why the output can't be written any more, as with `| head`."""

    def __enter__(self) -> object: ...

    def __exit__(self, kind: object, *rest: object) -> None: ...

    def watch(self, update: RunUpdate) -> None:
        """Show an update."""

    def stopping(self) -> None:
        """The first signal stops the run. Called in a signal handler."""

    def not_stopping(self) -> None:
        """The run could not be stopped, and continues."""

    def abandon(self) -> None:
        """The second signal ends the process at once. Called in a signal handler."""

    def finish(self, exit_code: int, status: RunStatus | None, reason: str = "", fix: str = "") -> None:
        """`status`: the final one, if known; `reason`: why the run was not followed to its end."""


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
