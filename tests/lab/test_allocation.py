"""ipexctl called inside a real Slurm's job: its hosts, its ranks, its end."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ipexctl.lab import Lab, LabSpec
from lab_helpers import ask
from lab_run_helpers import Cluster, by_rank, lab_with_mpi, session_dir
from message_data import missing
from slurm_helpers import Slurm, bring_ipexctl, need_slurm, put, slurm_on

pytestmark = [pytest.mark.lab, pytest.mark.timeout(200)]

SAYS = """\
import os, socket, sys, time

print(socket.gethostname(), os.environ["LOCAL_RANK"], flush=True)
if sys.argv[1:] == ["badly"] and os.environ["RANK"] == "1":
    sys.exit(7)
if sys.argv[1:] == ["for-ever"]:
    time.sleep(300)
"""
CONFIG = "~/.ipexctl/ssh/config"
"""What trust wrote for node0: the test's user has no key of their own on the lab's hosts."""


@dataclass(frozen=True)
class Inside:
    """Node1 with ipexctl on it, where a job's script runs."""

    slurm: Slurm
    ipexctl: str

    def job(self, words: str) -> str:
        return f"#!/bin/sh\ncd project\nexec {self.ipexctl} {words}\n"


@pytest.fixture(scope="module")
def lab(make_lab: Callable[[LabSpec], Lab], tmp_path_factory: pytest.TempPathFactory) -> Lab:
    need_slurm()
    return lab_with_mpi(make_lab(LabSpec(hosts=2, name=f"export-{os.getpid()}")), session_dir(tmp_path_factory))


@pytest.fixture(scope="module")
def inside(lab: Lab) -> Iterator[Inside]:
    put(lab.hosts[0], "/home/ipex/project/says.py", SAYS)
    ask(lab.hosts[0], "chown -R ipex: /home/ipex/project", as_root=True)
    with slurm_on(lab) as slurm:
        yield Inside(slurm, bring_ipexctl(lab.hosts[0]))


def test_a_run_has_the_hosts_of_its_job_and_a_rank_for_each_task(inside: Inside) -> None:
    words = f"run --ssh-config {CONFIG} says.py"
    said = inside.slurm.ended(inside.slurm.begun(inside.job(words), "--nodes=2", "--ntasks=3"))
    assert by_rank(said) == {0: ["node1 0"], 1: ["node1 1"], 2: ["node2 0"]}


def test_nodes_without_tasks_leave_the_number_of_ranks_to_ipexctl(inside: Inside) -> None:
    words = f"run --ssh-config {CONFIG} says.py"
    said = inside.slurm.ended(inside.slurm.begun(inside.job(words), "--nodes=2", "--exclusive"))
    assert by_rank(said) == {0: ["node1 0"], 1: ["node2 0"]}


def test_the_exit_code_of_the_rank_that_failed_is_the_jobs(inside: Inside) -> None:
    words = f"run --ssh-config {CONFIG} says.py badly"
    said = inside.slurm.ended(inside.slurm.begun(inside.job(words), "--nodes=2", "--ntasks=2"), rc=7)
    assert missing(said, "rank 1 node2 code 7") == []


def test_scancel_ends_a_run_on_every_host(inside: Inside, lab: Lab, tmp_path: Path) -> None:
    """The ranks of the other nodes are none of Slurm's: ssh started them."""
    words = f"run --ssh-config {CONFIG} says.py for-ever"
    job = inside.slurm.begun(inside.job(words), "--nodes=2", "--ntasks=4")
    assert inside.slurm.has_said(job, "] node", 4)
    inside.slurm.say(f"scancel {job}")
    assert Cluster(lab, tmp_path, tmp_path).gone_within(20, "says.py for-ever")
    until = time.monotonic() + 20
    while (state := runs(inside)[-1]["state"]) == "running" and time.monotonic() < until:
        time.sleep(0.2)
    assert state == "stopped"


def runs(inside: Inside) -> list[dict[str, str]]:
    said = ask(inside.slurm.lab.hosts[0], f"{inside.ipexctl} ps --json 2>/dev/null")
    found: list[dict[str, str]] = sorted(json.loads(said.out)["runs"], key=lambda run: run["id"])
    return found


def test_a_step_sees_all_hosts_of_its_job_and_many_tasks_are_refused(inside: Inside) -> None:
    listed = f"{inside.ipexctl} exec --ssh-config {CONFIG} --json -- hostname"
    said = inside.slurm.say(f"salloc --quiet -N2 -n4 srun -N1 -n1 -w node1 {listed} 2>/dev/null")
    assert [host["stdout"].strip() for host in json.loads(said)["hosts"]] == ["node1", "node2"]
    said = inside.slurm.say(f"salloc --quiet -N2 -n2 srun {listed}", rc=2)
    assert "srun starts this 2 times" in said


def test_a_host_of_the_job_that_ssh_does_not_reach_is_said_with_what_to_type(inside: Inside) -> None:
    said = inside.slurm.say(f"cd project; salloc --quiet -N2 -n2 {inside.ipexctl} run says.py", rc=3)
    assert "node2: its host key" in said
    assert "ssh-keyscan node2" in said
    accepted = f"salloc --quiet -N2 -n2 {inside.ipexctl} run --host-keys accept-new says.py"
    said = inside.slurm.say(f"cd project; {accepted}; code=$?; rm -f ~/.ssh/known_hosts; exit $code", rc=3)
    assert "ssh-copy-id ipex@node2" in said
