"""Live runs, from the answers of several hosts, and the processes that belong to them."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
from doctor_rules_helpers import context, healthy

from ipexctl.doctor.finding import Finding
from ipexctl.doctor.rules import examine_host
from ipexctl.doctor.run_states import RunLife, run_states
from ipexctl.facts.facts import Facts
from ipexctl.facts.system import RunProcess, RunSupervisor
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
            finding
            for finding in examine_host(each, context()._replace(name=host.name, runs=states))
            if finding.id.startswith("activity.")
        ]
        for host, each in answers
        if each is not None
    }


def ids(findings: Mapping[str, list[Finding]]) -> dict[str, list[str]]:
    return {name: [finding.id for finding in of_host] for name, of_host in findings.items()}


def tells_to_kill(finding: Finding) -> bool:
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
def test_processes_of_a_run_that_is_alive_are_no_leftovers_on_any_host(name: str) -> None:
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
def test_where_node0_gives_no_answer_that_is_said_and_ps_is_advised(name: str) -> None:
    answers, known, why = UNKNOWN[name]
    assert state(*answers, known=known) == RunLife("unknown", why)
    (finding,) = found(*answers, known=known)["node2"]
    assert finding.id == "activity.leftovers"
    assert "ipexctl ps" in finding.fix
    assert not tells_to_kill(finding)
    assert len(finding.message) <= 165


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (recorded(is_here=False), "its node0, node1, is not among the hosts"),
        ({}, "its node0 is not among the hosts"),
    ],
    ids=["one home", "own homes"],
)
def test_one_node_alone_cannot_tell(facts: dict[str, object], why: str) -> None:
    """`doctor --hosts node2`: the record in a shared home names node0, and only node0 has the supervisor."""
    answers = [(Host("node2", "10.1.0.2"), node(2, **facts, processes=RANKS))]
    states = run_states(answers, {})
    assert states[RUN] == RunLife("unknown", why)
    findings = examine_host(answers[0][1], context(name="node2", peers=(), runs=states))
    (finding,) = (each for each in findings if each.id.startswith("activity."))
    assert finding.id == "activity.leftovers"
    assert not tells_to_kill(finding)


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
def test_a_record_that_settles_nothing_is_no_end(record: dict[str, object]) -> None:
    answers = (node(1, **record), node(2, processes=RANKS))
    assert state(*answers).life == "unknown"
    assert state(*answers, known={RUN: Host("node1", "10.1.0.1")}).reason == (
        "its node0, node1, has no clear record of it"
    )
    findings = found(*answers)
    assert ids(findings) == {"node1": ["activity.runs"], "node2": ["activity.leftovers"]}
    assert not tells_to_kill(findings["node2"][0])


def test_what_one_host_calls_ended_and_another_open_is_unknown() -> None:
    assert state(node(1, **recorded(is_here=None)), node(2, ended=(RUN,), processes=RANKS)).life == "unknown"


ENDED: dict[str, tuple[dict[str, object], str]] = {
    "its record says so": ({"ended": (RUN,)}, "by its record on node1"),
    "its supervisor is gone": (recorded(is_here=False), "its supervisor on node1 is gone"),
    "and the record is an older one": (recorded(is_here=False, boot=None), "its supervisor on node1 is gone"),
}


@pytest.mark.parametrize("name", ENDED)
def test_processes_of_a_run_that_has_ended_are_ended_by_number_and_only_while_they_are_its_own(name: str) -> None:
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


def test_a_run_that_ended_and_one_that_goes_on_are_kept_apart() -> None:
    other = "train-1120-140000-0000"
    mixed = (RunProcess(7, 1, other), *RANKS)
    findings = found(node(1, **recorded(is_here=True), ended=(other,)), node(2, processes=mixed))
    assert ids(findings)["node2"] == ["activity.leftovers", "activity.runs"]
    assert "for p in 7; do" in findings["node2"][0].fix


def test_a_command_names_sixteen_processes_at_most_the_oldest_first() -> None:
    many = tuple(RunProcess(1000 - number, 5000 + number, RUN) for number in range(40))
    fix = found(node(1, ended=(RUN,)), node(2, processes=many))["node2"][0].fix
    named = re.search(r"for p in ([0-9 ]+);", fix)
    assert named
    assert named[1].split() == [str(1000 - number) for number in range(16)]


def test_processes_that_name_no_run_are_nobodys_leftovers() -> None:
    assert ids(found(node(1, pids=(4711, 4712)))) == {"node1": []}


def test_who_computes_for_a_run_is_no_stranger() -> None:
    busy: dict[str, object] = {"load": (80.0, 70.0, 60.0), "processes": RANKS}
    assert ids(found(node(1, **recorded(is_here=True)), node(2, **busy)))["node2"] == ["activity.runs"]
