"""A run of which nobody has said a word for long: told with what each rank is at, and not ended for it.

`silent` in status.json is null, or

    {"since": seconds since the epoch, "after": seconds, "ranks": [{"rank", "host", "last": its last line or null,
     "stream", "cpu", "process": R, S, D … of its main process, "waits_in": the kernel's word for where, or null}, …]}
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, Sequence

Json = Dict[str, Any]


class Silence:
    def __init__(self, after: float, status: Json, event: Callable[..., None], tail: Callable[..., Any]) -> None:
        self._after, self._status, self._event, self._tail = after, status, event, tail
        status["silent"] = None

    def look(self, now: float, began: float, peers: Sequence[Any], *, is_ending: bool) -> None:
        """`began` is when mpirun did: who waits to begin is missed elsewhere, and sooner."""
        last = max([began, *(at for peer in peers for at in peer.printed_at.values())])
        if is_ending or all(peer.exit is not None or peer.is_done for peer in peers):
            return  # that it was silent to the end is worth knowing
        if self._status["silent"] is not None:
            if now - last < self._after:
                self._status["silent"] = None
                self._event("heard")
        elif self._after > 0 and now - last >= self._after:
            since = round(time.time() - (now - last), 3)
            rows = [self._row(peer) for peer in peers if peer.exit is None]
            silent = self._status["silent"] = {"since": since, "after": self._after, "ranks": rows}
            self._event("silent", **silent)

    def _row(self, peer: Any) -> Json:
        stream = max(peer.printed_at, key=lambda name: float(peer.printed_at[name]), default=None)
        lines = self._tail(f"ranks/{peer.rank:04}.{stream}", 1) if stream else []
        row = {"rank": peer.rank, "host": peer.host, "last": lines[-1][:400] if lines else None, "stream": stream}
        return {**row, **{name: peer.row[name] for name in ("cpu", "process", "waits_in")}}
