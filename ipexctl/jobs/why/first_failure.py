"""Who failed first and what is named as its cause: its own last words, or of all ranks' the best. Pure."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final

from ipexctl.jobs.why.patterns.launch import LAUNCH
from ipexctl.jobs.why.patterns.machine import MACHINE
from ipexctl.jobs.why.patterns.match import Cause, RankOutput, cause_of, raised
from ipexctl.jobs.why.patterns.network import NETWORK
from ipexctl.jobs.why.patterns.script import SCRIPT
from ipexctl.node.common.records import OutOfMemory
from ipexctl.node.run.verdict import format_limit, signal_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ipexctl.jobs.why.run_snapshot import RunSnapshot
    from ipexctl.node.common.records import Failure, RankStatus

TABLE: Final = (*LAUNCH, *MACHINE, *SCRIPT, *NETWORK)
_WITHOUT_ASIDES: Final = tuple(known for known in TABLE if known.weight != "aside")
_ASKED: Final = 16
"""Other ranks whose words are searched for a better cause."""
_IN_WORDS: Final[Mapping[int, str]] = {
    signal.SIGSEGV: "crashed (SIGSEGV, a segmentation fault)",
    signal.SIGILL: "was ended by SIGILL, an illegal instruction",
    signal.SIGBUS: "was ended by SIGBUS, a bus error",
    signal.SIGABRT: "aborted itself (SIGABRT)",
    signal.SIGFPE: "was ended by SIGFPE, an arithmetic error",
    signal.SIGKILL: "was ended by SIGKILL, not sent by ipexctl",
    signal.SIGTERM: "was ended by SIGTERM, not sent by ipexctl",
    signal.SIGXCPU: "was ended by SIGXCPU: its processor time was used up",
}


def find_first_failure(account: RunSnapshot) -> Failure | None:
    """The first failure, with what the record of its rank adds."""
    first = account.status.first_failure
    if first is None:
        return None
    row = account.row(first.rank)
    oom = first.oom or (row.oom if row else None) or (OutOfMemory("") if first.kind == "oom" else None)
    return first._replace(host=first.host or (row.host if row else ""), oom=oom)


def how_it_ended(first: Failure | RankStatus) -> str:
    if first.oom:
        return "was killed by the kernel: out of memory"
    if first.exit_code is None and first.signal is None:
        return "does not respond any more"
    if first.signal:
        return _IN_WORDS.get(first.signal) or f"was ended by {signal_name(first.signal)}"
    return f"ended with exit code {first.exit_code}"


def choose(account: RunSnapshot, first: Failure | None, *, hung: bool = False) -> Cause | None:
    """The first failure's own, unless that only follows from something; then the best that anybody said."""
    context = account.context
    own: Cause | None = None
    if first is not None and first.rank is not None:
        told = _by_kind(account, first)
        if told is not None:
            return told
        words = account.words_of(first.rank)
        own = cause_of(words, context, _WITHOUT_ASIDES) or raised(words, context)
        if own is not None and own.order == _VAGUE_BEHIND:
            own = raised(words, context) or own
        if own is not None and own.is_good:
            return own
    if first is None or (first.exit_code is None and first.signal is None):
        of_mpirun = cause_of(context.mpirun, context, _WITHOUT_ASIDES)
        if of_mpirun is not None and of_mpirun.is_good:
            return of_mpirun
    better = _of_others(account, first)
    if better is not None:
        return better
    if hung or own is not None:
        aside = _aside(account)
        own = own or aside
    if own is not None:
        return own
    if first is not None and first.kind == "lost":
        return _gone(account, first)
    return _by_itself(account, first) if first is not None else None


_VAGUE_BEHIND: Final = 3


def _by_kind(account: RunSnapshot, first: Failure) -> Cause | None:
    run, host, rank = account.id, first.host or "", first.rank
    if first.oom is None:
        return None
    limited = f" ({format_limit(first.oom.limit)} were allowed there)" if first.oom.limit else ""
    return Cause(
        "memory.oom",
        f"{host} ran out of memory{limited}, and the kernel killed rank {rank} to free some",
        "a smaller batch, fewer ranks per node (--ppn) or fewer DataLoader workers; its output: "
        f"ipexctl logs {run} -r {rank}",
        "likely",
        rank,
        host,
    )


def _gone(account: RunSnapshot, first: Failure) -> Cause:
    if first.rank is None:
        return Cause(
            "node.cut_off",
            f"node0 ({account.node0}) lost every other node at once: its network link is cut, or the whole network",
            "ipexctl doctor looks at the network among the nodes; then run it again",
            "possible",
        )
    if "disconnected:" in account.status.reason or "hung up" in account.status.reason:  # the latter in older records
        return Cause(
            "node.wrapper_killed",
            f"the wrapper process of rank {first.rank} was killed on {first.host}, not by ipexctl: by a user, or by the "
            "kernel because memory ran out",
            f"on {first.host}, as root: dmesg -T | grep -i kill; then run it again",
            "possible",
            first.rank,
            first.host or "",
        )
    return Cause(
        "node.lost",
        f"{first.host} is down, its network link is cut, or it is frozen",
        f"is it up? ipexctl doctor --limit {first.host}; without it: ipexctl run --limit '!{first.host}' …",
        "possible",
        first.rank,
        first.host or "",
    )


def _by_itself(account: RunSnapshot, first: Failure) -> Cause | None:
    if first.exit_code is None or first.signal:
        return None
    return Cause(
        "script.exited",
        f"rank {first.rank} exited with code {first.exit_code} and printed no exception: by sys.exit, or a program "
        "that it started",
        f"all its output: ipexctl logs {account.id} -r {first.rank}",
        "possible",
        first.rank,
        first.host or "",
    )


def _of_others(account: RunSnapshot, first: Failure | None) -> Cause | None:
    """Those that failed by themselves, in the order of time, before those that we ended."""
    rows = [row for row in account.status.ranks if first is None or row.rank != first.rank]
    rows = [row for row in rows if row.state != "ok"]
    rows.sort(
        key=lambda row: (row.state not in ("failed", "lost"), account.ended_at.get(row.rank, float("inf")), row.rank)
    )
    best: Cause | None = None
    for row in _unlike(rows, account)[:_ASKED]:
        words = account.words_of(row.rank)
        if row.state not in ("failed", "lost"):  # it was ended by our signal
            words = RankOutput(words.rank, words.host, words.out, words.err)
        cause = cause_of(words, account.context, _WITHOUT_ASIDES)
        if cause is None or not cause.is_good:
            cause = raised(words, account.context) if cause is None else None
        if cause is not None and (best is None or cause.order < best.order):
            best = cause
    return best


def _unlike(rows: Iterable[RankStatus], account: RunSnapshot) -> list[RankStatus]:
    """One of each that printed the same."""
    found: dict[object, RankStatus] = {}
    for row in rows:
        words = account.words_of(row.rank)
        found.setdefault((words.out, words.err, row.state), row)
    return list(found.values())


def _aside(account: RunSnapshot) -> Cause | None:
    asides = [known for known in TABLE if known.weight == "aside"]
    for row in _unlike(account.status.ranks, account)[:_ASKED]:
        found = cause_of(account.words_of(row.rank), account.context, asides)
        if found is not None:
            return found
    return None
