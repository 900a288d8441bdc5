"""Decides how the ranks of a live run are profiled (`why --profile`). Pure.

All ranks profile the same steps, because profiling one delays the others: each reports how many it has made, and the
profile begins a little later than the most. Copies that train apart have steps of their own.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Collection, Mapping

from ipexctl.node.common.node_limits import DUMP_REPLIES, PROFILE_LEAD, PROFILE_STEPS
from ipexctl.node.run.decisions import supervisor_state as m

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json
    from ipexctl.node.run.decisions.supervisor_state import PendingProfile, RankState, Transition
    from ipexctl.node.run.meter.rank_profile import RankProfile, StepCount

SILENT = f"its wrapper process didn't answer within {DUMP_REPLIES:g} s"
LEAST_LEAD = 2
"""Steps from the count to the profile: the command reads the request at the end of a step, and times another one."""
PROFILED = 2
STANDS = 10.0
"""Usual steps without one after which a rank stands still."""


def ask_ranks(
    turn: Transition, kind: str, request: str, ranks: Collection[int] | None = None
) -> tuple[dict[int, Json], frozenset[int]]:
    """Send a request to these ranks (None for all); returns a row for each, and the ranks that will answer."""
    rows: dict[int, Json] = {}
    waiting = set()
    for peer in turn.ranks:
        if ranks is not None and peer.rank not in ranks:
            continue
        state, code, reason = peer.status.state, peer.status.exit_code, ""
        if state == "starting":
            reason = "it has not started yet"
        elif state != "running":
            reason = "it has ended" + ("" if code is None else f" with exit code {code}")
        elif peer.is_connected:
            turn.send(peer.rank, kind, id=request)
            waiting.add(peer.rank)
        else:
            reason = "it is reconnecting to the supervisor"
        rows[peer.rank] = {"rank": peer.rank, "host": peer.host, "state": state, "why": reason}
    return rows, frozenset(waiting)


def on_profile_asked(turn: Transition, request: str) -> None:
    """Ask all ranks how many steps they have made. A request that comes meanwhile gets the same answer."""
    pending = turn.state.profile
    if pending is not None:
        turn.set(profile=pending._replace(ids=(*pending.ids, request)))
        return
    rows, waiting = ask_ranks(turn, "count-steps", request)
    number = turn.state.profiles + 1
    pending = m.PendingProfile((request,), number, rows, waiting, turn.now.clock + DUMP_REPLIES)
    turn.set(profile=pending, profiles=number)
    check(turn)


def on_step_count(turn: Transition, peer: RankState, message: StepCount) -> None:
    """Note how fast a rank steps, or why it cannot be profiled."""
    pending = turn.state.profile
    if pending is None or message.id != pending.ids[0] or peer.rank not in pending.waiting:
        return
    if not message.usual:
        reason = "no two optimizer steps of it were counted yet"
    elif message.since > max(PROFILE_STEPS, STANDS * message.usual):
        reason = f"its last optimizer step was {message.since:.0f} s ago"
    else:
        reason, pending = "", pending._replace(counts={**pending.counts, peer.rank: message})
    turn.set(profile=_answered(pending, peer.rank, reason))
    check(turn)


def on_profile(turn: Transition, peer: RankState, message: RankProfile) -> None:
    """Note that a rank has profiled its steps."""
    pending = turn.state.profile
    if pending is not None and message.request == pending.number and peer.rank in pending.waiting:
        turn.set(profile=_answered(pending, peer.rank, message.note))
        check(turn)


def check(turn: Transition) -> None:
    """Begin to profile once all ranks have counted, and write the result once all have answered or are late."""
    pending = turn.state.profile
    if pending is None:
        return
    is_late = turn.now.clock > pending.until
    for rank in sorted(pending.waiting):
        if turn.state.ranks[rank].status.state != "running":
            pending = _answered(pending, rank, "it has ended")
        elif is_late:
            late = f"its steps took longer than {pending.seconds:.0f} s" if pending.seconds else SILENT
            pending = _answered(pending, rank, late)
    if not pending.waiting and pending.counts and not pending.seconds:
        pending = _begin(turn, pending)
    if pending.waiting:
        turn.set(profile=pending)
        return
    turn.set(profile=None)
    for each in pending.ids:
        turn.do(m.WriteDump(each, tuple(row for _, row in sorted(pending.rows.items())), kind="profile"))


def _begin(turn: Transition, pending: PendingProfile) -> PendingProfile:
    counts = pending.counts
    steps = steps_to_profile(counts)
    lead = max(steps[rank] - count.steps for rank, count in counts.items())
    seconds = PROFILE_STEPS + 3 * (lead + PROFILED) * max(count.usual for count in counts.values())
    for rank, after in steps.items():
        turn.send(rank, "profile", attempt=turn.state.status.attempt, request=pending.number, after_step=after)
    return pending._replace(waiting=frozenset(counts), until=turn.now.clock + seconds, seconds=seconds)


def steps_to_profile(counts: Mapping[int, StepCount]) -> dict[int, int]:
    """Rank → step after which its profile begins."""
    steps = [count.steps for count in counts.values()]
    lead = max(LEAST_LEAD, math.ceil(PROFILE_LEAD / min(count.usual for count in counts.values())))
    are_together = max(steps) - min(steps) <= lead
    return {rank: (max(steps) if are_together else count.steps) + lead for rank, count in counts.items()}


def _answered(pending: PendingProfile, rank: int, reason: str) -> PendingProfile:
    rows = {**pending.rows, rank: {**pending.rows[rank], "why": reason}}
    return pending._replace(rows=rows, waiting=pending.waiting - {rank})
