"""Detects a run without output for a long time, and reports the state of each rank.

`silent` in status.json is null, or

    {"since": seconds since the epoch, "after": seconds, "ranks": [{"rank", "host", "last": its last line or null,
     "stream", "cpu", "process": R, S, D … of its main process, "waits_in": a kernel function or null}, …],
     "dump": the id of the dump that was taken then, or "", "on_hang": the value of --on-hang}
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Sequence

from ipexctl.node.common.json_records import as_json
from ipexctl.node.common.records import Silence, SilentRank

if TYPE_CHECKING:
    from ipexctl.node.run.rank_connections import RankConnection
    from ipexctl.node.run.recorder import Recorder


def check_stall(
    recorder: Recorder, after: float, on_hang: str, now: float, began: float, peers: Sequence[RankConnection]
) -> bool:
    """True when a stall was just found, of `after` seconds. `began` is when mpirun was started.

    Ranks that do not start are detected elsewhere, and sooner.
    """
    last = max([began, *(at for peer in peers for at in peer.printed_at.values())])
    if all(peer.exit is not None or peer.is_done for peer in peers):
        return False  # a silence that lasted until the end stays in the status
    status = recorder.status
    if status.silent is not None:
        if now - last < after:
            recorder.status = status._replace(silent=None)
            recorder.event("output-resumed")
    elif after > 0 and now - last >= after:
        since = round(time.time() - (now - last), 3)
        ranks = tuple(_silent_rank(recorder, peer) for peer in peers if peer.exit is None)
        silent = Silence(since, after, ranks, on_hang=on_hang)
        recorder.status = status._replace(silent=silent)
        recorder.event("silent", **as_json(silent))
        return True
    return False


def _silent_rank(recorder: Recorder, peer: RankConnection) -> SilentRank:
    stream = max(peer.printed_at, key=lambda name: float(peer.printed_at[name]), default=None)
    lines = recorder.tail(f"ranks/{peer.rank:04}.{stream}", 1) if stream else []
    last, status = lines[-1][:400] if lines else None, peer.status
    return SilentRank(peer.rank, peer.host, last, status.cpu, status.process, status.waits_in, stream)
