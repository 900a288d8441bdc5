"""Describes a run without output for a long time: the state of each rank, equal ones folded. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ipexctl.jobs.dump import Dump, place_lines
from ipexctl.jobs.ranks import fold_ranks
from ipexctl.text import format_clock, printable

if TYPE_CHECKING:
    from ipexctl.node.common.records import Silence, SilentRank

BUSY: Final = 50.0
"""Percent of a core above which a rank computes or spins."""
_STATES: Final = {
    "R": "runs",
    "S": "waits",
    "D": "waits for a disk or a network filesystem",
    "T": "is stopped by a signal or a debugger",
    "t": "is stopped by a signal or a debugger",
    "Z": "has ended, and its parent has not noticed",
}
_KERNEL_FUNCTIONS: Final = (
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
_MAX_GROUPS: Final = 8
"""Groups of ranks that are listed."""
_WIDTH: Final = 100


def silence_lines(run: str, silence: Silence) -> list[str]:
    """The command to type, then the state of the ranks."""
    head = f"no rank has printed anything for {_minutes(silence.after)}: ipexctl dump {run} shows where each is"
    groups: dict[tuple[str, str], list[SilentRank]] = {}
    for rank in silence.ranks:
        last = f"last line: {printable(rank.last)[:_WIDTH]}" if rank.last else "no output yet"
        groups.setdefault((describe_activity(rank), last), []).append(rank)
    lines = []
    for (activity, last), ranks in list(groups.items())[:_MAX_GROUPS]:
        plural = "s" * (len(ranks) > 1)
        hosts = list(dict.fromkeys(printable(rank.host) for rank in ranks))
        place = hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts"
        lines.append(f"  rank{plural} {fold_ranks(rank.rank for rank in ranks)} on {place}: {activity}; {last}")
    if len(groups) > _MAX_GROUPS:
        lines.append(f"  and {len(groups) - _MAX_GROUPS} more groups of ranks")
    return [head, *lines]


def dump_lines(run: str, dump: Dump) -> list[str]:
    """The places of the ranks in the dump that --on-hang has taken, and the commands for the rest."""
    places = [f"  {printable(line)[: 2 * _WIDTH]}" for _, line in place_lines(dump)]
    more = [f"  and {len(places) - _MAX_GROUPS} more groups of ranks"] if len(places) > _MAX_GROUPS else []
    return [f"the ranks at {format_clock(dump.at)} (ipexctl why {run} shows this again):", *places[:_MAX_GROUPS], *more]


def describe_activity(rank: SilentRank) -> str:
    """`computes (98 % of a core)`, `waits for the network`."""
    if rank.cpu is not None and rank.cpu >= BUSY:
        return f"computes, or spins ({round(rank.cpu, -1):.0f} % of a core)"
    state = _STATES.get(rank.process or "", "is alive, in an unknown state")
    if rank.process in ("S", "D") and rank.waits_in:
        function = printable(rank.waits_in)
        reason = next((reason for part, reason in _KERNEL_FUNCTIONS if part in rank.waits_in), f"in {function}")
        return f"waits {reason}" if rank.process == "S" else f"{state} ({function})"
    return state


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:g} min" if seconds >= 60 and seconds % 60 == 0 else f"{seconds:g} s"
