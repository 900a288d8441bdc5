"""The job record: one host's part of a plan, as its ranks read it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from launch_helpers import ENV, IPEX, cpu, machine, plan

from ipexctl.jobs.submit.start import job_of
from ipexctl.launch.plan import SCHEMA, to_json
from ipexctl.launch.request import Export
from ipexctl.node.common.job import Master, RankJob, read_job

HOSTS = (machine(cpu(64, 2), 1), machine(cpu(16), 2))


def test_a_host_gets_its_own_ranks_and_variables() -> None:
    found = plan(*HOSTS, env=IPEX, ppn=2)
    job = job_of(found, found.hosts[1], {})
    assert sorted(job.ranks) == [2, 3]
    assert job.ranks[3] == RankJob("node2", 1, 2, cores=(8, 9, 10, 11, 12, 13, 14), memory=(0,))
    assert job.variables["OMP_NUM_THREADS"] == "7"
    assert job.variables["CCL_WORKER_AFFINITY"] == "7,15"
    assert job.master == Master("10.1.0.1", None)
    assert sorted(job.prepended) == ["LD_LIBRARY_PATH", "PATH"]
    assert job.variables["SLURM_PROCID"] is None
    assert not {"RANK", "LOCAL_RANK", "WORLD_SIZE"} & set(job.variables)
    assert job.command[0] == f"{ENV}/bin/python"


def test_a_rank_reads_the_job_that_was_written() -> None:
    found = plan(*HOSTS, env=IPEX, ppn=2)
    job = job_of(found, found.hosts[1], {})._replace(setup="/s", id="r", rundir="/h/runs/r", token="t" * 64)
    assert read_job(json.loads(json.dumps(job.to_json()))) == job
    assert "t" * 64 not in repr(job)


def test_a_rank_reads_whether_its_threads_take_turns() -> None:
    for options, take_turns in (({"ppn": 2}, True), ({"n": 1}, False)):
        found = plan(machine(cpu(2, threads=1)), **options)
        job = job_of(found, found.hosts[0], {})._replace(id="r", rundir="/h/runs/r", token="t" * 64)
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
    document = job_of(found, found.hosts[1], {}).to_json()
    for broken in ({**document, **damage}, [document], None):
        with pytest.raises(ValueError, match=r"."):
            read_job(json.loads(json.dumps(broken)))


def test_secrets_are_put_in_only_here_and_never_forgotten() -> None:
    found = plan(*HOSTS, exports=(Export("TOKEN", "hunter2", secret=True),))
    assert job_of(found, found.hosts[0], {"TOKEN": "hunter2"}).variables["TOKEN"] == "hunter2"
    with pytest.raises(KeyError):
        job_of(found, found.hosts[0], {})
    text = json.dumps(to_json(found))
    assert "hunter2" not in text
    assert json.loads(text)["schema"] == SCHEMA
