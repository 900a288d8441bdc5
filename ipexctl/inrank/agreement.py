"""Whether all ranks of a process group take part: all of them get an empty reason, or all get the same one.

The ranks ask each other through the group's store, because a rank without hooks, as with `python -E`, would never join
a collective. Rank 0 collects the reasons. After PATIENCE seconds, any rank may publish one, so nobody waits for a rank
that never answers. Anybody on the ranks' network can write into the store, so nothing else is decided by its values
(`link.py: gathered`).
"""

from __future__ import annotations

import time
from typing import Any

PATIENCE = 5.0
UNANSWERED = "did not answer within"
LONGEST_PAUSE = 0.05
WRITING = 60.0
"""Seconds for the rank that raised the claim to publish."""
LONGEST = 300
"""Characters of a reason."""


class Round:
    def __init__(self, store: Any, rank: int, size: int, name: str, timeout: float = PATIENCE) -> None:
        self._store, self._rank, self._size, self._name = store, rank, size, f"ipexctl/allreduce/{name}"
        self._timeout = timeout

    def decide(self, reason: str) -> str:
        """Post why this rank takes no part, or an empty text, and return the first such reason of all ranks."""
        until = time.monotonic() + self._timeout
        self._store.set(self._key(self._rank), _written(reason))
        published = f"{self._name}/decision"
        if self._rank == 0:
            decision = self._collect(until)
        elif self._wait([published], until):
            return self._read(published)
        else:
            decision = f"rank 0 {UNANSWERED} {self._timeout:g} s"
        if self._store.add(f"{self._name}/claim", 1) == 1:
            self._store.set(published, _written(decision))
            return decision
        if not self._wait([published], time.monotonic() + WRITING):
            return "no rank published a decision"
        return self._read(published)

    def _collect(self, until: float) -> str:
        keys = [self._key(rank) for rank in range(self._size)]
        if not self._wait(keys, until):
            missing = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
            if missing:
                return f"rank {missing[0]} {UNANSWERED} {self._timeout:g} s"
        return next(filter(None, map(self._read, keys)), "")

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
        value = bytes(self._store.get(key)).decode("utf-8", "replace")
        if value == "+" or (value[:1] == "-" and value[1:].isprintable() and len(value) <= LONGEST + 1):
            return value[1:]
        return f"{key} in the ranks' store is not from ipexctl"

    def _key(self, rank: int) -> str:
        return f"{self._name}/offer/{rank}"


def _written(reason: str) -> str:
    shown = "".join(letter if letter.isprintable() else " " for letter in reason[:LONGEST])
    return f"-{shown}" if reason else "+"
