"""ipexctl inside a job of a real Slurm whose nodes have sshd: hosts, ranks and the end of the job."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from agent_helpers import wait_until
from ipexctl.addons.lab.lab_plan import LabSpec
from ipexctl.addons.lab.lab_record import Lab
from ipexctl.addons.lab.lab_system import in_host
from lab_helpers import ask
from lab_run_helpers import Cluster, by_rank
from message_data import missing
from slurm_helpers import NEEDS_SLURM, Slurm, put

MPI_LAB = LabSpec(hosts=3, slurm=True)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(200), NEEDS_SLURM]

RANK_SCRIPT = """\
import os, socket, sys, time

print(socket.gethostname(), os.environ["LOCAL_RANK"], flush=True)
if sys.argv[1:] == ["badly"] and os.environ["RANK"] == "1":
    sys.exit(7)
if sys.argv[1:] == ["for-ever"]:
    time.sleep(300)
"""


def in_project(words: str) -> str:
    """A job's script."""
    return f"#!/bin/sh\ncd project\nexec ipexctl {words}\n"


@pytest.fixture(scope="module")
def slurm(lab: Lab) -> Slurm:
    for host in lab.hosts[:2]:  # for calls on the login node, and on the first node of a job
        put(host, "/home/ipex/project/says.py", RANK_SCRIPT)
        in_host(host, "chown -R ipex: /home/ipex/project")
    return Slurm(lab)


def test_run_in_slurm_job_uses_its_hosts_and_one_rank_per_task(slurm: Slurm) -> None:
    words = "run says.py"
    said = slurm.ended(slurm.submit(in_project(words), "--nodes=2", "--ntasks=3"))
    assert by_rank(said) == {0: ["node2 0"], 1: ["node2 1"], 2: ["node3 0"]}


def test_run_in_slurm_job_without_tasks_chooses_the_number_of_ranks(slurm: Slurm) -> None:
    words = "run says.py"
    said = slurm.ended(slurm.submit(in_project(words), "--nodes=2", "--exclusive"))
    assert by_rank(said) == {0: ["node2 0"], 1: ["node3 0"]}


def test_slurm_job_ends_with_exit_code_of_the_failed_rank(slurm: Slurm) -> None:
    words = "run says.py badly"
    said = slurm.ended(slurm.submit(in_project(words), "--nodes=2", "--ntasks=2"), rc=7)
    assert missing(said, "rank 1 node3 code 7") == []


def test_scancel_stops_the_run_on_every_host(slurm: Slurm, lab: Lab, tmp_path: Path) -> None:
    """Slurm does not know the ranks on other nodes: ssh started them."""
    words = "run says.py for-ever"
    job = slurm.submit(in_project(words), "--nodes=2", "--ntasks=4")
    slurm.wait_for(job, "] node", 4)
    slurm.say(f"scancel {job}")
    assert Cluster(lab, tmp_path, tmp_path).wait_until_gone(20, "says.py for-ever")
    wait_until(lambda: newest_state(lab) != "running")
    assert newest_state(lab) == "stopped"


def newest_state(lab: Lab) -> str:
    said = ask(lab.hosts[1], "ipexctl ps --json 2>/dev/null")
    newest = max(json.loads(said.out)["runs"], key=lambda run: run["id"])
    return str(newest["state"])


def test_srun_step_uses_all_hosts_and_several_tasks_are_refused(slurm: Slurm) -> None:
    listed = "ipexctl exec --json -- hostname"
    said = slurm.say(f"salloc --quiet -N2 -n4 srun -N1 -n1 -w node2 {listed} 2>/dev/null")
    assert [host["stdout"].strip() for host in json.loads(said)["hosts"]] == ["node2", "node3"]
    said = slurm.say(f"salloc --quiet -N2 -n2 srun {listed}", rc=2)
    assert "srun starts this 2 times" in said


def test_ssh_errors_in_slurm_job_are_reported_with_a_command(slurm: Slurm) -> None:
    called = "ipexctl run --transport ssh"
    said = slurm.say(f"cd project; salloc --quiet -N2 -n2 {called} says.py", rc=3)
    assert "node2: its host key" in said
    assert "ssh-keyscan node2" in said
    accepted = f"salloc --quiet -N2 -n2 {called} --host-keys accept-new says.py"
    said = slurm.say(f"cd project; {accepted}; code=$?; rm -f ~/.ssh/known_hosts; exit $code", rc=3)
    assert re.search(r"ssh-copy-id ipex@node[23]", said)  # whichever is refused first
