"""Chooses the likely cause of a run's failure from its snapshot. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ipexctl.known_errors.match import Cause, PatternMatch, RankOutput, cause_of, raised
from ipexctl.known_errors.table import known_errors
from ipexctl.node.common.records import Failure, OutOfMemory, RankStatus
from ipexctl.node.run.verdict import format_limit
from ipexctl.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ipexctl.jobs.why.run_snapshot import RunSnapshot

_MAX_RANKS: Final = 16
"""Other ranks whose output is searched for a better cause."""


def find_first_failure(snapshot: RunSnapshot) -> Failure | None:
    """The first failure, completed from the record of its rank."""
    first = snapshot.status.first_failure
    if first is None:
        return None
    row = snapshot.row(first.rank)
    oom = first.oom or (row.oom if row else None) or (OutOfMemory("") if first.kind == "oom" else None)
    return first._replace(host=first.host or (row.host if row else ""), oom=oom)


def choose_cause(snapshot: RunSnapshot, first: Failure | None, *, hung: bool = False) -> Cause | None:
    """The cause in the first failure's own output, unless it follows from another; then the best of any rank.

    `hung`: without a better cause, a text that rarely ends a run counts too. A dump says more about a hang.
    """
    context = snapshot.context
    own: Cause | None = None
    if first is not None and first.kind == "checkpoint":  # output of its ranks is of an earlier attempt
        return _recorded(snapshot, first, "run.checkpoint")
    if first is not None and (too_many := _too_many_ranks(snapshot, first)) is not None:
        return too_many
    if first is not None and first.rank is not None:
        if first.oom is not None:
            limited = f" (its limit is {format_limit(first.oom.limit)})" if first.oom.limit else ""
            return _recorded(snapshot, first, "memory.oom", limited=limited)
        output = snapshot.output_of(first.rank)
        own = cause_of(output, context, known_errors()) or raised(output, context)
        if own is not None and own.is_vague:
            own = raised(output, context) or own
        if own is not None and own.is_good:
            return own
    if first is None or (first.exit_code is None and first.signal is None):
        of_mpirun = cause_of(context.mpirun, context, known_errors())
        if of_mpirun is not None and of_mpirun.is_good:
            return of_mpirun
    better = _cause_of_others(snapshot, first)
    if better is not None:
        return better
    if hung or own is not None:
        harmless = _harmless_cause(snapshot)
        own = own or harmless
    return own or (_end_without_text(snapshot, first) if first is not None else None)


_OF_SLOW_RANKS: Final = ("run.no_way_back", "run.not_begun")
"""Causes whose texts are also printed if ranks do not get their turn in time."""


def _too_many_ranks(snapshot: RunSnapshot, first: Failure) -> Cause | None:
    """The cause of ranks that did not answer in time, if a host has far more ranks than cores."""
    context = snapshot.context
    if first.kind not in ("lost", "not-begun") or _has_killed_wrapper(snapshot):
        return None
    of_mpirun = cause_of(context.mpirun, context, known_errors())
    if of_mpirun is not None and of_mpirun.is_good and of_mpirun.id not in _OF_SLOW_RANKS:
        return None
    hosts = (first.host,) if first.kind == "lost" and first.host else context.hosts
    shares = {host: share for host in hosts if (share := context.ranks_per_core(host)) is not None}
    if not shares:
        return None
    host, (ranks, cores) = max(shares.items(), key=lambda item: item[1][0] / item[1][1])
    words = {"ranks": ranks, "shared": counted(cores, "core"), "cores": cores}
    return _recorded(snapshot, first, "run.too_many_ranks", host, **words)


def _has_killed_wrapper(snapshot: RunSnapshot) -> bool:
    """By the supervisor's reason; that for a rank that does not respond is another one."""
    return " was killed" in snapshot.status.reason or " were killed" in snapshot.status.reason


def _end_without_text(snapshot: RunSnapshot, first: Failure) -> Cause | None:
    if first.kind == "lost":
        id_ = "node.wrapper_killed" if _has_killed_wrapper(snapshot) else "node.lost"
        id_ = "node.cut_off" if first.rank is None else id_
        return _recorded(snapshot, first, id_, node0=snapshot.node0)
    if first.exit_code is not None and not first.signal:
        return _recorded(snapshot, first, "script.exited", code=first.exit_code)
    return None


def _recorded(snapshot: RunSnapshot, first: Failure, id_: str, host: str | None = None, **words: object) -> Cause:
    """A cause that the run's record shows; `words` are those of its row in the table."""
    output = RankOutput(first.rank, first.host or "" if host is None else host)
    known = next(known for known in known_errors("recorded") if known.id == id_)
    found = PatternMatch(output, snapshot.context, {name: str(word) for name, word in words.items()})
    return Cause(id_, *known.texts(found), known.confidence, output.rank, output.host)


def _cause_of_others(snapshot: RunSnapshot, first: Failure | None) -> Cause | None:
    """The best cause in other ranks' output: first those that failed, by time, then those that ipexctl ended."""
    rows = [row for row in snapshot.status.ranks if first is None or row.rank != first.rank]
    rows = [row for row in rows if row.state != "ok"]
    rows.sort(
        key=lambda row: (row.state not in ("failed", "lost"), snapshot.ended_at.get(row.rank, float("inf")), row.rank)
    )
    best: Cause | None = None
    for row in _distinct(rows, snapshot)[:_MAX_RANKS]:
        output = snapshot.output_of(row.rank)
        if row.state not in ("failed", "lost"):  # ipexctl ended it, by a signal
            output = RankOutput(output.rank, output.host, output.out, output.err)
        cause = cause_of(output, snapshot.context, known_errors())
        if cause is None or not cause.is_good:
            cause = raised(output, snapshot.context) if cause is None else None
        if cause is not None and (best is None or cause.order < best.order):
            best = cause
    return best


def _distinct(rows: Iterable[RankStatus], snapshot: RunSnapshot) -> list[RankStatus]:
    """One rank of all that printed the same."""
    found: dict[object, RankStatus] = {}
    for row in rows:
        output = snapshot.output_of(row.rank)
        found.setdefault((output.out, output.err, row.state), row)
    return list(found.values())


def _harmless_cause(snapshot: RunSnapshot) -> Cause | None:
    for row in _distinct(snapshot.status.ranks, snapshot)[:_MAX_RANKS]:
        found = cause_of(snapshot.output_of(row.rank), snapshot.context, known_errors("harmless"))
        if found is not None:
            return found
    return None
