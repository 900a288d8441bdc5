"""What each command does with an entry of its list, by what the target has there: one table for all commands.

`compare.py` finds the state, and `place.py` carries out the action. docs/sync.md shows the table; a test compares it.
"""

from __future__ import annotations

from typing import Literal, Mapping, NamedTuple

State = Literal[
    "missing",
    "equal",
    "similar",  # same size, other time: only fetch compares times
    "written",  # other content, left unchanged since the last call wrote it
    "changed",  # by the host since the last call; what the last call wrote is still wanted
    "both",  # changed by the host since the last call, and in the source
    "unknown",  # other content, not written by an earlier call
    "directory",  # in the place of a file or a link
    "no directory",  # a file or a link in the place of a directory
    "below",  # below a refused entry, or a directory that the host made a link
    "stranger",  # another account's entry
    "gone",  # from the list; left unchanged since the last call wrote it
    "extra",  # not in the list otherwise
]

Action = Literal[
    "send",
    "keep",
    "check",  # the hash decides
    "replace",
    "replace and keep",  # the host's file as NAME.node-1
    "delete",
    "newest",  # complete copy replaces the others (checkpoint_units.py)
    "set aside",
    "refuse",  # this entry; the others are written
    "refuse all",  # nothing is written
]


class Policy(NamedTuple):
    actions: Mapping[State, Action]
    umask: bool
    """Whether the account's umask limits modes; otherwise they are the list's."""
    keeps_times: bool
    owner: int = 0
    """Permissions that the owner always gets."""
    checks_again: bool = False
    """Hash received files once more before they get their names: others can write in the directory above."""

    def mode_of(self, mode: int, umask: int) -> int:
        return (mode & 0o777 & ~umask if self.umask else mode) | self.owner


TREE = Policy(
    {
        "missing": "send",
        "equal": "keep",
        "written": "replace",
        "changed": "keep",
        "both": "replace and keep",
        "unknown": "refuse",
        "directory": "refuse",
        "no directory": "refuse",
        "below": "refuse",
        "gone": "delete",
        "extra": "keep",
    },
    umask=False,
    keeps_times=False,
)
"""The project. Nobody else can write in a home, so there are no entries of strangers."""

PATH = Policy(
    {
        "missing": "send",
        "equal": "keep",
        "unknown": "refuse all",
        "directory": "refuse all",
        "no directory": "refuse all",
        "below": "refuse all",
        "stranger": "refuse all",
        "extra": "keep",
    },
    umask=True,
    owner=0o600,
    keeps_times=False,
    checks_again=True,
)
FORCED_PATH = PATH._replace(actions={**PATH.actions, "unknown": "replace"})
HUB = FORCED_PATH._replace(checks_again=False)
"""A hub's cache: in a home, where nobody else writes."""

DOWNLOAD = Policy(
    {
        "missing": "send",
        "equal": "keep",
        "similar": "check",
        "unknown": "replace",
        "directory": "refuse",
        "no directory": "refuse",
        "below": "refuse",
        "stranger": "refuse",
        "extra": "keep",
    },
    umask=True,
    keeps_times=True,
)

CHECKPOINT = Policy(
    {
        "missing": "send",
        "equal": "keep",
        "written": "newest",
        "changed": "newest",
        "both": "newest",
        "unknown": "newest",
        "directory": "refuse all",
        "no directory": "refuse all",
        "below": "refuse all",
        "stranger": "refuse all",
        "gone": "set aside",
        "extra": "newest",
    },
    umask=True,
    owner=0o600,
    keeps_times=True,
)

STORE = Policy(
    {"missing": "send", "equal": "keep", "unknown": "replace", "directory": "refuse all", "extra": "keep"},
    umask=True,
    keeps_times=False,
)
"""Wheels, named by their hash: other content is damage."""
