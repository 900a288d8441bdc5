"""Which runs are alive, by the answers of all hosts together. Pure.

A run's record is on node0 (with a shared home, on every host), and only node0 can tell whether its supervisor is
alive. So a run is alive where any host has its supervisor, and has ended by its record or where node0 itself has no
such process any more. Everything else is unknown, which is never taken for an end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from ipexctl.doctor.host_context import few
from ipexctl.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ipexctl.facts.facts import Facts
    from ipexctl.facts.system import RunSupervisor
    from ipexctl.hosts.host import Host

    Answers = Sequence[tuple[Host, Facts | None]]
    """Every host that was asked; without facts, it did not answer."""


@dataclass(frozen=True, slots=True)
class RunState:
    life: Literal["alive", "ended", "unknown"]
    reason: str = ""
    """By whose word it has ended, or why that can't be told."""


NOT_ASKED: Final = "its node0 was not asked"
UNKNOWN: Final = RunState("unknown", NOT_ASKED)


def named_runs(answers: Answers) -> tuple[str, ...]:
    """Every run that a host has a process of, or an open record."""
    found: dict[str, None] = {}
    for _, facts in answers:
        if facts is not None:
            found.update(dict.fromkeys(process.run for process in facts.activity.processes))
            found.update(dict.fromkeys(facts.activity.runs))
    return tuple(found)


def run_states(answers: Answers, node0s: Mapping[str, Host]) -> dict[str, RunState]:
    """The state of every run that is named. `node0s`: those that are known on the control machine, by run."""
    supervisors: dict[str, list[tuple[Host, Facts, RunSupervisor]]] = {}
    ended: dict[str, Host] = {}
    going: set[str] = set()
    for host, facts in answers:
        if facts is not None:
            going.update(facts.activity.runs)
            for supervisor in facts.activity.supervisors:
                supervisors.setdefault(supervisor.run, []).append((host, facts, supervisor))
            for run in facts.activity.ended:
                ended.setdefault(run, host)
    states = {}
    for run in named_runs(answers):
        seen = supervisors.get(run, [])
        lost = next((host for host, facts, each in seen if _is_gone(each, facts)), None)
        if any(each.is_here for _, _, each in seen):
            states[run] = RunState("alive")
        elif run in ended and run not in going:
            states[run] = RunState("ended", f"its record on {ended[run].name[:30]} says so")
        elif lost is not None:
            states[run] = RunState("ended", f"its supervisor on {lost.name[:30]} is gone")
        else:
            recorded = next((each.host for _, _, each in seen if each.host), None)
            states[run] = RunState("unknown", _why_unknown(answers, node0s.get(run), recorded))
    return states


def _is_gone(supervisor: RunSupervisor, facts: Facts) -> bool:
    """By node0's own word: names of machines may repeat, and after a restart of node0 the record has another boot."""
    is_node0 = supervisor.machine is not None and supervisor.machine == facts.network.hostname
    return supervisor.is_here is False and is_node0 and supervisor.boot in (None, facts.system.boot)


def _why_unknown(answers: Answers, node0: Host | None, recorded: str | None) -> str:
    name = node0.name if node0 is not None else recorded
    silent = [host.name[:30] for host, facts in answers if facts is None]
    if name is None and silent:
        return f"{few(silent, 2)} did not answer, and no other host has its record"
    if name is None:
        return NOT_ASKED
    asked = next(_matching(answers, name, node0), None)
    shown = printable(name)[:30]
    if asked is None:
        return f"its node0, {shown}, was not asked"
    return f"its node0, {shown}, {'did not answer' if asked[1] is None else 'has no clear record of it'}"


def _matching(answers: Answers, name: str, node0: Host | None) -> Iterator[tuple[Host, Facts | None]]:
    """The host of this call that node0 is, by its name or its address: hostfiles may differ in what they call it."""
    for host, facts in answers:
        if host.name == name or (node0 is not None and (host.address, host.port) == (node0.address, node0.port)):
            yield host, facts
