"""Whether all ranks of a process group take part: all of them get an empty reason, or none does.

The ranks ask each other through the group's store, because a rank without hooks, as with `python -E`, would never join
a collective. Rank 0 collects the offers. After PATIENCE seconds, any rank may publish a decision, so nobody waits for a
rank that never answers. Anybody on the ranks' network can write into the store, so it has only codes, never a text that
is printed, and nothing else is decided by its values (`shared_allreduce.py: gathered`).
"""

from __future__ import annotations

import time
from typing import Any

PATIENCE = 5.0
UNANSWERED = "did not answer within"
LONGEST_PAUSE = 0.05
WRITING = 60.0
"""Seconds for the rank that raised the claim to publish."""
YES, NO, SILENT = "+", "-", "?"
"""A rank offers YES or NO. The decision is YES, or NO or SILENT with the number of a rank."""


class Round:
    """One question to all ranks of a group: whether all take part."""

    def __init__(self, store: Any, rank: int, size: int, name: str, timeout: float = PATIENCE) -> None:
        self._store, self._rank, self._size, self._name = store, rank, size, f"ipexctl/allreduce/{name}"
        self._timeout = timeout

    def decide(self, reason: str) -> str:
        """Ask all ranks whether they take part. Return why not all do; empty if all do. `reason`: why this rank does
        not; empty if it does."""
        until = time.monotonic() + self._timeout
        self._store.set(self._key(self._rank), NO if reason else YES)
        published = f"{self._name}/decision"
        if self._rank == 0:
            decision = self._collect(until)
        elif self._wait([published], until):
            return self._explained(self._read(published), reason)
        else:
            decision = f"{SILENT}0"
        if self._store.add(f"{self._name}/claim", 1) == 1:
            self._store.set(published, decision)
        elif not self._wait([published], time.monotonic() + WRITING):
            return "no rank published a decision"
        else:
            decision = self._read(published)
        return self._explained(decision, reason)

    def _collect(self, until: float) -> str:
        """Return the decision by what the ranks offer: the first that is silent, else the first that refuses, else
        YES."""
        keys = [self._key(rank) for rank in range(self._size)]
        is_complete = self._wait(keys, until)
        for rank, key in enumerate(keys):
            if not is_complete and not self._store.check([key]):
                return f"{SILENT}{rank}"
        return next((f"{NO}{rank}" for rank, key in enumerate(keys) if self._read(key) != YES), YES)

    def _explained(self, decision: str, reason: str) -> str:
        """Return a decision as this rank tells it. Anybody may have written the decision, so an unknown one becomes a
        reason, too."""
        code, rank = decision[:1], decision[1:]
        if decision == YES:
            return reason
        if code not in (NO, SILENT) or rank not in map(str, range(self._size)):
            return "the ranks' store has a decision that is not from ipexctl"
        if code == SILENT:
            return f"rank {rank} {UNANSWERED} {self._timeout:g} s"
        return reason or f"rank {rank} takes no part"

    def _wait(self, keys: list[str], until: float) -> bool:
        """Wait by asking, because torch warns of a wait that ends without the keys."""
        pause = 0.001
        try:
            while not self._store.check(keys):
                if time.monotonic() > until:
                    return False
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
        except RuntimeError:  # the store's errors are RuntimeErrors in all versions of torch
            return False
        return True

    def _read(self, key: str) -> str:
        return bytes(self._store.get(key)).decode("utf-8", "replace")

    def _key(self, rank: int) -> str:
        return f"{self._name}/offer/{rank}"
