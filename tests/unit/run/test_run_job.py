"""The job record: one host's part of a plan, as its ranks read it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from launch_helpers import ENV, IPEX, cpu, machine, plan

from ipexctl.node.common.job import JobRecord, Master, RankJob, read_job
from ipexctl.node.common.plan import Plan
from ipexctl.run.start.begin import common_job, job_of
from ipexctl.spec import Export, RunSpec

SPEC = RunSpec("script", ("train.py",))
HOSTS = (machine(cpu(64, 2), 1), machine(cpu(16), 2))


def job_for(found: Plan, *hosts: str, **secrets: str) -> JobRecord:
    job = job_of(found, secrets, common_job(found, SPEC), hosts)
    assert job is not None
    return job


def test_a_host_gets_its_own_ranks_and_variables() -> None:
    found = plan(*HOSTS, env=IPEX, ppn=2)
    job = job_for(found, "node2")
    assert sorted(job.ranks) == [2, 3]
    assert job.ranks[3] == RankJob("node2", 1, 2, cores=(8, 9, 10, 11, 12, 13, 14), memory=(0,))
    assert job.variables["OMP_NUM_THREADS"] == "7"
    assert job.variables["CCL_WORKER_AFFINITY"] == "7,15"
    assert job.master == Master("10.1.0.1", None)
    assert sorted(job.prepended) == ["LD_LIBRARY_PATH", "PATH"]
    assert job.variables["SLURM_PROCID"] is None
    assert not {"RANK", "LOCAL_RANK", "WORLD_SIZE"} & set(job.variables)
    assert job.command[0] == f"{ENV}/bin/python"


def test_hosts_of_one_store_share_a_job_and_each_rank_gets_the_variables_of_its_host() -> None:
    found = plan(*HOSTS, env=IPEX, ppn=2)
    both = job_for(found, "node1", "node2")
    assert [both.ranks[rank].variables["OMP_NUM_THREADS"] for rank in range(4)] == ["31", "31", "7", "7"]
    assert "OMP_NUM_THREADS" not in both.variables
    assert both.variables["SLURM_PROCID"] is None
    assert both.variables.items() <= job_for(found, "node1").variables.items()
    assert sorted(both.prepended) == ["LD_LIBRARY_PATH", "PATH"]
    assert job_of(found, {}, common_job(found, SPEC), ["node3"]) is None


def test_ranks_get_those_variables_of_torchrun_that_the_user_exports() -> None:
    exports = (Export("TORCHELASTIC_RUN_ID", "mine"),)
    found = plan(*HOSTS, ppn=2, exports=exports)
    job = job_of(found, {}, common_job(found, replace(SPEC, exports=exports)), ["node1"])
    assert job is not None
    assert {"TORCHELASTIC_RUN_ID": "mine"}.items() <= job.variables.items()
    assert not {"TORCHELASTIC_RESTART_COUNT", "GROUP_RANK"} & set(job.variables)


def test_job_is_read_back_from_its_json() -> None:
    found = plan(*HOSTS, env=IPEX, ppn=2)
    job = job_for(found, "node2")._replace(setup="/s", id="r", rundir="/h/runs/r", token="t" * 64)
    assert read_job(json.loads(json.dumps(job.to_json()))) == job
    assert "t" * 64 not in repr(job)


def test_job_has_the_batch_scheduling_of_its_ranks() -> None:
    for options, take_turns in (({"ppn": 2}, True), ({"n": 1}, False)):
        found = plan(machine(cpu(2, threads=1)), **options)
        job = job_for(found, "node1")._replace(id="r", rundir="/h/runs/r", token="t" * 64)
        read = read_job(json.loads(json.dumps(job.to_json())))
        assert {rank.batch for rank in read.ranks.values()} == {take_turns}


@pytest.mark.parametrize(
    "damage",
    [
        {"ranks": None},
        {"ranks": {"x": {}}},
        {"ranks": {"2": {"host": "node2"}}},
        {"command": "python"},
        {"world_size": "4"},
        {"world_size": True},
        {"variables": {"A": 1}},
        {"master": []},
    ],
)
def test_a_damaged_job_is_refused(damage: dict[str, Any]) -> None:
    found = plan(*HOSTS, env=IPEX, ppn=2)
    document = job_for(found, "node2").to_json()
    for broken in ({**document, **damage}, [document], None):
        with pytest.raises(ValueError, match=r"."):
            read_job(json.loads(json.dumps(broken)))


def test_secrets_are_required_in_the_job() -> None:
    found = plan(*HOSTS, exports=(Export("TOKEN", "hunter2", secret=True),))
    assert job_for(found, "node1", TOKEN="hunter2").variables["TOKEN"] == "hunter2"
    with pytest.raises(KeyError):
        job_for(found, "node1")
