"""Describes a run that has printed nothing for a long time: the state of each rank, in groups. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ipexctl.known_errors.match import bare, shortened
from ipexctl.node.common.records import Silence, SilentRank
from ipexctl.run.dump import Dump, name_ranks, place_lines
from ipexctl.run.hang import explain_hang
from ipexctl.text import format_clock, printable

_BUSY: Final = 50.0
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
_WIDTH: Final = 100
_MAX_SENTENCE: Final = 600


def silence_lines(run: str, silence: Silence) -> list[str]:
    head = f"no rank has printed anything for {_minutes(silence.after)}: ipexctl why {run} --stacks shows where each is"
    return [head, *_indented(sentence for _, sentence in describe_silent(silence))]


def describe_silent(silence: Silence) -> list[tuple[list[SilentRank], str]]:
    """Groups of ranks in the same state with the same last line, each with a sentence about it."""
    groups: dict[str, list[SilentRank]] = {}
    for rank in silence.ranks:
        last = f"last line: {shortened(bare(rank.last), _WIDTH)}" if rank.last else "no output yet"
        groups.setdefault(f"{describe_activity(rank)}; {last}", []).append(rank)
    return [(ranks, f"{name_ranks(ranks)}: {state}") for state, ranks in groups.items()]


def dump_lines(run: str, dump: Dump, *, places: bool = True) -> list[str]:
    hang = explain_hang(dump)
    who = [] if hang is None else [printable(shortened(hang.sentence, _MAX_SENTENCE))]
    head = f"the ranks at {format_clock(dump.at)} (ipexctl why {run} shows this again):"
    if not places:
        return who
    return [*who, head, *_indented(line[: 2 * _WIDTH] for _, line in place_lines(dump))]


def _indented(groups: Iterable[str]) -> list[str]:
    lines = [f"  {printable(line)}" for line in groups]
    more = [f"  and {len(lines) - _MAX_GROUPS} more groups of ranks"] if len(lines) > _MAX_GROUPS else []
    return lines[:_MAX_GROUPS] + more


def describe_activity(rank: SilentRank) -> str:
    """`computes (98 % of a core)`, `waits for the network`."""
    if rank.cpu is not None and rank.cpu >= _BUSY:
        return f"computes, or spins ({round(rank.cpu, -1):.0f} % of a core)"
    process = rank.process or ("S" if rank.waits_in else "")
    state = _STATES.get(process, "is alive, in an unknown state")
    if process == "S" and rank.waits_in:
        state = next((f"waits {reason}" for part, reason in _KERNEL_FUNCTIONS if part in rank.waits_in), "waits")
    if process in ("S", "D") and rank.waits_in:
        state = f"{state} ({rank.waits_in})"
    return state


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:g} min" if seconds >= 60 and seconds % 60 == 0 else f"{seconds:g} s"
