"""From what node0 keeps of a run to why it ended: the first failure, its last words, the likely cause. Pure.

Nothing is asked of a host here, and nothing is printed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from ipexctl.hosts.nodeset import fold
from ipexctl.jobs.ranks import fold_ranks
from ipexctl.jobs.why.first_failure import choose, find_first_failure, how_it_ended
from ipexctl.jobs.why.patterns.match import bare, shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ipexctl.jobs.why.patterns.match import Cause, RankOutput
    from ipexctl.jobs.why.run_snapshot import RunSnapshot
    from ipexctl.node.common.records import Failure, RankStatus, SilentRank

LINES: Final = 30
_OF_STDOUT: Final = 10
"""Of those, so many are kept for stdout where both have much to say."""
_BUSY: Final = 50.0
"""Percent of a core above which a rank computes, or spins."""
_FIGURES: Final = re.compile(r"0x[0-9a-f]+|\d+")
What = Literal["same", "failed", "ended", "ok", "lost", "not-begun", "running"]


@dataclass(frozen=True, slots=True)
class Line:
    """One of the last lines; `stream` is stdout, stderr, or mpirun's own log."""

    stream: Literal["stdout", "stderr", "mpirun", "supervisor"]
    text: str


@dataclass(frozen=True, slots=True)
class AlikeRanks:
    """Ranks of which the same can be said."""

    what: What
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    sentence: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why a run ended, or that it hasn't."""

    id: str
    state: str
    headline: str
    first: Failure | None = None
    cause: Cause | None = None
    lines: tuple[Line, ...] = ()
    whose: str = ""
    """Whose lines they are."""
    others: tuple[AlikeRanks, ...] = ()
    notes: tuple[str, ...] = ()
    next: tuple[str, ...] = ()
    """Commands to type."""
    started: float | None = None

    def then(self, *commands: str) -> Diagnosis:
        return replace(self, next=commands)


def diagnose(account: RunSnapshot) -> Diagnosis:
    """The one that fits how the run stands."""
    by_state: dict[str, Callable[[RunSnapshot], Diagnosis]] = {
        "failed": _failed,
        "lost": _lost,
        "stopped": _stopped,
        "ok": _well,
    }
    verdict = by_state.get(account.status.state, _going_on)(account)
    return replace(verdict, started=account.status.started)


def _failed(account: RunSnapshot) -> Diagnosis:
    run, first = account.id, find_first_failure(account)
    after = f" after {lasted(account.took)}" if account.took is not None else ""
    if _is_over_time(account, first):
        headline = f"run {run} was ended{after}: {account.status.reason or 'its time limit was over'}"
        more = "more time: ipexctl run --time-limit S …; a script goes on from its own checkpoint"
        notes = (*_hung(account), *_notes(account), more)
        others = _others(account, None) if account.silent_for is None else _at(account)
        verdict = Diagnosis(run, "failed", headline, first, others=others, notes=notes)
        return verdict.then(f"ipexctl logs {run}")
    words = account.words_of(first.rank) if first is not None and first.rank is not None else None
    cause = choose(account, first)
    if first is None or words is None:
        headline = f"run {run} failed{after}: {account.status.reason or 'no rank says why'}"
        own = [line for line in account.context.mpirun.err if line != account.status.reason]
        lines = tuple(Line("mpirun", bare(line)) for line in _without_blanks(own, LINES))
        verdict = Diagnosis(run, "failed", headline, first, cause, lines, "mpirun on node0")
        nobody = not any(row.pid for row in account.status.ranks)
        after = "ipexctl doctor" if nobody else f"ipexctl logs {run}"
        return replace(verdict, others=_others(account, first), notes=_notes(account)).then(after)
    is_told = first.kind in _TOLD or (first.kind == "signal" and len(first.ranks) > 1)
    reason = account.status.reason if is_told else ""
    said = reason or f"rank {first.rank} on {first.host} {how_it_ended(first)}"
    headline = f"run {run} failed{after}: {said}"
    verdict = Diagnosis(run, "failed", headline, first, cause, last_lines(words), f"rank {first.rank}")
    logs = f"ipexctl logs {run} -r {first.rank}"
    return replace(verdict, others=_others(account, first), notes=_notes(account)).then(logs)


