"""A run in which nobody has said a word for long, in words: what each rank was at, folded where they agree. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ipexctl.jobs.ranks import fold_ranks
from ipexctl.text import printable

if TYPE_CHECKING:
    from ipexctl.jobs.events import Silence, SilentRank

_BUSY: Final = 50.0
"""Percent of a core from which on a rank computes, or spins."""
_STATES: Final = {
    "R": "runs",
    "S": "waits",
    "D": "waits for a disk or a network filesystem",
    "T": "is halted by a signal or a debugger",
    "t": "is halted by a signal or a debugger",
    "Z": "has ended and is not taken off yet",
}
_PLACES: Final = (
    ("futex", "for a lock or another thread"),
    ("epoll", "for a socket"),
    ("poll", "for a socket or a file"),
    ("tcp_", "for the network"),
    ("inet_", "for the network"),
    ("sk_wait", "for the network"),
    ("unix_stream", "for another process"),
    ("skb_", "for the network"),
    ("pipe", "for a pipe"),
    ("nanosleep", "in a sleep"),
    ("do_wait", "for a process it started"),
    ("nfs", "for NFS"),
    ("rpc_", "for NFS"),
)
_MOST: Final = 8
"""Groups that are told one by one."""
_WIDTH: Final = 100


def silence_lines(run: str, silence: Silence) -> list[str]:
    """What to type first, then what the ranks were at."""
    head = f"no rank has printed anything for {_minutes(silence.after)}: ipexctl dump {run} shows where each is"
    groups: dict[tuple[str, str], list[SilentRank]] = {}
    for rank in silence.ranks:
        last = f"last line: {printable(rank.last)[:_WIDTH]}" if rank.last else "it has printed nothing yet"
        groups.setdefault((doing(rank), last), []).append(rank)
    lines = []
    for (what, last), ranks in list(groups.items())[:_MOST]:
        many = "s" * (len(ranks) > 1)
        hosts = list(dict.fromkeys(printable(rank.host) for rank in ranks))
        where = hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts"
        lines.append(f"  rank{many} {fold_ranks(rank.rank for rank in ranks)} on {where}: {what}; {last}")
    if len(groups) > _MOST:
        lines.append(f"  and {len(groups) - _MOST} more groups of ranks")
    return [head, *lines]


def doing(rank: SilentRank) -> str:
    """`computes (98 % of a core)`, `waits for the network`."""
    if rank.cpu is not None and rank.cpu >= _BUSY:
        return f"computes, or spins ({round(rank.cpu, -1):.0f} % of a core)"
    state = _STATES.get(rank.process or "", "is there")
    if rank.process in ("S", "D") and rank.waits_in:
        place = next((words for part, words in _PLACES if part in rank.waits_in), f"in {printable(rank.waits_in)}")
        return f"waits {place}" if rank.process == "S" else f"{state} ({printable(rank.waits_in)})"
    return state


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:g} min" if seconds >= 60 and seconds % 60 == 0 else f"{seconds:g} s"
