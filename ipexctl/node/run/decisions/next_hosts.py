"""Decides on which hosts a run continues after a loss: which hosts of its pool answer, and whether they suffice. Pure.

Once all other hosts have answered, a lost host is not waited for. A host whose ranks did not begin, or that refused its
job, skips the next attempt. If other hosts would not help, the run ends.

it fails ─► FIND ─► HostAnswered … ─► it is over ─► PrepareHosts ─► HostsPrepared ─► StartAttempt
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Collection, Sequence

from ipexctl.node.common.node_limits import HOST_ANSWER, LOST_HOST_ANSWER
from ipexctl.node.common.plan import for_hosts
from ipexctl.node.common.records import Detail, Failure
from ipexctl.node.run.decisions import supervisor_state as m
from ipexctl.node.run.decisions import verdict

if TYPE_CHECKING:
    from ipexctl.node.run.decisions.supervisor_state import HostSearch, SupervisorState, Transition

MISSING_AFTER = 8.0
"""Seconds after the launcher started until hosts without a started rank are asked."""
ASK_INTERVAL = 15.0


def hosts_of(state: SupervisorState) -> tuple[str, ...]:
    """Return the hosts of the attempt, in the order of their ranks."""
    return tuple(dict.fromkeys(peer.host for peer in state.ranks.values()))


# Which hosts answer


def begin_search(turn: Transition) -> None:
    """Ask all hosts of the plan but node0 whether they are there, if another attempt may follow and may leave hosts
    out."""
    if not turn.state.has_pool or turn.state.search is not None or not verdict.may_restart(turn.state):
        return
    hosts = tuple(host.name for host in turn.state.start.plan.hosts[1:])
    turn.set(search=m.HostSearch(turn.now.clock, frozenset(hosts)))
    turn.do(m.OnHosts(m.HostAct.FIND, hosts))


def on_host_answered(turn: Transition, event: m.HostAnswered) -> None:
    """Note a host's answer, or why there is none.

    Outside a search, a host without an answer loses ranks that have not begun.
    """
    search = turn.state.search
    if search is None:
        if event.problem:
            lose_missing(turn, event)
        return
    if event.host in search.present:
        return
    waiting, absent = search.waiting - {event.host}, dict(search.absent)
    if event.problem:
        absent[event.host] = event.problem
        turn.set(search=search._replace(waiting=waiting, absent=absent))
    else:  # the host may have failed to answer a moment before
        absent.pop(event.host, None)
        turn.set(search=search._replace(waiting=waiting, absent=absent, present=search.present | {event.host}))


def is_known(state: SupervisorState, now: float) -> bool:
    """True if the search has waited long enough: all have answered, or only hosts that were just lost have not."""
    search = state.search
    if search is None:
        return False
    seconds = now - search.began_at
    if not search.waiting or seconds > state.patience(HOST_ANSWER):
        return True
    return seconds > state.patience(LOST_HOST_ANSWER) and search.waiting <= lost_hosts(state)


def lost_hosts(state: SupervisorState) -> frozenset[str]:
    """Return the hosts whose ranks are all over without an exit of their own."""
    ranks = state.ranks.values()
    return frozenset(hosts_of(state)) - {peer.host for peer in ranks if peer.exit is not None or not peer.is_over}


# A host that is lost before its ranks have begun


def missing_hosts(state: SupervisorState) -> tuple[str, ...]:
    """Return the hosts, without node0, of which no rank has begun while the launcher runs."""
    launcher, begun = state.launcher, {peer.host for peer in state.ranks.values() if peer.has_begun}
    if state.ending is not None or launcher is None or launcher.ended_at is not None:
        return ()
    return tuple(host for host in hosts_of(state) if host not in begun and host != state.status.node0)


def check_missing(turn: Transition) -> None:
    """Ask hosts whose ranks do not begin. Otherwise their ranks count as lost only after two minutes."""
    launcher = turn.state.launcher
    if not turn.state.has_pool or not turn.state.shell or launcher is None:
        return
    hosts, now, asked_at = missing_hosts(turn.state), turn.now.clock, turn.state.asked_at
    is_answered = asked_at <= launcher.started_at or now - asked_at > ASK_INTERVAL
    if hosts and is_answered and now - launcher.started_at > MISSING_AFTER:
        turn.set(asked_at=turn.now.clock)
        turn.do(m.OnHosts(m.HostAct.FIND, hosts))


def lose_missing(turn: Transition, event: m.HostAnswered) -> None:
    """End the attempt if a host that cannot be reached is one of which no rank has begun."""
    if event.host in missing_hosts(turn.state):
        gone = [turn.set_rank_status(peer.rank, state="lost") for peer in turn.ranks if peer.host == event.host]
        reason, detail = describe_unreachable(event.host, gone, event.problem)
        verdict.fail(turn, reason, verdict.failure_of("lost", gone, detail))


def describe_unreachable(host: str, gone: Sequence[m.RankState], problem: str) -> tuple[str, Detail]:
    """Return the sentence about a host that cannot be reached, and its facts for programs."""
    reason = f"{host} can't be reached ({verdict.format_ranks(gone)}): {problem}"
    return reason, Detail("unreachable", {"place": host, "why": problem})


# The next attempt


def choose(turn: Transition) -> tuple[str, ...]:
    """Hosts of the next attempt. If there can be none, returns an empty tuple and sets the run's reason."""
    search = turn.state.search
    assert search is not None
    blame_absent(turn, search)
    hosts = node0_and(turn.state, search.present - refusing_hosts(turn.state))
    if len(hosts) < least_hosts(turn.state):
        end_for_lack(turn, hosts)
        return ()
    first = turn.state.status.first_failure
    needs_others = first is not None and verdict.KINDS[first.kind].is_of_hosts
    return () if needs_others and hosts == hosts_of(turn.state) else hosts