_TOLD: Final = ("lost", "not-begun", "mpirun", "stuck")
"""What the supervisor's own sentence tells better."""


def _is_over_time(account: RunSnapshot, first: Failure | None) -> bool:
    if first is not None and first.kind:
        return first.kind == "time-limit"
    return first is None and account.status.exit_code == 124 and "time limit" in account.status.reason


def _lost(account: RunSnapshot) -> Diagnosis:
    run, notes = account.id, list(_notes(account))
    took = f" after {lasted(account.took)}" if account.took is not None else ""
    if account.boot is not None and account.status.started is not None and account.boot > account.status.started:
        why = f"node0 ({account.node0}) was started anew meanwhile"
    else:
        why = f"its supervisor on node0 ({account.node0}) died: killed by somebody, or by the kernel for want of memory"
        notes.append(f"on {account.node0}, as root: dmesg -T | grep -i kill shows whether the kernel did it")
    lines = tuple(Line("supervisor", bare(line)) for line in _without_blanks(account.supervise, LINES))
    cause = choose(account, None, hung=True)
    return Diagnosis(
        run,
        "lost",
        f"run {run} is lost{took}: {why}; its ranks end themselves within a minute",
        None,
        cause,
        lines,
        "the supervisor" if lines else "",
        _others(account, None),
        tuple(notes),
        (f"ipexctl logs {run}",),
    )


def _stopped(account: RunSnapshot) -> Diagnosis:
    by = {130: "by Ctrl-C", 143: "by ipexctl stop, or SIGTERM"}.get(account.status.exit_code or 0, "by a signal")
    after = f" after {lasted(account.took)}" if account.took is not None else ""
    headline = f"run {account.id} was stopped{after}, {by}"
    logs = (f"ipexctl logs {account.id}",)
    others = _others(account, None) if account.silent_for is None else _at(account)
    notes = (*_hung(account), *_notes(account))
    return Diagnosis(account.id, "stopped", headline, others=others, notes=notes, next=logs)


def _hung(account: RunSnapshot) -> tuple[str, ...]:
    """That it was silent to its end: more time may not be what it lacked."""
    if account.silent_for is None:
        return ()
    quiet = f"no rank had said anything for {lasted(account.silent_for)} when it was ended: it may have hung"
    return (f"{quiet}; where it does, ipexctl dump last tells while it goes on",)


def _well(account: RunSnapshot) -> Diagnosis:
    after = f" after {lasted(account.took)}" if account.took is not None else ""
    headline = f"run {account.id} ended well{after}: {_size(account)}"
    return Diagnosis(account.id, "ok", headline, notes=_notes(account), next=(f"ipexctl logs {account.id}",))


def _going_on(account: RunSnapshot) -> Diagnosis:
    """Nothing has ended it. A silent one may hang."""
    run = account.id
    status = account.status
    age = f", {lasted(account.now - status.started)}" if status.started and account.now else ""
    headline = f"run {run} is {status.state}{age}: {_size(account)}"
    silent = account.silent_for
    cause = None
    after: tuple[str, ...] = (f"ipexctl attach {run}",)
    if silent is not None:
        headline += f"; no rank has said anything for {lasted(silent)}"
        cause = choose(account, None, hung=True)
        after = (f"ipexctl dump {run}", *after, f"ipexctl stop {run}")
    return Diagnosis(run, status.state, headline, None, cause, others=_at(account), notes=_notes(account), next=after)


def _at(account: RunSnapshot) -> tuple[AlikeRanks, ...]:
    """What each rank of a silent run is at, said once for all of whom it's true."""
    groups: dict[str, list[SilentRank]] = {}
    silent = account.status.silent
    for at in silent.ranks if silent is not None else ():
        last = f"said last: {shortened(bare(at.last), 200)}" if at.last else "said nothing yet"
        does = "busy" if (at.cpu or 0.0) > _BUSY else f"asleep in {at.waits_in}" if at.waits_in else "idle"
        groups.setdefault(f"({does}) {last}", []).append(at)
    found = []
    for sentence, rows in groups.items():
        ranks, hosts = tuple(row.rank for row in rows), tuple(dict.fromkeys(row.host for row in rows))
        found.append(AlikeRanks("running", ranks, hosts, f"{_who(ranks, hosts)} {sentence}"))
    return tuple(found)


