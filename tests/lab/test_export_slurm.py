"""The job file of `export slurm` under a real Slurm: it starts the ranks that `run` would."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ipexctl.extras.lab.lab_plan import LabSpec
from ipexctl.extras.lab.lab_record import Lab
from lab_run_helpers import Cluster, new_cluster
from slurm_helpers import NEEDS_SLURM, Slurm, copy_to_hosts

MPI_LAB = LabSpec(hosts=3, slurm=True)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(200), NEEDS_SLURM]

REPORTED_VARIABLES = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "PLAIN"),
    *("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "TORCHELASTIC_RUN_ID", "HIDDEN"),
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "GLOO_SOCKET_IFNAME"),
)
REPORT_SCRIPT = f"""\
import json, os, socket, sys

env = {{name: os.environ[name] for name in {REPORTED_VARIABLES} if name in os.environ}}
cores = sorted(os.sched_getaffinity(0))
said = {{"host": socket.gethostname(), "cores": cores, "argv": sys.argv[1:], "env": env}}
os.write(1, (json.dumps(said) + "\\n").encode())
"""
"""Each rank prints a short report: srun breaks lines of more than 1024 bytes."""
FAIL_SCRIPT = """\
import os, sys, time

os.write(1, b"a rank is here\\n")
if os.environ["RANK"] == "1" and sys.argv[1:] == ["badly"]:
    sys.exit(7)
time.sleep(300)
"""
SAVE_SCRIPT = """\
import json, os

with open(f"/var/tmp/told-{os.environ['RANK']}.json", "w") as file:
    json.dump({"env": dict(os.environ), "cores": sorted(os.sched_getaffinity(0))}, file)
"""
BOTH_LAUNCHERS = pytest.mark.parametrize("launcher", ["srun", "mpirun"])


@pytest.fixture(scope="module")
def slurm(lab: Lab) -> Slurm:
    return Slurm(lab)


@pytest.fixture(scope="module")
def cluster(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    cluster = new_cluster(lab, tmp_path_factory.mktemp("slurm"))
    for name, text in (
        ("who.py", REPORT_SCRIPT),
        ("ends.py", FAIL_SCRIPT),
        ("tells.py", SAVE_SCRIPT),
    ):
        cluster.write(name, text)
    copy_to_hosts(lab, cluster.project)
    return cluster


def exported(cluster: Cluster, *words: str, env: dict[str, str] | None = None) -> str:
    return cluster.good("export", "slurm", "-H", cluster.lab.hostfile, *words, env=env)


def ranks_of(
    slurm: Slurm, text: str, *options: str, environment: dict[str, str] | None = None
) -> dict[int, dict[str, Any]]:
    """The report of each rank, after the end of the job."""
    said = [
        json.loads(line) for line in slurm.ended(slurm.submit(text, *options, environment=environment)).splitlines()
    ]
    assert len({one["env"]["RANK"] for one in said}) == len(said)
    return {int(one["env"]["RANK"]): one for one in said}


@BOTH_LAUNCHERS
def test_exported_job_starts_the_same_ranks_as_run(cluster: Cluster, slurm: Slurm, launcher: str) -> None:
    cores = list(range(int(cluster.on(0, "nproc"))))
    to = ("--launcher", launcher)
    secret = {"HIDDEN": 'it\'s "quoted" $HOME'}
    text = exported(cluster, *to, "--ppn", "2", "-x", "PLAIN=two words", "-x", "HIDDEN", "who.py", "a b", env=secret)
    assert secret["HIDDEN"] not in text
    ranks = ranks_of(slurm, text, environment=secret)
    assert sorted(ranks) == [0, 1, 2, 3]
    for rank, said in ranks.items():
        env = said["env"]
        assert (said["host"], said["argv"]) == (f"node{rank // 2 + 2}", ["a b"])
        assert (env["LOCAL_RANK"], env["LOCAL_WORLD_SIZE"], env["WORLD_SIZE"]) == (str(rank % 2), "2", "4")
        assert (env["GROUP_RANK"], env["GROUP_WORLD_SIZE"], env["ROLE_WORLD_SIZE"]) == (str(rank // 2), "2", "4")
        assert env["TORCHELASTIC_RUN_ID"]
        assert (env["MASTER_ADDR"], env["PLAIN"], env["HIDDEN"]) == ("node2", "two words", secret["HIDDEN"])
        assert env["MASTER_PORT"] == ranks[0]["env"]["MASTER_PORT"]
        assert len(said["cores"]) == int(env["OMP_NUM_THREADS"]) == len(cores) // 2
        assert "GLOO_SOCKET_IFNAME" not in env
        assert not [name for name in env if name.startswith("SLURM_")]
    for one, other in ((0, 1), (2, 3)):
        assert not set(ranks[one]["cores"]) & set(ranks[other]["cores"])
    # one rank per node has all its cores: a step does not inherit them from the job
    alone = ranks_of(slurm, exported(cluster, *to, "--ppn", "1", "--iface", "eth0", "who.py"))
    assert [alone[rank]["cores"] for rank in sorted(alone)] == [cores, cores]
    assert {said["env"]["GLOO_SOCKET_IFNAME"] for said in alone.values()} == {"eth0"}


@BOTH_LAUNCHERS
def test_failed_rank_ends_the_job_with_an_error(cluster: Cluster, slurm: Slurm, launcher: str) -> None:
    job = slurm.submit(exported(cluster, "--launcher", launcher, "--ppn", "2", "ends.py", "badly"))
    said = slurm.ended(job, rc=None, timeout=60)
    assert cluster.wait_until_gone(5, "ends.py badly")
    assert "exit code 7" in said if launcher == "srun" else "rank 1 ended with 7" in said


@BOTH_LAUNCHERS
def test_scancel_ends_every_rank(cluster: Cluster, slurm: Slurm, launcher: str) -> None:
    job = slurm.submit(exported(cluster, "--launcher", launcher, "--ppn", "2", "ends.py", "never"))
    slurm.wait_for(job, "a rank is here", 4)
    slurm.say(f"scancel {job}")
    assert cluster.wait_until_gone(20, "ends.py never")


@BOTH_LAUNCHERS
def test_sbatch_options_can_change_the_number_of_nodes(cluster: Cluster, slurm: Slurm, launcher: str) -> None:
    text = exported(cluster, "--launcher", launcher, "--ppn", "2", "who.py")
    ranks = ranks_of(slurm, text, "--nodes=1", "--ntasks=2", "--export=NONE")
    assert sorted(ranks) == [0, 1]
    for said in ranks.values():
        env = said["env"]
        assert (said["host"], env["MASTER_ADDR"]) == ("node2", "node2")
        assert (env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"]) == ("2", "2")
        assert (env["GROUP_RANK"], env["GROUP_WORLD_SIZE"], env["ROLE_WORLD_SIZE"]) == ("0", "1", "2")
