"""Live runs, from the answers of several hosts, and the processes that belong to them."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
from doctor_rules_helpers import alone, healthy

from ipexctl.doctor.finding import Finding, RunLife, run_states
from ipexctl.facts.facts import Facts
from ipexctl.facts.system_facts import RunProcess, RunSupervisor
from ipexctl.hosts.host import Host

RUN = "train-1120-132512-9f3a"
RANKS = (RunProcess(42, 900, RUN), RunProcess(41, 800, RUN))


def recorded(*, is_here: bool | None, machine: str = "node1", boot: str | None = "boot-1") -> dict[str, object]:
    """An open record of the run, as it is read on a host."""
    return {"runs": (RUN,), "supervisors": (RunSupervisor(RUN, "node1", machine, boot, is_here),)}


def node(number: int, **activity: object) -> Facts:
    return healthy(number, activity=activity)


def hosts(*facts: Facts | None) -> list[tuple[Host, Facts | None]]:
    """node1, node2 …; None is one that did not answer."""
    return [(Host(f"node{at}", f"10.1.0.{at}"), each) for at, each in enumerate(facts, 1)]


def state(*facts: Facts | None, known: Mapping[str, Host] | None = None) -> RunLife:
    return run_states(hosts(*facts), known or {})[RUN]


def found(*facts: Facts | None, known: Mapping[str, Host] | None = None) -> dict[str, list[Finding]]:
    """The findings about activity of each host."""
    answers = hosts(*facts)
    states = run_states(answers, known or {})
    return {
        host.name: [
            finding for finding in alone(each, name=host.name, runs=states) if finding.id.startswith("activity.")
        ]
        for host, each in answers
        if each is not None
    }


def ids(findings: Mapping[str, list[Finding]]) -> dict[str, list[str]]:
    return {name: [finding.id for finding in of_host] for name, of_host in findings.items()}


def advises_kill(finding: Finding) -> bool:
    return re.search(r"\b(kill|pkill|killall|stop)\b", f"{finding.message} {finding.fix}") is not None


LIVE = {
    "own homes": (node(1, **recorded(is_here=True), processes=RANKS), node(2, processes=RANKS), node(3)),
    "one home": (
        node(1, **recorded(is_here=True), processes=RANKS),
        node(2, **recorded(is_here=False), processes=RANKS),
        node(3, **recorded(is_here=False)),
    ),
    "node0 has no rank": (node(1, **recorded(is_here=True)), node(2, processes=RANKS), node(3)),
    "a node0 of an older version": (node(1, **recorded(is_here=True, boot=None)), node(2, processes=RANKS), node(3)),
    "one home and one name for all machines": (
        node(1, **recorded(is_here=True), processes=RANKS),
        healthy(2, network={"hostname": "node1"}, activity={**recorded(is_here=False), "processes": RANKS}),
        node(3, ended=(RUN,)),
    ),
}


@pytest.mark.parametrize("name", LIVE)
def test_processes_of_a_live_run_are_no_leftovers(name: str) -> None:
    assert state(*LIVE[name]).life == "alive"
    findings = found(*LIVE[name])
    assert "activity.leftovers" not in {id_ for of_host in ids(findings).values() for id_ in of_host}
    assert ids(findings)["node2"] == ["activity.runs"]


OTHERS = (node(1), node(2, processes=RANKS))
SILENT = (None, node(2, processes=RANKS))
UNKNOWN: dict[str, tuple[tuple[Facts | None, ...], dict[str, Host], str]] = {
    "not asked, nor known": (OTHERS, {}, "its node0 is not among the hosts"),
    "not asked": (OTHERS, {RUN: Host("login9", "10.9.0.9")}, "its node0, login9, is not among the hosts"),
    "no answer": (SILENT, {RUN: Host("node1", "node1.lan")}, "its node0, node1, did not answer"),
    "no answer, other name": (SILENT, {RUN: Host("head", "10.1.0.1")}, "its node0, head, did not answer"),
    "no answer, nor known": (SILENT, {}, "node1 did not answer, and no other host has its record"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_missing_answer_of_node0_is_reported_and_fix_names_ps(name: str) -> None:
    answers, known, why = UNKNOWN[name]
    assert state(*answers, known=known) == RunLife("unknown", why)
    (finding,) = found(*answers, known=known)["node2"]
    assert finding.id == "activity.leftovers"
    assert "ipexctl ps" in finding.fix
    assert not advises_kill(finding)
    assert len(finding.message) <= 165


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (recorded(is_here=False), "its node0, node1, is not among the hosts"),
        ({}, "its node0 is not among the hosts"),
    ],
    ids=["one home", "own homes"],
)
def test_run_state_is_unknown_without_node0(facts: dict[str, object], why: str) -> None:
    """`doctor --hosts node2`: the record in a shared home names node0, and only node0 has the supervisor."""
    answers = [(Host("node2", "10.1.0.2"), node(2, **facts, processes=RANKS))]
    states = run_states(answers, {})
    assert states[RUN] == RunLife("unknown", why)
    findings = alone(answers[0][1], name="node2", others=0, runs=states)
    (finding,) = (each for each in findings if each.id.startswith("activity."))
    assert finding.id == "activity.leftovers"
    assert not advises_kill(finding)


@pytest.mark.parametrize(
    "record",
    [
        recorded(is_here=False, boot="an earlier boot"),
        recorded(is_here=False, machine="node9"),
        recorded(is_here=None),
        {"runs": (RUN,)},
        {"runs": (RUN,), "supervisors": (RunSupervisor(RUN),)},
    ],
    ids=["restarted since", "another machine", "a process that can't be read", "no supervisor", "an empty one"],
)
def test_unclear_record_gives_unknown_state(record: dict[str, object]) -> None:
    answers = (node(1, **record), node(2, processes=RANKS))
    assert state(*answers).life == "unknown"
    assert state(*answers, known={RUN: Host("node1", "10.1.0.1")}).reason == (
        "its node0, node1, has no clear record of it"
    )
    findings = found(*answers)
    assert ids(findings) == {"node1": ["activity.runs"], "node2": ["activity.leftovers"]}
    assert not advises_kill(findings["node2"][0])


def test_contradicting_records_give_unknown_state() -> None:
    assert state(node(1, **recorded(is_here=None)), node(2, ended=(RUN,), processes=RANKS)).life == "unknown"


ENDED: dict[str, tuple[dict[str, object], str]] = {
    "its record says so": ({"ended": (RUN,)}, "according to its record on node1"),
    "its supervisor is gone": (recorded(is_here=False), "its supervisor on node1 is gone"),
    "and the record is an older one": (recorded(is_here=False, boot=None), "its supervisor on node1 is gone"),
}


@pytest.mark.parametrize("name", ENDED)
def test_leftovers_are_killed_by_pid_after_a_check_of_their_run(name: str) -> None:
    record, why = ENDED[name]
    answers = (node(1, **record), node(2, processes=RANKS), node(3))
    assert state(*answers) == RunLife("ended", why)
    findings = found(*answers)
    assert ids(findings) == {"node1": [], "node2": ["activity.leftovers"], "node3": []}
    fix = findings["node2"][0].fix
    look, end = fix.index("ps -o pid,lstart,args -p 41,42;"), fix.index("for p in 41 42; do ")
    assert look < end
    assert re.findall(r"\bkill\b.*", fix) == ["kill $p; done"]
    assert f"grep -qszE '^IPEXCTL_RUN={RUN}$|/runs/{RUN}/" in fix[end:]
    assert "pkill" not in fix
    assert "killall" not in fix


def test_ended_and_live_runs_have_separate_findings() -> None:
    other = "train-1120-140000-0000"
    mixed = (RunProcess(7, 1, other), *RANKS)
    findings = found(node(1, **recorded(is_here=True), ended=(other,)), node(2, processes=mixed))
    assert ids(findings)["node2"] == ["activity.leftovers", "activity.runs"]
    assert "for p in 7; do" in findings["node2"][0].fix


def test_fix_names_at_most_16_processes_oldest_first() -> None:
    many = tuple(RunProcess(1000 - number, 5000 + number, RUN) for number in range(40))
    fix = found(node(1, ended=(RUN,)), node(2, processes=many))["node2"][0].fix
    named = re.search(r"for p in ([0-9 ]+);", fix)
    assert named
    assert named[1].split() == [str(1000 - number) for number in range(16)]


def test_processes_without_a_run_are_no_leftovers() -> None:
    assert ids(found(node(1, pids=(4711, 4712)))) == {"node1": []}


def test_load_of_a_live_run_is_no_finding() -> None:
    busy: dict[str, object] = {"load": (80.0, 70.0, 60.0), "processes": RANKS}
    assert ids(found(node(1, **recorded(is_here=True)), node(2, **busy)))["node2"] == ["activity.runs"]
