"""One host's part of a plan, as its ranks read it."""

from __future__ import annotations

import json

import pytest
from launch_helpers import ENV, IPEX, cpu, machine, plan

from ipexctl.launch.plan import SCHEMA, job_of, to_json
from ipexctl.launch.request import Export

HOSTS = (machine(cpu(64, 2), 1), machine(cpu(16), 2))


def test_a_host_gets_its_own_ranks_and_variables() -> None:
    found = plan(*HOSTS, env=IPEX, ppn=2)
    job = job_of(found, found.hosts[1], {})
    assert sorted(job["ranks"]) == ["2", "3"]
    assert job["ranks"]["3"] == {
        "host": "node2",
        "local_rank": 1,
        "local_size": 2,
        "cores": [8, 9, 10, 11, 12, 13, 14],
        "memory": [0],
        "variables": {},
    }
    assert job["variables"]["OMP_NUM_THREADS"] == "7"
    assert job["variables"]["CCL_WORKER_AFFINITY"] == "7,15"
    assert job["master"] == {"addr": "10.1.0.1", "port": None}
    assert sorted(job["prepended"]) == ["LD_LIBRARY_PATH", "PATH"]
    assert "SLURM_PROCID" in job["unset"]
    assert not {"RANK", "LOCAL_RANK", "WORLD_SIZE"} & set(job["variables"])
    assert job["command"][0] == f"{ENV}/bin/python"
    json.dumps(job)


def test_secrets_are_put_in_only_here_and_never_forgotten() -> None:
    found = plan(*HOSTS, exports=(Export("TOKEN", "hunter2", secret=True),))
    assert job_of(found, found.hosts[0], {"TOKEN": "hunter2"})["variables"]["TOKEN"] == "hunter2"
    with pytest.raises(KeyError):
        job_of(found, found.hosts[0], {})
    text = json.dumps(to_json(found))
    assert "hunter2" not in text
    assert json.loads(text)["schema"] == SCHEMA
