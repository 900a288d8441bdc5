"""From what the hosts say they have to what is done: which generation, who gets it, and who shares a home. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ipexctl.hosts.host import Host
    from ipexctl.sync.node_calls import Generation, TreeState


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """The same generation for all hosts, and what is to be done for it."""

    generation: int
    whole: tuple[Host, ...]
    """Nothing to do."""
    leaders: tuple[Host, ...]
    """One of each home."""
    followers: tuple[tuple[Host, Host], ...]
    """Each with the one whose home it shares."""
    ended: tuple[str, ...]
    """Runs that are over by their own record, wherever that is."""
    users: tuple[str, ...] = ()
    """The runs that keep the generations before it."""


def make_sync_plan(hosts: Sequence[Host], answers: Mapping[str, TreeState]) -> SyncPlan:
    there = [host for host in hosts if host.name in answers]
    every = [each for host in there for each in answers[host.name].generations]
    ended = {run for each in every for run in each.ended}
    held = {(each.number, run) for each in every for run in each.held if run not in ended}
    number = 1
    while not all(_may_have(answers[host.name].generation(number), ended) for host in there):
        number += 1
    whole = tuple(host for host in there if _has(answers[host.name], number))
    leaders: dict[str, Host] = {}
    followers = []
    for host in there:
        if host in whole:
            continue
        store = answers[host.name].store or f"alone:{host.name}"
        leader = leaders.setdefault(store, host)
        if leader is not host:
            followers.append((host, leader))
    users = sorted({run for at, run in held if at < number})
    return SyncPlan(number, whole, tuple(leaders.values()), tuple(followers), tuple(sorted(ended)), tuple(users))


def _may_have(generation: Generation | None, ended: set[str]) -> bool:
    """Whether that generation may become what is wanted: it is, or it isn't there, or no run uses it."""
    return generation is None or generation.whole or not set(generation.held) - ended


def _has(answer: TreeState, number: int) -> bool:
    """Whether it is what is wanted already. The lease, where one was asked for, went to the first that is."""
    first = next((each for each in answer.generations if each.whole), None)
    return first is not None and first.number == number


def homes_differ(homes: Mapping[str, str]) -> str | None:
    """Ranks have one working directory; why they can't, as a sentence."""
    places: dict[str, str] = {}
    for host, home in homes.items():
        places.setdefault(home, host)
    if len(places) < 2:
        return None
    return "our directory is not at one path: " + ", ".join(f"{home} on {host}" for home, host in places.items())
