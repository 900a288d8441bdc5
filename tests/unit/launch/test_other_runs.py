"""Other runs on the hosts of a run: whose, and what both share."""

from __future__ import annotations

import json

import pytest
from launch_helpers import cpu, machine, plan, with_live_run

from ipexctl.facts.cpu import CpuList
from ipexctl.facts.live_runs import RunOnHost, RunsOnHost
from ipexctl.launch.other_runs import describe, find_other_runs, notes_on
from ipexctl.node.common.plan import OtherRun, RunBy, to_json


def cores(*numbers: int) -> CpuList:
    return CpuList.of(numbers)


def looked(*runs: RunOnHost) -> RunsOnHost:
    return RunsOnHost(runs)


RUN = OtherRun("train-1", "alice", "running", ("node1",), {}, {}, 5.0)


def test_a_run_on_several_hosts_is_one_and_this_run_is_none() -> None:
    looks = {
        "node1": looked(RunOnHost("a", 7, "alice", 20.0, cores(0, 1)), RunOnHost("mine", 8, "bob", 9.0)),
        "node2": looked(RunOnHost("a", 9, "alice", 10.0, cores(2))),
        "node3": looked(),
    }
    (other,) = find_other_runs(looks, "mine", {"node1": cores(1, 2), "node2": cores(3)})
    assert (other.id, other.account, other.hosts, other.since) == ("a", "alice", ("node1", "node2"), 10.0)
    assert other.cores == {"node1": "0-1", "node2": "2"}
    assert other.shared_cores == {"node1": "1"}


def test_ranks_that_are_not_bound_share_all_cores_and_a_host_without_ranks_none() -> None:
    looks = {host: looked(RunOnHost("a", 7, "alice", 1.0, cores(0, 1))) for host in ("node1", "node2")}
    (other,) = find_other_runs(looks, "mine", {"node2": None})
    assert other.shared_cores == {"node2": "0-1"}


def test_a_run_that_is_starting_on_one_host_and_runs_on_another_is_running() -> None:
    looks = {
        "node1": looked(RunOnHost("a", 7, "alice", 1.0)),
        "node2": looked(RunOnHost("a", 7, "alice", 1.0, is_starting=True)),
    }
    (other,) = find_other_runs(looks, "mine")
    assert other.state == "running"
    (other,) = find_other_runs({"node2": looks["node2"]}, "mine")
    assert other.state == "starting"


@pytest.mark.parametrize(("busy", "shared"), [((0, 1), "0-1"), ((8, 9), "")])
def test_the_plan_has_the_other_runs_and_the_cores_that_both_use(busy: tuple[int, ...], shared: str) -> None:
    found = plan(machine(cpu(8, 1), 1), machine(cpu(8, 1), 2, activity=with_live_run(*busy)))
    assert [(other.id, other.hosts) for other in found.other_runs] == [("other-1", ("node2",))]
    assert json.loads(json.dumps(to_json(found)))["other_runs"] == [
        {
            "id": "other-1",
            "account": "alice",
            "state": "running",
            "hosts": ["node2"],
            "cores": {"node2": str(cores(*busy))},
            "shared_cores": {"node2": shared} if shared else {},
            "since": 100.0,
            "until": None,
            "by": None,
            "script": "",
            "tag": "",
        }
    ]
    (note,) = notes_on(found.other_runs, 100.0)
    assert "other-1" in note
    assert (f"cores {shared} " in note) == ("slow one another" in note) == bool(shared)


def test_a_host_without_ranks_of_this_run_does_not_count() -> None:
    found = plan(machine(cpu(8, 1), 1), machine(cpu(8, 1), 2, activity=with_live_run(0)), n=1)
    assert found.other_runs == ()
    assert notes_on(found.other_runs, 0.0) == ()


def test_a_run_is_described_with_who_began_it_and_its_tag() -> None:
    text = describe(RUN._replace(by=RunBy("ann", "laptop"), tag="lr 3e-4"), 5.0)
    assert "train-1 of alice (ann@laptop, lr 3e-4) is running on node1" in text


def test_many_runs_are_counted() -> None:
    (note,) = notes_on([RUN._replace(id=f"run-{number}") for number in range(5)], 0.0)
    assert [f"run-{number}" in note for number in range(5)] == [True, False, False, False, False]
    assert "4 more" in note
