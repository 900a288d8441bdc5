"""Find and describe other runs on the hosts of a plan: whose they are, on which cores, since when, what both share.
Nothing here reads a file or contacts a host.

Hosts show the runs of all accounts. One run may be on several hosts, so what the hosts show is first grouped by run.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from ipexctl.facts.cpu import CpuList
from ipexctl.facts.live_runs import RunOnHost, RunsOnHost, WaitingCall
from ipexctl.hosts.nodeset import fold
from ipexctl.node.common.plan import OtherRun, RunBy
from ipexctl.text import short_list

MOST_SHOWN: Final = 3
"""Runs that a text describes; the others are counted."""


def find_other_runs(
    runs_on_hosts: Mapping[str, RunsOnHost], run: str, planned: Mapping[str, CpuList | None] | None = None
) -> tuple[OtherRun, ...]:
    """Return the runs on these hosts, except the run with the ID `run`.

    `runs_on_hosts`: host → its live runs. `planned`: host → cores of this run's ranks, or None for any core; without
    `planned`, nothing is shared.
    """
    hosts_of_run: dict[tuple[str, str], dict[str, RunOnHost]] = {}
    for host, runs_on_host in runs_on_hosts.items():
        for live in runs_on_host.runs:
            if live.run != run:
                hosts_of_run.setdefault((live.run, live.account), {})[host] = live
    others = []
    for (name, account), lives in hosts_of_run.items():
        cores = {host: live.cores for host, live in lives.items() if live.cores}
        shared = {host: _shared(cores[host], planned[host]) for host in cores if planned and host in planned}
        begins = [live.since for live in lives.values() if live.since is not None]
        others.append(
            OtherRun(
                name,
                account,
                "starting" if all(live.is_starting for live in lives.values()) else "running",
                tuple(lives),
                {host: str(numbers) for host, numbers in cores.items()},
                {host: str(numbers) for host, numbers in shared.items() if numbers},
                min(begins, default=None),
                min((live.until for live in lives.values() if live.until is not None), default=None),
                *_described(lives.values()),
            )
        )
    return tuple(others)


def find_waiting(
    runs_on_hosts: Mapping[str, RunsOnHost], mine: Mapping[str, WaitingCall | None]
) -> tuple[OtherRun, ...]:
    """Return the commands that wait for these hosts, in the order in which they came.

    `mine`: host → where this command waits itself. Only those before it count there. Without an entry, all count.
    """
    hosts_of_call: dict[tuple[str, str], dict[str, WaitingCall]] = {}
    for host, runs_on_host in runs_on_hosts.items():
        own = mine.get(host)
        for call in runs_on_host.waiting[: None if own is None else runs_on_host.waiting.index(own)]:
            hosts_of_call.setdefault((call.run, call.account), {}).setdefault(host, call)
    others = []
    for (name, account), calls in hosts_of_call.items():
        since = min((call.since for call in calls.values() if call.since is not None), default=None)
        until = max((call.until for call in calls.values() if call.until is not None), default=None)
        described = _described(calls.values())
        others.append(OtherRun(name, account, "waiting", tuple(calls), {}, {}, since, until, *described))
    return tuple(sorted(others, key=lambda other: other.since or 0))


def _described(shown: Iterable[RunOnHost | WaitingCall]) -> tuple[RunBy | None, str, str]:
    """Return who began the run, its script and its tag, from the first host that shows each.

    None or empty if no host does.
    """
    calls = [entry.call for entry in shown]
    by = next((call.by for call in calls if call.by is not None), None)
    return (
        by,
        next((call.script for call in calls if call.script), ""),
        next((call.tag for call in calls if call.tag), ""),
    )


def by_text(by: RunBy | None) -> str:
    """Format who began a run, as `alice@laptop`; empty if it is not known."""
    return "" if by is None else f"{by.user}@{by.host}"


def _shared(cores: CpuList, planned: CpuList | None) -> CpuList:
    """Return the cores that both use."""
    return cores if planned is None else cores & planned


def describe(other: OtherRun, now: float) -> str:
    """Describe a run, as in `run train-1124-0912 of alice is running on node[1-2] since 09:12 (cores 0-3)`."""
    since = "" if other.since is None else f" since {time_of(other.since, now)}"
    until = "" if other.until is None else f", until {time_of(other.until, now)} at most"
    cores = _by_cores(other.cores, other.hosts)
    state = "waits for" if other.state == "waiting" else f"is {other.state} on"
    more = ", ".join(filter(None, (by_text(other.by), other.tag)))
    account = other.account + (f" ({more})" if more else "")
    return f"run {other.id} of {account} {state} {fold(other.hosts)}{since}{until}" + (f" ({cores})" if cores else "")


def describe_all(others: Sequence[OtherRun], now: float) -> str:
    """Describe the first runs, and count the others."""
    texts = [describe(other, now) for other in others[:MOST_SHOWN]]
    return "; ".join(texts) + (f"; and {len(others) - MOST_SHOWN} more" if len(others) > MOST_SHOWN else "")


def notes_on(others: Sequence[OtherRun], now: float) -> tuple[str, ...]:
    """Return the note on other runs, as a tuple of one text; empty without other runs.

    A run that shares cores is described first.
    """
    if not others:
        return ()
    first = max(others, key=lambda other: bool(other.shared_cores))
    shared = _by_cores(first.shared_cores, first.hosts)
    text = describe(first, now) + (f", and shares {shared} with this run" if shared else "")
    if rest := [other for other in others if other is not first]:
        sharing = sum(bool(other.shared_cores) for other in rest)
        who = "" if sharing == len(rest) else f"{sharing} of them "
        text += f"; and {len(rest)} more" + (f", {who}also on cores of this run" if sharing else "")
    slow = "; ranks on the same cores slow one another" if shared else ""
    return (f"{text}{slow}; --wait S waits until the hosts are free, --exclusive refuses to start",)


def _by_cores(cores: Mapping[str, str], hosts: Collection[str]) -> str:
    """Format the cores, as in `cores 0-3 on node1, core 4 on node2`.

    The hosts are left out if they are all of `hosts`.
    """
    by_cores: dict[str, list[str]] = {}
    for host, numbers in cores.items():
        by_cores.setdefault(numbers, []).append(host)
    parts = []
    for text, names in by_cores.items():
        noun = "cores" if len(text) > 1 and not text.isdecimal() else "core"
        parts.append(f"{noun} {short_list(text)}" + ("" if len(names) == len(hosts) else f" on {fold(names)}"))
    return ", ".join(parts)


def time_of(seconds: float, now: float) -> str:
    """Format a time as `09:12`, or `Nov 24 09:12` if it is not today."""
    then, today = time.localtime(seconds), time.localtime(now)
    is_today = (then.tm_year, then.tm_yday) == (today.tm_year, today.tm_yday)
    return time.strftime("%H:%M" if is_today else "%b %d %H:%M", then)
