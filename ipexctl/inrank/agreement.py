"""All ranks of a process group make the same decision through the group's store: on for all, or off for all.

Rank 0 decides. After PATIENCE seconds, a rank may publish `{"off": reason}` instead, so the decision is off if a rank
never takes part, as with `python -E`.
"""

from __future__ import annotations

import json
import time
from datetime import timedelta
from typing import Any, Callable, Dict

PATIENCE = 5.0
WRITING = 60.0
"""Seconds for the rank that raised the claim to publish."""

Decision = Dict[str, Any]
"""JSON: what rank 0 makes of the offers, or {"off": reason} if all ranks keep using the backend."""


class Round:
    def __init__(self, store: Any, rank: int, size: int, name: str, timeout: float = PATIENCE) -> None:
        self._store, self._rank, self._size, self._name = store, rank, size, f"ipexctl/allreduce/{name}"
        self._timeout = timeout

    def decide(self, offer: Any, decide: Callable[[list[Any]], Decision]) -> Decision:
        """Post this rank's offer and return the decision; `decide` is called on rank 0."""
        until = time.monotonic() + self._timeout
        self._store.set(self._key(self._rank), json.dumps(offer))
        published = f"{self._name}/decision"
        if self._rank == 0:
            decision = self._collect(until, decide)
        elif self._wait([published], until):
            return self._read(published)
        else:
            decision = {"off": f"rank 0 did not answer within {self._timeout:g} s"}
        if self._store.add(f"{self._name}/claim", 1) == 1:
            self._store.set(published, json.dumps(decision))
            return decision
        if not self._wait([published], time.monotonic() + WRITING):
            return {"off": "no rank published a decision"}
        return self._read(published)

    def _collect(self, until: float, decide: Callable[[list[Any]], Decision]) -> Decision:
        keys = [self._key(rank) for rank in range(self._size)]
        if not self._wait(keys, until):
            missing = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
            if missing:
                return {"off": f"rank {missing[0]} did not answer within {self._timeout:g} s"}
        return decide([self._read(key) for key in keys])

    def _wait(self, keys: list[str], until: float) -> bool:
        try:
            self._store.wait(keys, timedelta(seconds=max(until - time.monotonic(), 0.01)))
        except RuntimeError:  # the store's errors are RuntimeErrors in all versions of torch
            return False
        return True

    def _read(self, key: str) -> Decision:
        """Read and check a decision, because anybody on the ranks' network may write into their store."""
        try:
            value = json.loads(self._store.get(key))
        except (ValueError, RecursionError):
            value = None
        is_decision = isinstance(value, dict) and isinstance(value.get("off", ""), str)
        return value if is_decision else {"off": f"{key} in the ranks' store is not JSON from ipexctl"}

    def _key(self, rank: int) -> str:
        return f"{self._name}/offer/{rank}"
