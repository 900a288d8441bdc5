"""The notes that a start shows: each once, and not again at the next start of this script with these arguments."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

from ipexctl.launch.spec import RunSpec
from ipexctl.sync.path_notes import PathNotes

_SHOWN: Final = PathNotes("start-notes")
_CALLS_KEPT: Final = 30


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:12]


class ShownNotes:
    def __init__(self, on_note: Callable[[str], None], spec: RunSpec) -> None:
        self._on_note, self._spec = on_note, spec
        self._noted = set[str]()
        self._before = frozenset[str]()

    def show(self, text: str) -> None:
        """Commands in it get the options of the call."""
        text = self._spec.options.apply(text)
        if text not in self._noted:
            self._noted.add(text)
            if _digest(text) not in self._before:
                self._on_note(text)

    def remember(self) -> Callable[[], None]:
        """Show no note that the last start has shown. Returns what keeps this call's notes: one that is gone and comes
        back is new."""
        asked, place = self._spec.asked, str(self._spec.project.root)
        call = _digest(repr((asked.argv, asked.exports)))
        known = {name: frozenset(words) for name, *words in map(str.split, _SHOWN.text_of(place).splitlines())}
        self._before = known.pop(call, frozenset())

        def keep() -> None:
            kept = {**dict(list(known.items())[-_CALLS_KEPT:]), call: frozenset(map(_digest, self._noted))}
            if kept[call] != self._before:
                _SHOWN.add([place], "\n".join(" ".join((name, *sorted(words))) for name, words in kept.items()))

        return keep