def node0_and(state: SupervisorState, present: Collection[str]) -> tuple[str, ...]:
    """Return node0, and those of the present hosts that the plan has, in the plan's order."""
    node0, *others = (host.name for host in state.start.plan.hosts)
    return (node0, *(name for name in others if name in present))


def blame_absent(turn: Transition, search: HostSearch) -> None:
    """If a host of the attempt does not answer, make its loss the cause of the failure."""
    first, ending = turn.state.status.first_failure, turn.state.ending
    if first is None or ending is None or not verdict.KINDS[first.kind].may_hide_loss:
        return
    absent = {**dict.fromkeys(search.waiting, "no answer"), **search.absent}
    gone = [peer for peer in turn.ranks if peer.host in absent and peer.exit is None]
    if not gone:
        return
    host = gone[0].host
    gone = [turn.set_rank_status(peer.rank, state="lost") for peer in gone if peer.host == host]
    reason, detail = describe_unreachable(host, gone, absent[host])
    ranks = tuple(peer.rank for peer in gone)
    loss = Failure(gone[0].rank, host, at=first.at, kind="lost", ranks=ranks, detail=detail)
    verdict.replace_verdict(turn, ending._replace(code=1), reason, loss)


def refusing_hosts(state: SupervisorState) -> frozenset[str]:
    """Hosts that answer but whose ranks do not begin; empty if node0's do not: then no host is at fault."""
    first = state.status.first_failure
    if first is None or not verdict.KINDS[first.kind].is_of_hosts:
        return frozenset()
    hosts = frozenset(peer.host for peer in state.ranks.values() if peer.rank in first.ranks)
    return frozenset() if state.status.node0 in hosts else hosts


def least_hosts(state: SupervisorState) -> int:
    """Return how many hosts an attempt needs: --min-hosts, else all."""
    return state.asked.min_hosts or len(state.start.plan.hosts)


def end_for_lack(turn: Transition, hosts: Sequence[str]) -> None:
    """Add to the reason of the end that too few hosts answer for another attempt."""
    minimum = least_hosts(turn.state)
    answer = "1 host answers" if len(hosts) == 1 else f"{len(hosts)} hosts answer"
    reason = f"{turn.state.status.reason}; {answer}, fewer than --min-hosts {minimum}"
    turn.set_status(reason=reason)
    turn.log("hosts-lacking", hosts=list(hosts), least=minimum)


def restart(turn: Transition, hosts: Collection[str]) -> None:
    """Begin the next attempt on these hosts."""
    verdict.begin_next_attempt(turn)
    plan_attempt(turn, hosts)


def plan_attempt(turn: Transition, hosts: Collection[str]) -> None:
    """Plan the attempt for these hosts, and have them prepared for it."""
    plan = for_hosts(turn.state.start.plan, hosts)
    turn.set(plan=plan, ranks=m.first_ranks(plan), is_preparing=True, asked_at=turn.now.clock)
    turn.set_status(hosts=hosts_of(turn.state), nodes=len(plan.hosts), world_size=plan.world_size)
    search = turn.state.search
    absent = {} if search is None else {**dict.fromkeys(search.waiting, "no answer"), **search.absent}
    turn.log("hosts", attempt=turn.state.status.attempt, hosts=list(hosts_of(turn.state)), absent=absent)
    turn.do(m.SupervisorAct.PREPARE_HOSTS)


def on_hosts_prepared(turn: Transition, event: m.HostsPrepared) -> None:
    """Start the attempt if all hosts are prepared. Else plan it without those that failed, or end the run."""
    if not turn.state.is_preparing or turn.state.ending is not None:
        return
    search = turn.state.search
    turn.set(is_preparing=False)
    if not event.failed:
        turn.set(search=None)
        turn.do(m.StartAttempt(turn.state.status.attempts[-1].reason))
        return
    assert search is not None
    turn.set(
        search=search._replace(present=search.present - set(event.failed), absent={**search.absent, **event.failed})
    )
    hosts = node0_and(turn.state, search.present - set(event.failed))
    if len(hosts) >= least_hosts(turn.state) and turn.state.status.node0 not in event.failed:
        plan_attempt(turn, hosts)
        return
    gone = [peer for peer in turn.ranks if peer.host in event.failed]
    host, problem = next(iter(event.failed.items()))
    reason = f"{verdict.ranks_on_hosts(gone)} can't be started: {problem}"
    detail = Detail("unreachable", {"place": host, "why": problem})
    verdict.fail(turn, reason, verdict.failure_of("not-begun", gone, detail))
    if turn.state.status.node0 not in event.failed:
        end_for_lack(turn, hosts)
