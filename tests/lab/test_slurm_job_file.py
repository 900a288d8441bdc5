"""The job file of the examples on a real Slurm: two nodes, and a job that starts again."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from agent_helpers import wait_until
from doc_blocks import ROOT
from ipexctl.addons.lab.lab_plan import LabSpec
from ipexctl.addons.lab.lab_record import Lab
from ipexctl.addons.lab.lab_system import in_host
from lab_helpers import ask
from lab_run_helpers import by_rank
from message_data import missing
from slurm_helpers import NEEDS_SLURM, Slurm, put

LAB = LabSpec(hosts=3, slurm=True, shared_home=True)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(150), NEEDS_SLURM]
JOB_FILE = (ROOT / "examples/train.sbatch").read_text()
SCRIPT = """\
import os, sys, time

rank, size, path = os.environ["RANK"], os.environ["WORLD_SIZE"], "checkpoints/step"
step = int(open(path).read()) if os.path.exists(path) else 0
print("from", step, "of", size, os.environ["IPEXCTL_HOSTS"], *sys.argv[1:], flush=True)
while not os.path.exists("enough"):
    time.sleep(0.1)
    if rank == "1" and os.path.exists("fail"):
        os._exit(3)
    step += 1
    if rank == "0" and step % 20 == 0:
        os.makedirs("checkpoints", exist_ok=True)
        open("checkpoints/.part", "w").write(str(step))
        os.replace("checkpoints/.part", path)
        print("saved", flush=True)
"""


@pytest.fixture
def slurm(lab: Lab) -> Slurm:
    login, found = lab.hosts[0], Slurm(lab)
    ask(login, "scancel -u ipex; rm -rf train .ipexctl/code; mkdir -p train .config/ipexctl")
    put(login, "/home/ipex/.config/ipexctl/config.toml", '[run]\npython = "/usr/bin/python3"\n')
    put(login, "/home/ipex/train/train.py", SCRIPT)
    put(login, "/home/ipex/train/pyproject.toml", "")
    in_host(login, "chown -R ipex: /home/ipex/train /home/ipex/.config")
    return found


def submit(slurm: Slurm, text: str, *options: str) -> str:
    put(slurm.lab.hosts[0], "/home/ipex/train/train.sbatch", text)
    return slurm.say(f"cd train && sbatch --parsable --open-mode=append {' '.join(options)}").strip()


def runs(slurm: Slurm) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(slurm.say("ipexctl ps --json 2>/dev/null", rc=None))["runs"]
    return sorted(found, key=lambda run: run["started"])


def test_the_job_file_trains_on_two_nodes_and_takes_arguments(slurm: Slurm) -> None:
    ask(slurm.lab.hosts[0], "touch train/enough")
    job = submit(slurm, JOB_FILE, "train.sbatch", "--epochs", "3")
    lines = by_rank(slurm.ended(job))
    assert lines == {rank: ["from 0 of 2 node2,node3 --epochs 3"] for rank in (0, 1)}


def test_a_wrapped_call_ends_with_the_code_of_the_failed_rank(slurm: Slurm) -> None:
    ask(slurm.lab.hosts[0], "touch train/fail")
    job = submit(slurm, JOB_FILE, "-N", "2", "--exclusive", "--wrap", "'ipexctl run train.py'")
    assert missing(slurm.ended(job, rc=3), "rank 1 node3 code 3") == []


def test_a_job_that_slurm_starts_again_continues_from_the_checkpoint_as_a_new_run(slurm: Slurm) -> None:
    before = len(runs(slurm))
    job = submit(slurm, JOB_FILE, "--requeue", "train.sbatch")
    slurm.wait_for(job, "saved", 1)
    slurm.say(f"scontrol requeue {job}")
    wait_until(lambda: job in slurm.say("squeue -h -t PD -o %i"), 40)
    (first,) = runs(slurm)[before:]
    assert first["state"] == "stopped"
    assert "its Slurm job was requeued" in slurm.say(f"ipexctl why {first['id']}", rc=None)
    slurm.say(f"scontrol update job={job} StartTime=now")
    wait_until(lambda: len(runs(slurm)) == before + 2, 40)
    slurm.wait_for(job, "from", 4)
    assert [int(step) > 0 for step in re.findall(r"from (\d+) of 2", slurm.said(job))] == [False, False, True, True]
    slurm.say(f"scancel {job}")
    wait_until(lambda: runs(slurm)[-1]["state"] == "stopped", 40)
    assert "as by scancel" in slurm.say(f"ipexctl why {runs(slurm)[-1]['id']}", rc=None)
