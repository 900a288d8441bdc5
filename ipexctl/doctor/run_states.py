"""The states of runs: alive, ended or unknown, from the facts of all hosts. Pure.

A run's record is on node0 (or in a shared home), and only node0 can tell whether its supervisor is alive
(`node/common/liveness.py: sight_of`). A run is alive if any host has its supervisor; it ended by its record, or if
node0 no longer has that process. Everything else is unknown, which never counts as ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

from ipexctl.doctor.finding import few
from ipexctl.facts.facts import Facts
from ipexctl.facts.system import RunSupervisor
from ipexctl.hosts.host import Host
from ipexctl.node.common.liveness import Sight, sight_of
from ipexctl.text import printable

Answers = Sequence[tuple[Host, Facts | None]]
"""Every host of the call; None for one that did not answer."""


class RunLife(NamedTuple):
    life: Literal["alive", "ended", "unknown"]
    reason: str = ""


NOT_AMONG_HOSTS: Final = "its node0 is not among the hosts"
UNKNOWN: Final = RunLife("unknown", NOT_AMONG_HOSTS)


def named_runs(answers: Answers) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for _, facts in answers:
        if facts is not None:
            found.update(dict.fromkeys(process.run for process in facts.activity.processes))
            found.update(dict.fromkeys(facts.activity.runs))
    return tuple(found)


def run_states(answers: Answers, node0s: Mapping[str, Host]) -> dict[str, RunLife]:
    """`node0s`: run → its node0, for runs started from the control machine."""
    supervisors: dict[str, list[tuple[Host, Facts, RunSupervisor]]] = {}
    ended: dict[str, Host] = {}
    open_records: set[str] = set()
    for host, facts in answers:
        if facts is not None:
            open_records.update(facts.activity.runs)
            for supervisor in facts.activity.supervisors:
                supervisors.setdefault(supervisor.run, []).append((host, facts, supervisor))
            for run in facts.activity.ended:
                ended.setdefault(run, host)
    states = {}
    for run in named_runs(answers):
        seen = supervisors.get(run, [])
        sights = [(host, _sight(supervisor, facts)) for host, facts, supervisor in seen]
        lost = next((host for host, sight in sights if sight == "gone"), None)
        if any(sight == "alive" for _, sight in sights):
            states[run] = RunLife("alive")
        elif run in ended and run not in open_records:
            states[run] = RunLife("ended", f"by its record on {ended[run].name[:30]}")
        elif lost is not None:
            states[run] = RunLife("ended", f"its supervisor on {lost.name[:30]} is gone")
        else:
            recorded = next((supervisor.host for _, _, supervisor in seen if supervisor.host), None)
            states[run] = RunLife("unknown", _why_unknown(answers, node0s.get(run), recorded))
    return states


def _sight(supervisor: RunSupervisor, facts: Facts) -> Sight:
    recorded = supervisor.is_here, supervisor.machine, supervisor.boot
    return sight_of(*recorded, hostname=facts.network.hostname, host_boot=facts.system.boot)


def _why_unknown(answers: Answers, node0: Host | None, recorded: str | None) -> str:
    name = node0.name if node0 is not None else recorded
    silent = [host.name[:30] for host, facts in answers if facts is None]
    if name is None and silent:
        return f"{few(silent, 2)} did not answer, and no other host has its record"
    if name is None:
        return NOT_AMONG_HOSTS
    shown = printable(name)[:30]
    for host, facts in answers:
        # By name or address: its name may differ between hostfiles.
        if host.name == name or (node0 is not None and (host.address, host.port) == (node0.address, node0.port)):
            return f"its node0, {shown}, {'did not answer' if facts is None else 'has no clear record of it'}"
    return f"its node0, {shown}, is not among the hosts"
