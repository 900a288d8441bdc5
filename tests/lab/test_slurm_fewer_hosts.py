"""A run in a job of a real Slurm with --no-kill: it loses a node, goes on, and takes the node back if Slurm does."""

from __future__ import annotations

import re

import pytest

from agent_helpers import wait_until
from ipexctl.addons.lab.lab_plan import LabSpec
from ipexctl.addons.lab.lab_record import Lab
from ipexctl.addons.lab.lab_system import in_host
from lab_helpers import ask
from slurm_helpers import NEEDS_SLURM, Slurm, put

LAB = LabSpec(hosts=4, slurm=True, shared_home=True)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(200), NEEDS_SLURM]
SCRIPT = """\
import os, time

rank, size, path = os.environ["RANK"], os.environ["WORLD_SIZE"], "checkpoints/step"
step = int(open(path).read()) if os.path.exists(path) else 0
print("from", step, "of", size, os.environ["IPEXCTL_HOSTS"], flush=True)
while not os.path.exists("enough"):
    time.sleep(0.1)
    step += 1
    if rank == "0" and step % 20 == 0:
        os.makedirs("checkpoints", exist_ok=True)
        open("checkpoints/.part", "w").write(str(step))
        os.replace("checkpoints/.part", path)
        print("saved", flush=True)
"""
CRASH = "kill -9 $(cat /run/slurmd.pid) $(pgrep -x slurmstepd; pgrep -u ipex) || :"
"""As if the power failed: all of Slurm and of the run at once. The kernel still refuses connections."""
SLURMD = "kill -0 $(cat /run/slurmd.pid) 2>/dev/null || slurmd"
KILL_RANK = "pkill -9 -u ipex -f '^/usr/bin/python3.*counts.py'"
CALL = "ipexctl run --min-hosts 2 --max-restarts 4 --checkpoint checkpoints counts.py"


@pytest.fixture
def slurm(lab: Lab) -> Slurm:
    login, found = lab.hosts[0], Slurm(lab)
    ask(login, "scancel -u ipex; rm -rf train .ipexctl/code; mkdir -p train .config/ipexctl")
    put(login, "/home/ipex/.config/ipexctl/config.toml", '[run]\npython = "/usr/bin/python3"\n')
    put(login, "/home/ipex/train/counts.py", SCRIPT)
    put(login, "/home/ipex/train/pyproject.toml", "")
    in_host(login, "chown -R ipex: /home/ipex/train /home/ipex/.config")
    return found


def attempts(slurm: Slurm, job: str) -> list[tuple[int, str]]:
    """Step and hosts at the begin of each attempt of rank 0."""
    return [(int(step), hosts) for step, hosts in re.findall(r"\[0\] from (\d+) of \d (\S+)", slurm.said(job))]


def test_a_node_that_is_back_joins_at_the_next_restart_unless_slurm_has_counted_it_as_down(slurm: Slurm) -> None:
    def wait_for_attempts(count: int) -> None:
        wait_until(lambda: len(attempts(slurm, job)) == count, 60, lambda: slurm.said(job) + slurm.logs())

    def wait_for_node4(state: str) -> None:
        in_host(node4, SLURMD)
        wait_until(lambda: "node4" in slurm.say(f"sinfo -h -N -t {state} -o %N"), 30, slurm.logs)

    login, _, node3, node4 = slurm.lab.hosts
    job = slurm.say(f"cd train && sbatch --parsable --no-kill -N 3 --exclusive --wrap '{CALL}'").strip()
    slurm.wait_for(job, "saved", 1)
    in_host(node4, CRASH)
    wait_for_attempts(2)
    wait_for_node4("alloc")
    in_host(node3, KILL_RANK)
    wait_for_attempts(3)
    in_host(node4, CRASH)
    in_host(login, "scontrol update nodename=node4 state=down reason=test")
    wait_for_attempts(4)
    wait_for_node4("idle")
    in_host(node3, KILL_RANK)
    wait_for_attempts(5)
    ask(login, "touch train/enough $(echo .ipexctl/code/*/)enough")
    slurm.ended(job)
    all_nodes, without = "node2,node3,node4", "node2,node3"
    steps, hosts = zip(*attempts(slurm, job), strict=True)
    assert hosts == (all_nodes, without, all_nodes, without, without)
    assert list(steps) == sorted(steps), "each attempt continues from the newest checkpoint"
    assert steps[0] == 0 < steps[1] < steps[4]
