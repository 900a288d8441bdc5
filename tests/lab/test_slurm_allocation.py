"""ipexctl inside a job of a real Slurm: hosts, ranks and the end of the job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent_helpers import wait_until
from ipexctl.lab import Lab, LabSpec
from lab_helpers import ask
from lab_run_helpers import Cluster, by_rank
from message_data import missing
from slurm_helpers import NEEDS_SLURM, Slurm, put, slurm_on, upload_ipexctl

MPI_LAB = LabSpec(hosts=2)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(200), NEEDS_SLURM]

RANK_SCRIPT = """\
import os, socket, sys, time

print(socket.gethostname(), os.environ["LOCAL_RANK"], flush=True)
if sys.argv[1:] == ["badly"] and os.environ["RANK"] == "1":
    sys.exit(7)
if sys.argv[1:] == ["for-ever"]:
    time.sleep(300)
"""
CONFIG = "~/.ipexctl/ssh/config"
"""The config that trust wrote for node0: the account has no other key for the lab's hosts."""


@dataclass(frozen=True)
class JobNode:
    """Node1 with ipexctl on it, where a job's script runs."""

    slurm: Slurm
    ipexctl: str

    def job(self, words: str) -> str:
        return f"#!/bin/sh\ncd project\nexec {self.ipexctl} {words}\n"


@pytest.fixture(scope="module")
def inside(lab: Lab) -> Iterator[JobNode]:
    put(lab.hosts[0], "/home/ipex/project/says.py", RANK_SCRIPT)
    ask(lab.hosts[0], "chown -R ipex: /home/ipex/project", as_root=True)
    with slurm_on(lab) as slurm:
        yield JobNode(slurm, upload_ipexctl(lab.hosts[0]))


def test_run_in_slurm_job_uses_its_hosts_and_one_rank_per_task(inside: JobNode) -> None:
    words = f"run --ssh-config {CONFIG} says.py"
    said = inside.slurm.ended(inside.slurm.submit(inside.job(words), "--nodes=2", "--ntasks=3"))
    assert by_rank(said) == {0: ["node1 0"], 1: ["node1 1"], 2: ["node2 0"]}


def test_run_in_slurm_job_without_tasks_chooses_the_number_of_ranks(inside: JobNode) -> None:
    words = f"run --ssh-config {CONFIG} says.py"
    said = inside.slurm.ended(inside.slurm.submit(inside.job(words), "--nodes=2", "--exclusive"))
    assert by_rank(said) == {0: ["node1 0"], 1: ["node2 0"]}


def test_slurm_job_ends_with_exit_code_of_the_failed_rank(inside: JobNode) -> None:
    words = f"run --ssh-config {CONFIG} says.py badly"
    said = inside.slurm.ended(inside.slurm.submit(inside.job(words), "--nodes=2", "--ntasks=2"), rc=7)
    assert missing(said, "rank 1 node2 code 7") == []


def test_scancel_stops_the_run_on_every_host(inside: JobNode, lab: Lab, tmp_path: Path) -> None:
    """Slurm does not know the ranks on other nodes: ssh started them."""
    words = f"run --ssh-config {CONFIG} says.py for-ever"
    job = inside.slurm.submit(inside.job(words), "--nodes=2", "--ntasks=4")
    inside.slurm.wait_for(job, "] node", 4)
    inside.slurm.say(f"scancel {job}")
    assert Cluster(lab, tmp_path, tmp_path).wait_until_gone(20, "says.py for-ever")
    wait_until(lambda: newest_state(inside) != "running")
    assert newest_state(inside) == "stopped"


def newest_state(inside: JobNode) -> str:
    said = ask(inside.slurm.lab.hosts[0], f"{inside.ipexctl} ps --json 2>/dev/null")
    newest = max(json.loads(said.out)["runs"], key=lambda run: run["id"])
    return str(newest["state"])


def test_srun_step_uses_all_hosts_and_several_tasks_are_refused(inside: JobNode) -> None:
    listed = f"{inside.ipexctl} exec --ssh-config {CONFIG} --json -- hostname"
    said = inside.slurm.say(f"salloc --quiet -N2 -n4 srun -N1 -n1 -w node1 {listed} 2>/dev/null")
    assert [host["stdout"].strip() for host in json.loads(said)["hosts"]] == ["node1", "node2"]
    said = inside.slurm.say(f"salloc --quiet -N2 -n2 srun {listed}", rc=2)
    assert "srun starts this 2 times" in said


def test_ssh_errors_in_slurm_job_are_reported_with_a_command(inside: JobNode) -> None:
    called = f"{inside.ipexctl} run --transport ssh"
    said = inside.slurm.say(f"cd project; salloc --quiet -N2 -n2 {called} says.py", rc=3)
    assert "node2: its host key" in said
    assert "ssh-keyscan node2" in said
    accepted = f"salloc --quiet -N2 -n2 {called} --host-keys accept-new says.py"
    said = inside.slurm.say(f"cd project; {accepted}; code=$?; rm -f ~/.ssh/known_hosts; exit $code", rc=3)
    assert "ssh-copy-id ipex@node2" in said
