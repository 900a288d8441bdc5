"""Finds the first failure of a run and its likely cause, in the output of that rank or of others. Pure."""

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
_CAUSES: Final = tuple(known for known in TABLE if known.weight != "aside")
_MAX_RANKS: Final = 16
"""Other ranks whose output is searched for a better cause."""
_SIGNALS: Final[Mapping[int, str]] = {
    signal.SIGSEGV: "crashed (SIGSEGV, a segmentation fault)",
    signal.SIGILL: "was ended by SIGILL, an illegal instruction",
    signal.SIGBUS: "was ended by SIGBUS, a bus error",
    signal.SIGABRT: "aborted itself (SIGABRT)",
    signal.SIGFPE: "was ended by SIGFPE, an arithmetic error",
    signal.SIGKILL: "was ended by SIGKILL, not sent by ipexctl",
    signal.SIGTERM: "was ended by SIGTERM, not sent by ipexctl",
    signal.SIGXCPU: "was ended by SIGXCPU: its processor time was used up",
}


def find_first_failure(snapshot: RunSnapshot) -> Failure | None:
    """The first failure, completed from the record of its rank."""
    first = snapshot.status.first_failure
    if first is None:
        return None
    row = snapshot.row(first.rank)
    oom = first.oom or (row.oom if row else None) or (OutOfMemory("") if first.kind == "oom" else None)
    return first._replace(host=first.host or (row.host if row else ""), oom=oom)


def how_it_ended(first: Failure | RankStatus) -> str:
    if first.oom:
        return "was killed by the kernel: out of memory"
    if first.exit_code is None and first.signal is None:
        return "does not respond any more"
    if first.signal:
        return _SIGNALS.get(first.signal) or f"was ended by {signal_name(first.signal)}"
    return f"ended with exit code {first.exit_code}"


def choose(snapshot: RunSnapshot, first: Failure | None, *, hung: bool = False) -> Cause | None:
    """The cause in the first failure's own output, unless it follows from another; then the best of any rank."""
    context = snapshot.context
    own: Cause | None = None
    if first is not None and first.rank is not None:
        out_of_memory = _out_of_memory(snapshot, first)
        if out_of_memory is not None:
            return out_of_memory
        output = snapshot.words_of(first.rank)
        own = cause_of(output, context, _CAUSES) or raised(output, context)
        if own is not None and own.order == _VAGUE:
            own = raised(output, context) or own
        if own is not None and own.is_good:
            return own
    if first is None or (first.exit_code is None and first.signal is None):
        of_mpirun = cause_of(context.mpirun, context, _CAUSES)
        if of_mpirun is not None and of_mpirun.is_good:
            return of_mpirun
    better = _cause_of_others(snapshot, first)
    if better is not None:
        return better
    if hung or own is not None:
        harmless = _harmless_cause(snapshot)
        own = own or harmless
    if own is not None:
        return own
    if first is not None and first.kind == "lost":
        return _lost(snapshot, first)
    return _exited(snapshot, first) if first is not None else None


_VAGUE: Final = 3


def _out_of_memory(snapshot: RunSnapshot, first: Failure) -> Cause | None:
    run, host, rank = snapshot.id, first.host or "", first.rank
    if first.oom is None:
        return None
    limited = f" (its limit is {format_limit(first.oom.limit)})" if first.oom.limit else ""
    return Cause(
        "memory.oom",
        f"{host} ran out of memory{limited}, and the kernel killed rank {rank} to free some",
        "use a smaller batch, fewer ranks per node (--ppn) or fewer DataLoader workers; its output: "
        f"ipexctl logs {run} -r {rank}",
        "likely",
        rank,
        host,
    )


def _lost(snapshot: RunSnapshot, first: Failure) -> Cause:
    if first.rank is None:
        return Cause(
            "node.cut_off",
            f"node0 ({snapshot.node0}) lost every other node at once: its network link is cut, or the whole network",
            "ipexctl doctor checks the network between the nodes; then run it again",
            "possible",
        )
    reason = snapshot.status.reason
    if " was killed" in reason or " were killed" in reason:  # a node or a rank that does not respond has another reason
        return Cause(
            "node.wrapper_killed",
            f"the wrapper process of rank {first.rank} was killed on {first.host}, not by ipexctl: by a user, or by "
            "the kernel because memory ran out",
            f"on {first.host}, as root: dmesg -T | grep -i kill; then run it again",
            "possible",
            first.rank,
            first.host or "",
        )
    return Cause(
        "node.lost",
        f"{first.host} is down, its network link is cut, or it is frozen",
        f"check whether it is up: ipexctl doctor --limit {first.host}; to run without it: "
        f"ipexctl run --limit '!{first.host}' …",
        "possible",
        first.rank,
        first.host or "",
    )


def _exited(snapshot: RunSnapshot, first: Failure) -> Cause | None:
    if first.exit_code is None or first.signal:
        return None
    return Cause(
        "script.exited",
        f"rank {first.rank} exited with code {first.exit_code} and printed no exception: by sys.exit, or a program "
        "that it started",
        f"all its output: ipexctl logs {snapshot.id} -r {first.rank}",
        "possible",
        first.rank,
        first.host or "",
    )


def _cause_of_others(snapshot: RunSnapshot, first: Failure | None) -> Cause | None:
    """The best cause in other ranks' output: first those that failed, by time, then those that ipexctl ended."""
    rows = [row for row in snapshot.status.ranks if first is None or row.rank != first.rank]
    rows = [row for row in rows if row.state != "ok"]
    rows.sort(
        key=lambda row: (row.state not in ("failed", "lost"), snapshot.ended_at.get(row.rank, float("inf")), row.rank)
    )
    best: Cause | None = None
    for row in _distinct(rows, snapshot)[:_MAX_RANKS]:
        output = snapshot.words_of(row.rank)
        if row.state not in ("failed", "lost"):  # ipexctl ended it, by a signal
            output = RankOutput(output.rank, output.host, output.out, output.err)
        cause = cause_of(output, snapshot.context, _CAUSES)
        if cause is None or not cause.is_good:
            cause = raised(output, snapshot.context) if cause is None else None
        if cause is not None and (best is None or cause.order < best.order):
            best = cause
    return best


def _distinct(rows: Iterable[RankStatus], snapshot: RunSnapshot) -> list[RankStatus]:
    """One rank of all that printed the same."""
    found: dict[object, RankStatus] = {}
    for row in rows:
        output = snapshot.words_of(row.rank)
        found.setdefault((output.out, output.err, row.state), row)
    return list(found.values())


def _harmless_cause(snapshot: RunSnapshot) -> Cause | None:
    patterns = [known for known in TABLE if known.weight == "aside"]
    for row in _distinct(snapshot.status.ranks, snapshot)[:_MAX_RANKS]:
        found = cause_of(snapshot.words_of(row.rank), snapshot.context, patterns)
        if found is not None:
            return found
    return None
