"""The job file of `export slurm` under a real Slurm: it starts the ranks that `run` would."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ipexctl.lab import Lab, LabSpec
from lab_run_helpers import Cluster, lab_with_mpi, session_dir
from slurm_helpers import Slurm, need_slurm, slurm_on, spread

pytestmark = [pytest.mark.lab, pytest.mark.timeout(200)]

ASKED = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "PLAIN"),
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "GLOO_SOCKET_IFNAME", "HIDDEN"),
)
WHO = f"""\
import json, os, socket, sys

env = {{name: os.environ[name] for name in {ASKED} if name in os.environ}}
cores = sorted(os.sched_getaffinity(0))
said = {{"host": socket.gethostname(), "cores": cores, "argv": sys.argv[1:], "env": env}}
os.write(1, (json.dumps(said) + "\\n").encode())
"""
"""A rank that says few words of itself: srun breaks lines of more than 1024."""
MEET = """\
import os, socket, time

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    with socket.create_server(("", place[1])) as listening:
        others = [listening.accept()[0] for _ in range(size - 1)]
    total = sum(int(other.recv(9)) for other in others)
    for other in others:
        other.sendall(str(total).encode())
else:
    for _ in range(300):
        try:
            meeting = socket.create_connection(place)
            break
        except OSError:
            time.sleep(0.1)
    meeting.sendall(str(rank).encode())
    total = int(meeting.recv(9))
os.write(1, f"rank {rank} has {total}\\n".encode())
"""
"""Ranks that meet where they were told to, and add their numbers."""
ENDS = """\
import os, sys, time

os.write(1, b"a rank is here\\n")
if os.environ["RANK"] == "1" and sys.argv[1:] == ["badly"]:
    sys.exit(7)
time.sleep(300)
"""
TELLS = """\
import json, os

with open(f"/var/tmp/told-{os.environ['RANK']}.json", "w") as file:
    json.dump({"env": dict(os.environ), "cores": sorted(os.sched_getaffinity(0))}, file)
"""
OF_SLURM = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "FI_TCP_IFACE", "MASTER_ADDR", "MASTER_PORT", "I_MPI_PIN")
"""What Slurm's nodes decide, and who binds."""
BOTH = pytest.mark.parametrize("launcher", ["srun", "mpirun"])


@pytest.fixture(scope="module")
def lab(make_lab: Callable[[LabSpec], Lab], tmp_path_factory: pytest.TempPathFactory) -> Lab:
    need_slurm()
    return lab_with_mpi(make_lab(LabSpec(hosts=2, name=f"export-{os.getpid()}")), session_dir(tmp_path_factory))


@pytest.fixture(scope="module")
def slurm(lab: Lab) -> Iterator[Slurm]:
    with slurm_on(lab) as slurm:
        yield slurm


