"""What `export slurm` prints, under a real Slurm: the same ranks; an allocation's hosts are found without a file."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from ipexctl.lab import LabSpec, ssh_argv
from lab_helpers import ask
from lab_run_helpers import Cluster, lab_with_mpi, session_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ipexctl.lab import Lab, LabHost

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(200),
    pytest.mark.skipif(
        not all(shutil.which(name, path="/usr/sbin:/usr/bin") for name in ("slurmctld", "slurmd", "sbatch")),
        reason="Slurm isn't installed (on Debian: apt-get install --no-install-recommends slurm-wlm)",
    ),
]

PLACE = "/var/tmp/slurm"
DAEMONS = ("slurmctld", "slurmd")
CONF = f"""\
ClusterName=lab
SlurmctldHost=node1
SlurmUser=root
AuthType=auth/none
CredType=cred/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
StateSaveLocation={PLACE}/state
SlurmdSpoolDir={PLACE}/spool
SlurmctldPidFile={PLACE}/slurmctld.pid
SlurmdPidFile={PLACE}/slurmd.pid
SlurmctldLogFile={PLACE}/slurmctld.log
SlurmdLogFile={PLACE}/slurmd.log
JobAcctGatherType=jobacct_gather/none
NodeName=node[1-2] CPUs={{cores}} SocketsPerBoard=1 CoresPerSocket={{cores}} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""
"""Of the lab's hosts alone: nobody is to be told apart, and no cgroup is to be had."""
ASKED = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "PLAIN"),
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"),
)
WHO = f"""\
import json, os, socket, sys

env = {{name: os.environ[name] for name in {ASKED} if name in os.environ}}
cores = sorted(os.sched_getaffinity(0))
said = {{"host": socket.gethostname(), "cores": cores, "argv": sys.argv[1:], "env": env}}
sys.stdout.write(json.dumps(said) + "\\n")
"""
"""A rank that says few words of itself: srun breaks lines of more than 1024."""


@dataclass(frozen=True)
class Slurm:
    """A Slurm of the lab's own: its controller on node1."""

    cluster: Cluster

    def say(self, command: str, *, timeout: float = 40) -> str:
        said = ask(self.cluster.lab.hosts[0], f"export SLURM_CONF={PLACE}/slurm.conf; {command}", timeout=timeout)
        assert said.rc == 0, f"{command}\n{said.out}{said.err}{self.logs()}"
        return said.out

    def logs(self) -> str:
        return "".join(self.cluster.as_root(at, f"tail -n 20 {PLACE}/*.log") for at in (0, 1))

    def submitted(self, text: str) -> dict[int, dict[str, Any]]:
        """What each rank said of itself, in the end."""
        put(self.cluster.lab.hosts[0], "/home/ipex/job.sbatch", text)
        try:
            job = self.say("sbatch --wait --parsable job.sbatch").strip()
        finally:
            out = ask(self.cluster.lab.hosts[0], "cat who-*.out").out
            self.cluster.as_root(0, "rm -f /home/ipex/who-*.out")
        assert job.isdigit()
        said = [json.loads(line) for line in out.splitlines()]
        return {int(one["env"]["RANK"]): one for one in said}


def put(host: LabHost, path: str, text: str) -> None:
    argv = [*ssh_argv(host)[:1], "-l", "root", *ssh_argv(host)[1:]]
    command = f"mkdir -p {path.rpartition('/')[0]} && cat > {path} && chmod a+r {path}"
    subprocess.run([*argv, command], input=text, text=True, check=True, timeout=20)


