"""What is said when a run ends or is left: which run, how it ended, where to look, what to type next. Pure."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from ipexctl.jobs.ranks import fold_ranks
from ipexctl.text import printable

if TYPE_CHECKING:
    from ipexctl.jobs.events import Failure, RankStatus, RunStatus


def end_lines(status: RunStatus, exit_code: int) -> list[str]:
    """One sentence where all went well; where not, also who was first, what is missing, and what to type."""
    return [*_verdict(status, exit_code), *_gap_lines(status)]


def _gap_lines(status: RunStatus) -> list[str]:
    gaps = [rank for rank in status.ranks if rank.lost]
    if not gaps:
        return []
    size = counted(sum(rank.lost for rank in gaps), "byte")
    who = f"rank{'s' * (len(gaps) > 1)} {fold_ranks(rank.rank for rank in gaps)}"
    return [f"  {size} of what {who} printed are missing: there was no room for them on any disk"]


def _verdict(status: RunStatus, exit_code: int) -> list[str]:
    ran = f"run {printable(status.id)}"
    size = f"{counted(status.world_size, 'rank')} on {counted(status.nodes, 'node')}"
    took = f" after {duration(status.ended - status.started)}" if status.started and status.ended else ""
    if status.state == "ok":
        again = f", begun {counted(status.attempt + 1, 'time')}" if status.attempt else ""
        return [f"{ran} ended well{took}{again}: {size}"]
    if status.state == "stopped":
        return [f"{ran} was stopped{took}: {size}"]
    if status.state == "lost":
        return [
            f"{ran} is lost{took}: its supervisor on node0 is gone and left no verdict",
            f"  what its ranks said until then: ipexctl logs {printable(status.id)}",
        ]
    first, again = status.first_failure, f", begun {counted(status.attempt + 1, 'time')}" if status.attempt else ""
    if first is not None and first.rank is not None and first.kind in ("", "exit", "signal"):
        why = f": rank {first.rank} on {printable(first.host or '')} {how_it_ended(first)}"
    else:
        why = f": {printable(status.reason)}" if status.reason else f" with exit code {exit_code}: {size}"
    if first is None or first.rank is None:
        look = f"  what its ranks said: ipexctl logs {printable(status.id)}"
    else:
        look = f"  all it said: ipexctl logs {printable(status.id)} -r {first.rank}"
    return [f"{ran} failed{took}{again}{why}", look]


def how_it_ended(rank: Failure | RankStatus) -> str:
    """`ended with exit code 3`, `was killed by SIGKILL`."""
    if rank.signal:
        return f"was killed by {signal_name(rank.signal)}"
    if rank.exit_code is not None:
        return f"ended with exit code {rank.exit_code}"
    return "was lost"


def left_lines(run: str) -> list[str]:
    """For somebody who detached: the run goes on, and how to get back to it."""
    return [f"detached; run {run} goes on: ipexctl attach {run}", f"  to end it: ipexctl stop {run}"]


def not_stopped_lines(run: str, reason: str) -> list[str]:
    """For somebody who wanted to stop it, and left without knowing that it has."""
    return [f"{printable(reason)}", f"run {run} may go on: ipexctl stop {run}"]


def cut_short_lines(run: str) -> list[str]:
    """The run has ended, and our own output didn't get that far."""
    return [f"run {run} is over; not all it said was shown: ipexctl logs {run}"]


def state_counts(ranks: list[RankStatus]) -> str:
    """`14 running, 2 failed`: the worst last, where the eye rests."""
    order = ("starting", "running", "ok", "stopped", "unknown", "lost", "failed")
    counts = {state: sum(rank.state == state for rank in ranks) for state in order}
    return ", ".join(f"{count} {state}" for state, count in counts.items() if count)


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def duration(seconds: float) -> str:
    """`0:07`, `12:34`, `1:02:03`, `3 d 04:05`."""
    whole = max(0, int(seconds))
    days, hours, minutes, rest = whole // 86400, whole // 3600 % 24, whole // 60 % 60, whole % 60
    if days:
        return f"{days} d {hours:02}:{minutes:02}"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def counted(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
