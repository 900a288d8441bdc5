"""Find out what runs on hosts now: runs of all accounts, calls that wait, and other programs that use cores. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ipexctl.facts.live_runs import BusyProgram, HostSnapshot, LockHolder
from ipexctl.launch.other_runs import find_other_runs, find_waiting
from ipexctl.node.common.plan import OtherRun


@dataclass(frozen=True, slots=True)
class RunOnHosts:
    """A run, as the hosts show it."""

    run: OtherRun
    ranks: int
    """Ranks that live on these hosts."""
    script: str
    """The command of the ranks; empty if no host shows it."""


@dataclass(frozen=True, slots=True)
class BusyPrograms:
    """Processes of one program and account, on all hosts together."""

    name: str
    account: str
    hosts: tuple[str, ...]
    count: int
    cores: float
    """Cores that the processes keep busy."""
    since: float | None
    """UNIX time at which the oldest of them started; None if unknown."""


@dataclass(frozen=True, slots=True)
class HostsNow:
    """Everything that runs on the hosts."""

    runs: tuple[RunOnHosts, ...]
    waiting: tuple[OtherRun, ...]
    """In the order of the queue."""
    programs: tuple[BusyPrograms, ...]
    free: tuple[str, ...]
    """Hosts where none of these runs. They show the processes of all accounts."""
    hiding: tuple[str, ...]
    """Hosts that do not show the processes of other accounts."""
    holders: Mapping[str, LockHolder] = field(default_factory=dict)
    """Host → the process that holds its lock, if that is no start of ipexctl."""


def hosts_now(snapshots: Mapping[str, HostSnapshot]) -> HostsNow:
    """Return what runs on the hosts. `snapshots`: host → what runs there; without hosts that did not answer."""
    on_hosts = {name: snapshot.runs for name, snapshot in snapshots.items()}
    runs = []
    for other in find_other_runs(on_hosts, ""):
        lives = [
            live for on_host in on_hosts.values() for live in on_host.runs if _is_of(other, live.run, live.account)
        ]
        script = next((live.script for live in lives if live.script), "")
        runs.append(RunOnHosts(other, sum(live.ranks for live in lives), script))
    waiting = find_waiting(on_hosts, {})
    programs = _by_name(snapshots)
    busy = {host for entry in runs for host in entry.run.hosts} | {host for call in waiting for host in call.hosts}
    busy |= {host for entry in programs for host in entry.hosts}
    holders = {host: held for host, snapshot in snapshots.items() if (held := snapshot.runs.holder) is not None}
    busy |= holders.keys()
    hiding = tuple(name for name, snapshot in snapshots.items() if snapshot.runs.hides_others)
    free = tuple(name for name in snapshots if name not in busy and name not in hiding)
    runs.sort(key=lambda entry: entry.run.since or 0)
    return HostsNow(tuple(runs), waiting, programs, free, hiding, holders)


def _is_of(other: OtherRun, run: str, owner: str) -> bool:
    """True if a live run on a host is this run."""
    return (other.id, other.account) == (run, owner)


def _by_name(snapshots: Mapping[str, HostSnapshot]) -> tuple[BusyPrograms, ...]:
    """Return the busy programs of all hosts, those with the most cores first."""
    groups: dict[tuple[str, str], list[tuple[str, BusyProgram]]] = {}
    for host, snapshot in snapshots.items():
        for program in snapshot.programs:
            groups.setdefault((program.name, program.account), []).append((host, program))
    programs = [
        BusyPrograms(
            name,
            account,
            tuple(dict.fromkeys(host for host, _ in group)),
            len(group),
            round(sum(program.cores for _, program in group), 2),
            min((program.since for _, program in group if program.since is not None), default=None),
        )
        for (name, account), group in groups.items()
    ]
    return tuple(sorted(programs, key=lambda entry: -entry.cores))
