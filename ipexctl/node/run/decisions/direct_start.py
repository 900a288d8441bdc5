"""Decides about ranks started without mpirun: when their wrappers have ended, and what a lost starter means. Pure.

Running ranks do not need their starter; if it is lost, its wrappers count as ended once their ranks are done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping

from ipexctl.node.common.node_limits import LAST_MESSAGES, RANK_SILENCE, STARTER_CALL, STARTER_RECONNECT
from ipexctl.node.common.records import Detail, split_details
from ipexctl.node.run.decisions import next_hosts, verdict
from ipexctl.node.run.decisions import supervisor_state as m

MOST_REFUSED = 5

if TYPE_CHECKING:
    from ipexctl.node.run.decisions.supervisor_state import LauncherState, RankState, SupervisorState, Transition


def on_starter_changed(turn: Transition, event: m.StarterChanged) -> None:
    """Note that a host's starter has connected, or has lost its connection."""
    before = turn.state.starters.get(event.host, m.StarterState())
    if not event.is_connected:
        away_since = turn.now.clock if event.was_heard else before.away_since
        set_starter(turn, event.host, m.StarterState(away_since=away_since))
        turn.log("starter-lost", host=event.host)
    else:
        set_starter(turn, event.host, m.StarterState(is_connected=True, away_since=before.away_since))
        turn.log("starter", host=event.host)
        next_hosts.on_host_answered(turn, m.HostAnswered(event.host))
    if event.refused:
        note_changed_orders(turn, event)


def note_changed_orders(turn: Transition, event: m.StarterChanged) -> None:
    """Tell the user that orders or answers are changed, and end the attempt if that goes on: the host would get no
    order, or node0 no answer, for as long as it does."""
    turn.log("order-refused", host=event.host, refused=event.refused)
    turn.do(m.AddNote(turn.ranks[0].rank, "changed-orders", {"host": event.host}))
    if event.refused >= MOST_REFUSED and turn.state.ending is None:
        there = [peer for peer in turn.ranks if peer.host == event.host]
        reason = f"somebody on the network changes what node0 and {event.host} send each other; none of it is obeyed"
        verdict.fail(turn, reason, verdict.failure_of("changed-orders", there))


def set_starter(turn: Transition, host: str, starter: m.StarterState) -> None:
    """Put the state of a host's starter in place of the one before."""
    turn.set(starters={**turn.state.starters, host: starter})


def on_wrapper_ended(turn: Transition, event: m.WrapperExited) -> None:
    """Note how a rank's wrapper ended; the first report of this attempt counts."""
    peer = turn.state.ranks[event.rank]
    if event.attempt == turn.state.status.attempt and peer.wrapper_code is None:
        turn.set_rank(event.rank, wrapper_code=event.code, wrapper_ended_at=turn.now.clock)


def drop_silent_starters(turn: Transition, received: Mapping[str, float]) -> None:
    """Close the connections to starters from which nothing has come for too long. `received`: host → when."""
    now = turn.now.clock
    for host, starter in turn.state.starters.items():
        last = max(received.get(host, now), turn.state.resumed_at)
        if starter.is_connected and now - last > turn.state.patience(RANK_SILENCE):
            turn.do(m.OnHosts(m.HostAct.DROP_STARTERS, (host,)))
            on_starter_changed(turn, m.StarterChanged(host, is_connected=False))


def wrappers_exit_code(state: SupervisorState, launcher: LauncherState, now: float) -> int | None:
    """Exit code of the first failed wrapper, or 0; None while a wrapper may still be running."""
    ranks = state.ranks.values()
    is_killed = launcher.killed_at is not None and now - launcher.killed_at > state.patience(LAST_MESSAGES)
    if not is_killed and not all(is_gone(state, peer, now) for peer in ranks):
        return None
    return next((peer.wrapper_code for peer in ranks if peer.wrapper_code), 0)


def is_gone(state: SupervisorState, peer: RankState, now: float) -> bool:
    """True if nothing can come from the rank any more: its wrapper has ended, or its starter stays away."""
    if peer.wrapper_code is not None:
        return True
    starter = state.starters.get(peer.host)
    if starter is None or starter.is_connected or now - starter.away_since <= state.patience(STARTER_RECONNECT):
        return False
    return peer.is_done or (state.ending is not None and not peer.has_begun)


def has_host_ended(state: SupervisorState, peer: RankState, now: float) -> bool:
    """True if a host closed the connections of a rank and of its starter at once, as when it reboots, and neither came
    back."""
    starter, at = state.starters.get(peer.host), peer.disconnected_at
    if starter is None or starter.is_connected or at is None or abs(starter.away_since - at) > verdict.AT_ONCE:
        return False
    return now - max(starter.away_since, at) > state.patience(STARTER_RECONNECT)


def has_wrapper_ended_early(state: SupervisorState) -> bool:
    """True if a wrapper exited before its rank began. The wrapper's output may say why."""
    return any(peer.wrapper_code is not None and not peer.has_begun for peer in state.ranks.values())


def call_starters(turn: Transition) -> None:
    """Have lost starters that the attempt waits for begun again."""
    is_first = turn.state.status.attempt == 0
    if turn.state.ending is not None or is_first:
        return
    now, waiting = turn.now.clock, {peer.host for peer in turn.ranks if not peer.has_begun}
    gone = {
        host: starter for host, starter in turn.state.starters.items() if host in waiting and not starter.is_connected
    }
    due = tuple(host for host, starter in gone.items() if now - starter.called_at > turn.state.patience(STARTER_CALL))
    if due:
        for host in due:
            set_starter(turn, host, gone[host]._replace(called_at=now))
        turn.do(m.OnHosts(m.HostAct.CALL_STARTERS, due))


def check_beginning(turn: Transition, launcher: LauncherState, launcher_log: tuple[str, ...]) -> None:
    """Fail the attempt if a wrapper exited before its rank began, or its starter is gone."""
    if turn.state.ending is not None:
        return
    now = turn.now.clock
    waiting = [peer for peer in turn.ranks if not peer.has_begun]
    ended = [peer for peer in waiting if peer.wrapper_ended_at is not None]
    if ended and now - min(peer.wrapper_ended_at or now for peer in ended) > turn.state.patience(LAST_MESSAGES):
        code, by = m.LauncherState(0.0, code=ended[0].wrapper_code).ended_by
        tail = tuple(split_details(list(launcher_log))[0])
        turn.set_status(mpirun=turn.state.status.mpirun._replace(tail=tail))
        verdict.fail_with_program(turn, ended, code, by)
        return
    # After a restart, a starter has been silent for a while before it counts as gone, so it gets less time.
    is_again = turn.state.has_pool and turn.state.status.attempt > 0
    limit = turn.state.patience(STARTER_RECONNECT if is_again else RANK_SILENCE)
    away = [
        peer
        for peer in waiting
        if (starter := turn.state.starters.get(peer.host)) is not None
        and not starter.is_connected
        and now - max(launcher.started_at, starter.away_since) > limit
    ]
    if away:
        hosts = ", ".join(dict.fromkeys(peer.host for peer in away))
        reason = f"{verdict.ranks_on_hosts(away)} could not be started: the starter on {hosts} is gone"
        verdict.fail(turn, reason, verdict.failure_of("not-begun", away, Detail("no-starter", {"place": hosts})))
