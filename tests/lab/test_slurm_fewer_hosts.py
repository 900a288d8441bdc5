"""`ipexctl submit --min-hosts` on a real Slurm: its run goes on without a node that is lost, and a job that has lost
node0 does not keep its other nodes."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_helpers import wait_until
from ipexctl.extras.lab.lab_plan import LabSpec
from ipexctl.extras.lab.lab_record import Lab, LabHost
from ipexctl.extras.lab.lab_system import in_host
from lab_helpers import ask
from message_data import missing
from slurm_helpers import NEEDS_SLURM
from submit_helpers import Laptop, new_laptop

LAB = LabSpec(hosts=4, slurm=True, shared_home=True)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(120), NEEDS_SLURM]
SCRIPT = """\
import os, time

rank, size, path = os.environ["RANK"], os.environ["WORLD_SIZE"], "ck/step"
step = int(open(path).read()) if os.path.exists(path) else 0
print("from", step, "of", size, os.environ["IPEXCTL_FIRST_WORLD_SIZE"], os.environ["IPEXCTL_HOSTS"], flush=True)
while not os.path.exists("enough"):
    time.sleep(0.1)
    if rank == "1" and os.path.exists("fail"):
        os.remove("fail")
        os._exit(3)
    step += 1
    if rank == "0" and step % 20 == 0:
        os.makedirs("ck", exist_ok=True)
        open("ck/.part", "w").write(str(step))
        os.replace("ck/.part", path)
        print("saved", flush=True)
"""
CRASH = "all=$(cat /run/slurmd.pid; pgrep -x slurmstepd; pgrep -u ipex); kill -STOP $all; kill -KILL $all || :"
"""All of Slurm and of the run there, at once, as when the power fails: an srun whose supervisor ends first would cancel
its step. Its kernel still refuses connections."""
SLURMD = "kill -0 $(cat /run/slurmd.pid) 2>/dev/null || slurmd"
OPTIONS = ("-N", 3, "--min-hosts", 2, "--max-restarts", 3, "--checkpoint", "ck", "counts.py")


@pytest.fixture
def laptop(lab: Lab, tmp_path: Path) -> Iterator[Laptop]:
    yield from new_laptop(lab, tmp_path, {"counts.py": SCRIPT})
    for host in lab.hosts[1:]:
        in_host(host, SLURMD)
    ask(lab.hosts[0], "scontrol update nodename=node[2-4] state=resume")


def begins(laptop: Laptop, *options: object) -> str:
    """The run, once a checkpoint was written."""
    run = laptop.submit(*options, *OPTIONS)
    wait_until(lambda: "saved" in laptop.call("logs", run).out, 40, lambda: str(laptop.state(run)))
    return run


def node(laptop: Laptop, name: str) -> LabHost:
    return next(host for host in laptop.lab.hosts if host.name == name)


def attempts(laptop: Laptop, run: str) -> list[tuple[int, int, list[str]]]:
    """Step, world size and hosts at the begin of each attempt of rank 0."""
    lines = laptop.call("logs", run, "-r", 0).out.splitlines()
    found = [re.fullmatch(r"\[0\] from (\d+) of (\d) 3 (\S+)", line) for line in lines]
    return [(int(match[1]), int(match[2]), match[3].split(",")) for match in found if match]


def test_a_run_goes_on_without_a_node_and_takes_it_back(laptop: Laptop) -> None:
    run = begins(laptop)
    in_host(node(laptop, "node4"), CRASH)
    wait_until(lambda: len(attempts(laptop, run)) == 2, 40, lambda: str(laptop.state(run)))
    assert missing(laptop.call("why", run).out, "2 ranks node[2-3] after node4") == []
    in_host(node(laptop, "node4"), SLURMD)
    time.sleep(10)  # it is heard
    ask(laptop.lab.hosts[0], "touch $(echo .ipexctl/code/*/)fail")
    wait_until(lambda: len(attempts(laptop, run)) == 3, 40, lambda: str(laptop.state(run)))
    ask(laptop.lab.hosts[0], "touch $(echo .ipexctl/code/*/)enough")
    assert laptop.call("wait", run).rc == 0
    first, second, third = attempts(laptop, run)
    assert [part[1:] for part in (first, second, third)] == [
        (3, ["node2", "node3", "node4"]),
        (2, ["node2", "node3"]),
        (3, ["node2", "node3", "node4"]),
    ]
    assert first[0] == 0 < second[0] < third[0], "each one continues from the newest checkpoint"
    entry = laptop.state(run)
    assert (entry["state"], [len(part["hosts"]) for part in entry["attempts"]]) == ("ok", [3, 2, 3])


def test_a_job_without_node0_begins_again(laptop: Laptop) -> None:
    """An operator, or SlurmdTimeout, counts the node as down."""
    login = laptop.lab.hosts[0]
    run = begins(laptop, "--requeue")
    job = ask(login, f"cat .ipexctl/runs/{run}/slurm/job").out.strip()
    in_host(node(laptop, "node2"), CRASH)
    in_host(login, "scontrol update nodename=node2 state=down reason=test")
    assert f"{job} RUNNING" in ask(login, "squeue -h -o '%i %T'").out, "Slurm leaves it to its other nodes"
    wait_until(
        lambda: ask(login, "squeue -h -t PD -o %i").out.split() == [job],
        40,
        lambda: ask(login, "scontrol show job").out,
    )
    laptop.wait_for(run, "queued")
    in_host(node(laptop, "node2"), SLURMD)
    ask(login, f"scontrol update job={job} StartTime=now")
    wait_until(lambda: len(attempts(laptop, run)) == 2, 40, lambda: str(laptop.state(run)))
    first, second = attempts(laptop, run)
    assert (first[1], second[1], first[0] < second[0]) == (3, 3, True)
    assert laptop.call("stop", run).rc == 0
