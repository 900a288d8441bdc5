"""Detects a run without output for a long time, and reports the state of each rank.

`silent` in status.json is null, or

    {"since": seconds since the epoch, "after": seconds, "ranks": [{"rank", "host", "last": its last line or null,
     "stream", "cpu", "process": R, S, D … of its main process, "waits_in": a kernel function or null}, …],
     "dump": the id of the dump that --on-hang has taken, or ""}
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Sequence

from ipexctl.node.common.records import Silence, SilentRank

if TYPE_CHECKING:
    from ipexctl.node.run.rank_connections import RankConnection
    from ipexctl.node.run.recorder import Recorder


class StallDetector:
    def __init__(self, after: float, recorder: Recorder) -> None:
        self._after, self._recorder = after, recorder

    def check(self, now: float, began: float, peers: Sequence[RankConnection], *, is_ending: bool) -> bool:
        """True when a stall was just found. `began` is when mpirun was started.

        Ranks that do not start are detected elsewhere, and sooner.
        """
        last = max([began, *(at for peer in peers for at in peer.printed_at.values())])
        if is_ending or all(peer.exit is not None or peer.is_done for peer in peers):
            return False  # a silence that lasted until the end stays in the status
        status = self._recorder.status
        if status.silent is not None:
            if now - last < self._after:
                self._recorder.status = status._replace(silent=None)
                self._recorder.event("heard")
        elif self._after > 0 and now - last >= self._after:
            since = round(time.time() - (now - last), 3)
            ranks = tuple(self._silent_rank(peer) for peer in peers if peer.exit is None)
            silent = Silence(since, self._after, ranks)
            self._recorder.status = status._replace(silent=silent)
            self._recorder.event("silent", **silent.to_json())
            return True
        return False

    def _silent_rank(self, peer: RankConnection) -> SilentRank:
        stream = max(peer.printed_at, key=lambda name: float(peer.printed_at[name]), default=None)
        lines = self._recorder.tail(f"ranks/{peer.rank:04}.{stream}", 1) if stream else []
        last, status = lines[-1][:400] if lines else None, peer.status
        return SilentRank(peer.rank, peer.host, last, status.cpu, status.process, status.waits_in, stream)
