"""Compares a list of entries with a target, and says what happens to each. Changes nothing."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, Iterable, Iterator, Literal, NamedTuple, Protocol

from ipexctl.node.common.answer import AgentError

if TYPE_CHECKING:
    import os

    from ipexctl.node.files.manifest import ManifestEntry
    from ipexctl.node.files.policies import Action, Policy, State

Left = Literal["nothing", "this", "wanted", "other"]
"""What the last call left at a path, other than the wanted content: nothing; what is there; the wanted content, and the
host changed it; or a third content."""


Match = Literal["equal", "similar", "other"]


class EntryComparer(Protocol):
    def match(self, entry: ManifestEntry, status: os.stat_result) -> Match:
        """Compare a file or link with an entry of the same kind."""

    def left_of(self, entry: ManifestEntry, status: os.stat_result) -> Left:  # noqa: ARG002
        """Return what the last call left at the path of an entry that has another content. Without a record, it left
        nothing."""
        return "nothing"  # without a record


class TargetView(EntryComparer, Protocol):
    def status_of(self, entry: ManifestEntry) -> os.stat_result | None:
        """Return the status of what is at an entry's path, links not followed; None if nothing is, or if a parent is no
        directory."""


class Decision(NamedTuple):
    entry: ManifestEntry
    state: State
    action: Action


class Comparison(NamedTuple):
    decisions: tuple[Decision, ...]

    def entries(self, *actions: Action) -> list[ManifestEntry]:
        """Return the entries with one of these actions, in the order of the list."""
        return [decision.entry for decision in self.decisions if decision.action in actions]

    def in_state(self, *states: State) -> list[ManifestEntry]:
        """Return the entries in one of these states, in the order of the list."""
        return [decision.entry for decision in self.decisions if decision.state in states]

    @property
    def to_make(self) -> list[ManifestEntry]:
        """The entries that are to be written."""
        return self.entries("send", "replace", "replace and keep")


KINDS = {"d": stat.S_IFDIR, "f": stat.S_IFREG, "l": stat.S_IFLNK}


def is_special(status: os.stat_result) -> bool:
    """True for a FIFO, socket or device."""
    return stat.S_IFMT(status.st_mode) not in KINDS.values()


def refuse_special(path: str, status: os.stat_result | None, policy: Policy) -> None:
    """Raise an AgentError for a FIFO, socket or device, which no policy replaces."""
    if status is not None and is_special(status) and policy.actions["special"] in ("refuse", "refuse all"):
        raise AgentError(f"{path} is a FIFO, socket or device", "name another path")


def state_of(entry: ManifestEntry, status: os.stat_result | None, target: EntryComparer) -> State:
    """Return the state of what is at an entry's path. `status`: None if nothing is there."""
    if status is None:
        return "missing"
    kind = stat.S_IFMT(status.st_mode)
    if is_special(status):
        return "special"
    if kind == KINDS[entry.kind]:
        match = "equal" if entry.kind == "d" else target.match(entry, status)
        if match != "other":
            return match
    if kind == stat.S_IFDIR:
        return "directory"
    left = target.left_of(entry, status)
    if left == "nothing":
        return "no directory" if entry.kind == "d" else "unknown"
    return "written" if left == "this" else "changed" if left == "wanted" else "both"


def compare(entries: Iterable[ManifestEntry], target: TargetView, policy: Policy) -> Comparison:
    """Return what is to be done with each entry. `entries`: each directory before what is below it."""
    return Comparison(tuple(_decide(entries, target, policy)))


def _decide(entries: Iterable[ManifestEntry], target: TargetView, policy: Policy) -> Iterator[Decision]:
    refused: set[str] = set()
    for entry in entries:
        is_below = bool(entry.path) and entry.path.rpartition("/")[0] in refused
        state: State = "below" if is_below else state_of(entry, target.status_of(entry), target)
        action = policy.actions[state]
        if action in ("refuse", "refuse all") or state == "changed":
            refused.add(entry.path)
        yield Decision(entry, state, action)
