"""The plan as supervisor and ranks read it: variables of a rank, the secret part, and what a damaged file does."""

from __future__ import annotations

import json
from typing import Any

import pytest
from launch_helpers import IPEX, cpu, machine, plan

from ipexctl.node.common.job import HomeJob, jobs_of, read_job, read_start
from ipexctl.node.common.plan import OtherRun, Plan, host_of, read_plan, to_json, variables_of
from ipexctl.node.common.rank_options import ALL_OFF, GPU_CODE, Choice
from ipexctl.node.common.run_options import Export
from ipexctl.node.run.rank.rank_env import ranks_here
from plan_helpers import small_plan

HOSTS = (machine(cpu(64, 2), 1), machine(cpu(16), 2))
JOB = HomeJob("/h/runs/r", "t" * 64, {"TOKEN": "hunter2"})


def read_back(found: Plan, *here: str) -> Plan:
    return read_plan(json.loads(json.dumps(to_json(found))), here)


def test_a_rank_gets_the_variables_of_its_host() -> None:
    found = plan(*HOSTS, env=IPEX, ppn=2)
    own = [variables_of(found, rank, {})[0] for rank in range(4)]
    assert [variables["OMP_NUM_THREADS"] for variables in own] == ["31", "31", "7", "7"]
    assert own[3]["CCL_WORKER_AFFINITY"] == "7,15"
    assert own[3]["SLURM_PROCID"] is None
    assert not {"RANK", "LOCAL_RANK", "WORLD_SIZE"} & set(own[3])
    assert sorted(variables_of(found, 3, {})[1]) == ["LD_LIBRARY_PATH", "PATH"]
    assert host_of(found, 3).ranks[1].cores == (8, 9, 10, 11, 12, 13, 14)


def test_ranks_get_those_variables_of_torchrun_that_the_user_exports() -> None:
    variables = variables_of(plan(*HOSTS, ppn=2, exports=(Export("TORCHELASTIC_RUN_ID", "-x", "mine"),)), 0, {}).values
    assert {"TORCHELASTIC_RUN_ID": "mine"}.items() <= variables.items()
    assert not {"TORCHELASTIC_RESTART_COUNT", "GROUP_RANK"} & set(variables)


def test_secrets_are_required_and_absent_from_the_plan() -> None:
    found = plan(*HOSTS, exports=(Export("TOKEN", "-x", None),), secrets={"TOKEN": "hunter2"})
    assert variables_of(found, 0, JOB.secrets)[0]["TOKEN"] == "hunter2"
    with pytest.raises(KeyError):
        variables_of(found, 0, {})
    assert "hunter2" not in json.dumps(to_json(found))
    assert "hunter2" not in repr(JOB)
    assert "t" * 64 not in repr(JOB)


@pytest.mark.parametrize(
    ("stores", "expected"), [("ab", {"a": ("node1",), "b": ("node2",)}), ("aa", {"a": ("node1", "node2")})]
)
def test_hosts_of_one_store_share_a_job(stores: str, expected: dict[str, tuple[str, ...]]) -> None:
    found = small_plan(["node1", "node1", "node2"], stores=dict(zip(("node1", "node2"), stores, strict=True)))
    jobs = jobs_of(found, JOB)
    assert {store: job.here for store, job in jobs.items()} == expected
    assert [ranks_here(found, job) for job in jobs.values()] == ([(0, 1), (2,)] if len(jobs) > 1 else [(0, 1, 2)])
    assert [read_job(json.loads(json.dumps(job._asdict()))) for job in jobs.values()] == list(jobs.values())


def test_a_plan_is_read_back_and_other_hosts_have_only_their_numbers() -> None:
    found = plan(*HOSTS, env=IPEX, ppn=2, tag="\udcff")
    others = (OtherRun("r2", "me", "running", ("node1",), {"node1": "0-3"}, {}),)
    found = found._replace(other_runs=others, before_start={"sync": 0.5}, setup="/s", job="12")
    assert read_back(found) == found
    narrow = read_back(found, "node2")
    assert [len(rank.cores) for rank in narrow.ranks] == [0, 0, 7, 7]
    assert [(rank.rank, rank.host) for rank in narrow.ranks] == [(rank.rank, rank.host) for rank in found.ranks]
    assert variables_of(narrow, 3, {}) == variables_of(found, 3, {})


def test_plan_has_the_batch_scheduling_of_its_ranks() -> None:
    for options, take_turns in (({"ppn": 2}, True), ({"n": 1}, False)):
        found = read_back(plan(machine(cpu(2, threads=1)), **options))
        assert {rank.batch for rank in found.ranks} == {take_turns}


@pytest.mark.parametrize(
    "damage",
    [
        {"hosts": None},
        {"hosts": [{"name": "node2", "ranks": [{"host": "node2"}]}]},
        {"hosts": [1]},
        {"command": "python"},
        {"settings": [1]},
        {"settings": [{"name": "A", "value": 1, "reason": ""}]},
        {"asked": []},
    ],
)
def test_a_damaged_plan_is_refused(damage: dict[str, Any]) -> None:
    document = to_json(small_plan(["node1", "node2"]))
    for broken in ({**document, **damage}, [document], None):
        for here in ((), ("node2",)):
            with pytest.raises(ValueError, match=r"."):
                read_plan(json.loads(json.dumps(broken)), here)


@pytest.mark.parametrize(
    "damage", [{"rundir": ""}, {"token": None}, {"here": []}, {"secrets": {"A": 1}}, {"hosts": "x"}]
)
def test_a_damaged_job_is_refused(damage: dict[str, Any]) -> None:
    document = JOB._replace(here=("node1",))._asdict()
    read_job(json.loads(json.dumps(document)))
    for broken in ({**document, **damage}, [document], None):
        with pytest.raises(ValueError, match=r"."):
            read_job(json.loads(json.dumps(broken)))


def test_the_supervisor_knows_what_the_plan_has_chosen() -> None:
    chosen = {**ALL_OFF, "gpu_code": Choice("assume", "asked"), "allreduce": Choice("shared", "default")}
    sent = {"plan": to_json(small_plan(rank_options=chosen)), "job": JOB._asdict(), "notify": "x"}
    start = read_start(json.loads(json.dumps(sent)))
    assert start.plan.rank_options == chosen
    assert start.plan.uses(GPU_CODE)
    assert (start.job, start.notify) == (JOB, "x")
    with pytest.raises(ValueError, match="plan"):
        read_start({**sent, "plan": 1})