@pytest.fixture(scope="module")
def lab(make_lab: Callable[[LabSpec], Lab], tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return lab_with_mpi(make_lab(LabSpec(hosts=2, name=f"export-{os.getpid()}")), session_dir(tmp_path_factory))


@pytest.fixture
def cluster(lab: Lab, tmp_path: Path) -> Cluster:
    """The project lies at the same path on all nodes, as on a cluster's shared disk."""
    project = tmp_path / "project"
    project.mkdir()
    cluster = Cluster(lab, project, tmp_path / "state")
    cluster.write("who.py", WHO)
    for at, host in enumerate(lab.hosts):
        put(host, str(project / "who.py"), WHO)
        cluster.as_root(at, f"p={project}; while [ $p != / ]; do chmod a+rx $p; p=$(dirname $p); done")
    return cluster


@pytest.fixture
def slurm(cluster: Cluster) -> Iterator[Slurm]:
    cores = cluster.on(0, "nproc").strip()
    try:
        for at, host in enumerate(cluster.lab.hosts):
            put(host, f"{PLACE}/slurm.conf", CONF.format(cores=cores))
            put(host, f"{PLACE}/cgroup.conf", "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
            names = DAEMONS if at == 0 else DAEMONS[1:]
            lines = "".join(f"{name} -f {PLACE}/slurm.conf; " for name in names)
            cluster.as_root(at, f"export PATH=$PATH:/usr/sbin; cd {PLACE}; mkdir -p state spool; {lines}")
        slurm = Slurm(cluster)
        slurm.say("for try in $(seq 100); do sinfo -h -o %D.%T | grep -qx 2.idle && exit; sleep 0.2; done; exit 1")
        yield slurm
    finally:
        for at in (0, 1):
            ended = "kill $(cat $pid); for try in $(seq 50); do [ -e $pid ] || break; sleep 0.1; done"
            cluster.as_root(at, f"for pid in {PLACE}/*.pid; do {ended}; done; rm -rf {PLACE}")


def exported(cluster: Cluster, *options: str) -> str:
    printed = cluster.call("export", "slurm", "-H", cluster.lab.hostfile, *options, "who.py", "a b")
    assert printed.rc == 0, printed.err
    return printed.out


def test_the_exported_job_starts_the_same_ranks(cluster: Cluster, slurm: Slurm) -> None:
    cores = list(range(int(cluster.on(0, "nproc"))))
    ranks = slurm.submitted(exported(cluster, "--ppn", "2", "-x", "PLAIN=two words"))
    assert sorted(ranks) == [0, 1, 2, 3]
    for rank, said in ranks.items():
        env = said["env"]
        assert (said["host"], said["argv"]) == (f"node{rank // 2 + 1}", ["a b"])
        assert (env["LOCAL_RANK"], env["LOCAL_WORLD_SIZE"], env["WORLD_SIZE"]) == (str(rank % 2), "2", "4")
        assert (env["MASTER_ADDR"], env["PLAIN"]) == ("node1", "two words")
        assert env["MASTER_PORT"] == ranks[0]["env"]["MASTER_PORT"]
        assert len(said["cores"]) == int(env["OMP_NUM_THREADS"]) == len(cores) // 2
        assert not [name for name in env if name.startswith("SLURM_")]
    for one, other in ((0, 1), (2, 3)):
        assert not set(ranks[one]["cores"]) & set(ranks[other]["cores"])
    # one rank a node has all cores of it: a step doesn't take them over from the job by itself
    alone = slurm.submitted(exported(cluster, "--ppn", "1"))
    assert [alone[rank]["cores"] for rank in sorted(alone)] == [cores, cores]


def test_ranks_that_hosts_share_unevenly_know_how_many_they_are(cluster: Cluster, slurm: Slurm) -> None:
    ranks = slurm.submitted(exported(cluster, "-n", "3"))
    assert sorted(ranks) == [0, 1, 2]
    hosts = [said["host"] for said in ranks.values()]
    for said in ranks.values():
        assert said["env"]["LOCAL_WORLD_SIZE"] == str(hosts.count(said["host"]))


def test_the_hosts_of_an_allocation_need_no_file(cluster: Cluster, slurm: Slurm) -> None:
    inside = slurm.say("salloc --quiet -N2 --ntasks-per-node=2 env")
    allocation = dict(line.split("=", 1) for line in inside.splitlines() if line.startswith("SLURM_") and "=" in line)
    ssh = ("--ssh-config", cluster.lab.ssh_config, "--known-hosts", cluster.lab.known_hosts)
    ran = cluster.call("exec", "--json", *ssh, "--", "hostname", env=allocation)
    assert ran.rc == 0, ran.err
    assert [host["stdout"].strip() for host in json.loads(ran.out)["hosts"]] == ["node1", "node2"]
    planned = cluster.call("run", "--dry-run", *ssh, "who.py", env=allocation)
    assert planned.rc == 0, planned.err
    assert "4 ranks" in planned.out