@pytest.fixture(scope="module")
def cluster(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    base = tmp_path_factory.mktemp("slurm")
    (base / "project").mkdir()
    cluster = Cluster(lab, base / "project", base / "state")
    for name, text in (("who.py", WHO), ("meet.py", MEET), ("ends.py", ENDS), ("tells.py", TELLS)):
        cluster.write(name, text)
    spread(lab, cluster.project)
    return cluster


def exported(cluster: Cluster, *words: str, env: dict[str, str] | None = None) -> str:
    printed = cluster.call("export", "slurm", "-H", cluster.lab.hostfile, *words, env=env)
    assert printed.rc == 0, printed.err
    return printed.out


def ranks_of(
    slurm: Slurm, text: str, *options: str, handing: dict[str, str] | None = None
) -> dict[int, dict[str, Any]]:
    """What each rank said of itself, in the end."""
    said = [json.loads(line) for line in slurm.ended(slurm.begun(text, *options, handing=handing)).splitlines()]
    assert len({one["env"]["RANK"] for one in said}) == len(said)
    return {int(one["env"]["RANK"]): one for one in said}


@BOTH
def test_the_exported_job_starts_the_same_ranks(cluster: Cluster, slurm: Slurm, launcher: str) -> None:
    cores = list(range(int(cluster.on(0, "nproc"))))
    to = ("--launcher", launcher)
    secret = {"HIDDEN": 'it\'s "quoted" $HOME'}
    text = exported(cluster, *to, "--ppn", "2", "-x", "PLAIN=two words", "-x", "HIDDEN", "who.py", "a b", env=secret)
    assert secret["HIDDEN"] not in text
    ranks = ranks_of(slurm, text, handing=secret)
    assert sorted(ranks) == [0, 1, 2, 3]
    for rank, said in ranks.items():
        env = said["env"]
        assert (said["host"], said["argv"]) == (f"node{rank // 2 + 1}", ["a b"])
        assert (env["LOCAL_RANK"], env["LOCAL_WORLD_SIZE"], env["WORLD_SIZE"]) == (str(rank % 2), "2", "4")
        assert (env["MASTER_ADDR"], env["PLAIN"], env["HIDDEN"]) == ("node1", "two words", secret["HIDDEN"])
        assert env["MASTER_PORT"] == ranks[0]["env"]["MASTER_PORT"]
        assert len(said["cores"]) == int(env["OMP_NUM_THREADS"]) == len(cores) // 2
        assert "GLOO_SOCKET_IFNAME" not in env
        assert not [name for name in env if name.startswith("SLURM_")]
    for one, other in ((0, 1), (2, 3)):
        assert not set(ranks[one]["cores"]) & set(ranks[other]["cores"])
    # one rank a node has all cores of it: a step doesn't take them over from the job by itself
    alone = ranks_of(slurm, exported(cluster, *to, "--ppn", "1", "--iface", "eth0", "who.py"))
    assert [alone[rank]["cores"] for rank in sorted(alone)] == [cores, cores]
    assert {said["env"]["GLOO_SOCKET_IFNAME"] for said in alone.values()} == {"eth0"}


@BOTH
def test_ranks_have_the_variables_and_as_many_cores_as_a_dry_run_shows(
    cluster: Cluster, slurm: Slurm, launcher: str
) -> None:
    asked = ("--ppn", "2", "-x", "LINES=one\n  two's", "tells.py")
    plan = json.loads(cluster.run("--dry-run", "--json", *asked).out)
    slurm.ended(slurm.begun(exported(cluster, "--launcher", launcher, *asked)))
    for host in plan["hosts"]:
        for rank in host["ranks"]:
            told = json.loads(cluster.on(rank["rank"] // 2, f"cat /var/tmp/told-{rank['rank']}.json"))
            assert len(told["cores"]) == len(rank["cores"])
            for one in plan["settings"]:
                if one["host"] in (None, host["name"]) and one["rank"] in (None, rank["rank"]):
                    value = told["env"].get(one["name"])
                    planned = one["value"] and re.sub(r"/envs/[^/:]+", "/envs/default", one["value"])
                    assert one["name"] in OF_SLURM or value == planned or one["prepend"], one
                    assert not one["prepend"] or str(value).startswith(planned), one


@BOTH
def test_ranks_on_different_nodes_meet(cluster: Cluster, slurm: Slurm, launcher: str) -> None:
    said = slurm.ended(slurm.begun(exported(cluster, "--launcher", launcher, "--ppn", "2", "meet.py")))
    assert sorted(said.splitlines()) == [f"rank {rank} has 6" for rank in range(4)]


@BOTH
def test_one_rank_that_fails_ends_the_job_which_fails(cluster: Cluster, slurm: Slurm, launcher: str) -> None:
    job = slurm.begun(exported(cluster, "--launcher", launcher, "--ppn", "2", "ends.py", "badly"))
    said = slurm.ended(job, rc=None, timeout=60)
    assert cluster.gone_within(5, "ends.py badly")
    assert "exit code 7" in said if launcher == "srun" else "rank 1 ended with 7" in said


@BOTH
def test_scancel_ends_every_rank(cluster: Cluster, slurm: Slurm, launcher: str) -> None:
    job = slurm.begun(exported(cluster, "--launcher", launcher, "--ppn", "2", "ends.py", "never"))
    assert slurm.has_said(job, "a rank is here", 4)
    slurm.say(f"scancel {job}")
    assert cluster.gone_within(20, "ends.py never")


@BOTH
def test_ranks_that_hosts_share_unevenly_know_how_many_they_are(cluster: Cluster, slurm: Slurm, launcher: str) -> None:
    ranks = ranks_of(slurm, exported(cluster, "--launcher", launcher, "-n", "3", "who.py"))
    assert sorted(ranks) == [0, 1, 2]
    hosts = [said["host"] for said in ranks.values()]
    for said in ranks.values():
        assert said["env"]["LOCAL_WORLD_SIZE"] == str(hosts.count(said["host"]))


@BOTH
def test_sbatch_may_ask_for_other_nodes_than_planned(cluster: Cluster, slurm: Slurm, launcher: str) -> None:
    text = exported(cluster, "--launcher", launcher, "--ppn", "2", "who.py")
    ranks = ranks_of(slurm, text, "--nodes=1", "--ntasks=2", "--export=NONE")
    assert sorted(ranks) == [0, 1]
    for said in ranks.values():
        env = said["env"]
        assert (said["host"], env["MASTER_ADDR"]) == ("node1", "node1")
        assert (env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"]) == ("2", "2")


def test_the_jobs_lines_are_in_a_file_of_its_name_and_number(cluster: Cluster, slurm: Slurm) -> None:
    job = slurm.begun(exported(cluster, "--ppn", "1", "who.py"))
    said = slurm.ended(job)
    assert slurm.say(f"cat who-{job}.out") == said
    assert len(said.splitlines()) == 2
