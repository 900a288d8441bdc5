"""What each command does with an entry of its list, by what the target has there: one table for all commands.

`compare.py` finds the state, and `place.py` carries out the action. docs/sync.md shows the table; a test compares it.
"""

from __future__ import annotations

from typing import Literal, Mapping, NamedTuple, Optional, Tuple

State = Literal[
    "missing", "equal", "similar", "written", "changed", "both", "unknown",
    "directory", "no directory", "special", "below", "stranger", "gone", "extra",
]  # fmt: skip
Action = Literal[
    "send", "keep", "check", "replace", "replace and keep", "delete", "newest", "set aside", "refuse", "refuse all"
]  # fmt: skip
"""check: the hash decides. replace and keep: the host's file stays as NAME.node-1. newest: the newest complete copy of
all hosts replaces the others (`checkpoint_units.py`). refuse: the other entries are written. refuse all: nothing is."""
REFUSE_ALL: Action = "refuse all"

_Row = Tuple[Optional[Action], ...]
_RULES: Mapping[State, _Row] = {
    # The columns: sync, push, fetch, --checkpoint.
    "missing": ("send", "send", "send", "send"),
    "equal": ("keep", "keep", "keep", "keep"),
    # Same size, other time: only fetch compares times.
    "similar": (None, None, "check", None),
    # Other content, left unchanged since the last call wrote it.
    "written": ("replace", "replace", None, "newest"),
    # Changed by the host since the last call, which had written what is wanted.
    "changed": ("keep", None, None, "newest"),
    # Changed by the host since the last call, and in the source.
    "both": ("replace and keep", None, None, "newest"),
    # Other content that no earlier call wrote.
    "unknown": ("refuse", "refuse all", "replace", "newest"),
    # A directory in the place of a file or link, and the other way round.
    "directory": ("refuse", "refuse all", "refuse", "refuse all"),
    "no directory": ("refuse", "refuse all", "refuse", "refuse all"),
    # A FIFO, socket or device.
    "special": ("refuse", "refuse all", "refuse", "refuse all"),
    # Below a refused entry, or a directory that the host made a link.
    "below": ("refuse", "refuse all", "refuse", "refuse all"),
    # Another account's entry. Nobody else can write in a home, where trees of sync are.
    "stranger": (None, "refuse all", "refuse", "refuse all"),
    # Not in the list any more, and unchanged since the last call wrote it; or not in the list otherwise.
    "gone": ("delete", None, None, "set aside"),
    "extra": ("keep", "keep", "keep", "newest"),
}


class Policy(NamedTuple):
    actions: Mapping[State, Action]
    umask: bool = True
    """Whether the account's umask limits modes; otherwise they are the list's."""
    owner: int = 0
    """Permissions that the owner always gets."""
    checks_again: bool = False
    """Hash received files once more before they get their names: others can write in the directory above."""
    marks: bool = False
    """Mark each file, so that a later call may replace it while it is unchanged."""

    def mode_of(self, mode: int, umask: int) -> int:
        """Return the mode that a file or directory gets. `mode`: in the list; `umask`: of the account."""
        return (mode & 0o777 & ~umask if self.umask else mode) | self.owner


def _column(number: int) -> dict[State, Action]:
    return {state: action for state, row in _RULES.items() if (action := row[number]) is not None}


TREE = Policy(_column(0), umask=False)
PATH = Policy(_column(1), owner=0o600, checks_again=True, marks=True)
FORCED_PATH = PATH._replace(actions={**PATH.actions, "unknown": "replace"})
HUB = FORCED_PATH._replace(checks_again=False, marks=False)
"""A hub's cache: in a home, where nobody else writes."""
DOWNLOAD = Policy(_column(2))
CHECKPOINT = Policy(_column(3), owner=0o600)
