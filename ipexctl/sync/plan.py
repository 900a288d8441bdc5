"""Plans a sync from the hosts' answers: generation, hosts that need files, shared homes. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ipexctl.hosts.home import find_leaders

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ipexctl.hosts.host import Host
    from ipexctl.node.files.replies import Generation
    from ipexctl.sync.node_calls import TreeState


class SyncPlan(NamedTuple):
    """One generation for all hosts, and the hosts by what they need for it."""

    generation: int
    whole: tuple[Host, ...]
    """Hosts that have it."""
    leaders: tuple[Host, ...]
    """One host of each home that lacks it."""
    followers: tuple[tuple[Host, Host], ...]
    """The other hosts, each with the host whose home it shares: a leader, or one that has it."""
    ended: tuple[str, ...]
    """Runs that ended, by the record on any host."""
    users: tuple[str, ...] = ()
    """Runs that use the generations before it."""


def make_sync_plan(hosts: Sequence[Host], answers: Mapping[str, TreeState]) -> SyncPlan:
    present = [host for host in hosts if host.name in answers]
    generations = [generation for host in present for generation in answers[host.name].generations]
    ended = {run for generation in generations for run in generation.ended}
    held = {(generation.number, run) for generation in generations for run in generation.held if run not in ended}
    number = 1
    while not all(_is_usable(answers[host.name].generation(number), ended) for host in present):
        number += 1
    whole = tuple(host for host in present if _has(answers[host.name], number))
    # A host without it, unlike another one with the same home, answered while that one wrote it.
    changed_first = sorted(whole, key=lambda host: not answers[host.name].is_changed)
    lacking = [host for host in present if host not in whole]
    leader_of = find_leaders([*changed_first, *lacking], lambda host: answers[host.name].store)
    leaders = tuple(host for host in lacking if leader_of[host] == host)
    followers = tuple((host, leader_of[host]) for host in lacking if leader_of[host] != host)
    users = sorted({run for at, run in held if at < number})
    return SyncPlan(number, whole, leaders, followers, tuple(sorted(ended)), tuple(users))


def _is_usable(generation: Generation | None, ended: set[str]) -> bool:
    """True if it is absent, up to date, or not used by a run."""
    return generation is None or generation.whole or not set(generation.held) - ended


def _has(answer: TreeState, number: int) -> bool:
    """True if it is the first up-to-date generation: the host gave the lease to that one."""
    first = next((generation for generation in answer.generations if generation.whole), None)
    return first is not None and first.number == number