def _who(ranks: Sequence[int], hosts: Sequence[str]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {fold_ranks(ranks)} on {fold(hosts)}"


def last_lines(words: RankOutput, most: int = LINES) -> tuple[Line, ...]:
    """Of stdout, then of stderr: where both have many, two thirds are stderr's."""
    err = _without_blanks(words.err, most)
    out = _without_blanks(words.out, most)
    for_out = max(most - len(err), min(len(out), _OF_STDOUT))
    out = out[len(out) - min(len(out), for_out) :]
    err = err[max(0, len(err) - (most - len(out))) :]
    return (*(Line("stdout", bare(line)) for line in out), *(Line("stderr", bare(line)) for line in err))


def _without_blanks(lines: Sequence[str], most: int) -> list[str]:
    kept = list(lines)
    while kept and not kept[-1].strip():
        kept.pop()
    return kept[-most:]


def _others(account: RunSnapshot, first: Failure | None) -> tuple[AlikeRanks, ...]:
    """What the rest was doing, said once for all of whom it's true."""
    groups: dict[tuple[What, str], list[RankStatus]] = {}
    chief = first.rank if first is not None else None
    meant = {chief, *(first.ranks if first is not None else ())}
    own = _exception(account.words_of(chief)) if chief is not None else None
    for row in account.status.ranks:
        if row.rank not in meant or (row.rank != chief and chief is None):
            groups.setdefault(_of_row(account, row, own, first), []).append(row)
    found = []
    for (what, sentence), rows in groups.items():
        ranks = tuple(row.rank for row in rows)
        hosts = tuple(dict.fromkeys(row.host for row in rows))
        found.append(AlikeRanks(what, ranks, hosts, f"{_who(ranks, hosts)} {sentence}"))
    return tuple(found)


def _exception(words: RankOutput) -> str | None:
    """What it raised, but for figures: addresses and ports differ among ranks that said the same."""
    return None if words.exception is None else _FIGURES.sub("N", ": ".join(words.exception))


def _of_row(account: RunSnapshot, row: RankStatus, own: str | None, first: Failure | None) -> tuple[What, str]:
    words = account.words_of(row.rank)
    if own is not None and _exception(words) == own:
        return "same", "printed the same"
    if row.state == "failed":
        how = how_it_ended(row)
        why = f": {shortened(': '.join(words.exception), 100)}" if words.exception else ""
        return "failed", f"{how}{' after it' if first is not None else ''}{why}"
    if row.state == "ok":
        return "ok", "ended well"
    if row.state == "lost":
        return "lost", "disconnected"
    if row.pid is None and row.state in ("starting", "stopped"):
        return "not-begun", "had not begun"
    if row.state == "stopped":
        return "ended", "ran until ipexctl ended the rest" if first is not None else "ran until the end"
    return "running", f"left as {row.state}"


def _notes(account: RunSnapshot) -> tuple[str, ...]:
    notes = []
    if account.restarts:
        times = "once" if len(account.restarts) == 1 else f"{len(account.restarts)} times"
        reasons = "; ".join(dict.fromkeys(account.restarts))
        notes.append(f"it had been started again {times} before, after: {shortened(reasons, 300)}")
    lost = {row.rank: row.lost for row in account.status.ranks if row.lost}
    if lost:
        total, ranks = sum(lost.values()), fold_ranks(lost)
        notes.append(
            f"{total:,} bytes of the output of rank{'s' * (len(lost) > 1)} {ranks} are missing: a disk was full; the "
            "place is marked in the log"
        )
    if account.status.unwritten_events:
        notes.append(f"{account.status.unwritten_events} events are missing from node0's record: its disk was full")
    for row in account.status.ranks:
        notes.extend(f"rank {row.rank} on {row.host}: {text}" for text in row.mismatch[:1])
        if len(notes) > 6:
            break
    return tuple(notes)


def _size(account: RunSnapshot) -> str:
    ranks, nodes = len(account.status.ranks), len(account.context.hosts)
    return f"{ranks} rank{'s' * (ranks != 1)} on {nodes} node{'s' * (nodes != 1)}"


def lasted(seconds: float) -> str:
    """`0.4 s`, `45 s`, `12 min`, `3 h 5 min`, `2 d 4 h`."""
    if seconds < 1:
        return f"{max(0.0, seconds):.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"
