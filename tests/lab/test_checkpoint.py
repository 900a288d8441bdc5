"""`run --checkpoint` on real hosts without a shared home: all hosts have the checkpoint of rank 0 at each start."""

from __future__ import annotations

import pytest

from ipexctl.addons.lab.faults import break_host, mend_host
from ipexctl.addons.lab.lab_plan import LabSpec
from lab_run_helpers import Cluster, by_rank
from message_data import missing

MPI_LAB = LabSpec(hosts=3)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

TRAIN = """\
import io, os, signal, sys, time, zipfile

PATH = "checkpoints/last.pt"
rank, count, last = int(os.environ["RANK"]), int(os.environ["RESTART_COUNT"]), int(sys.argv[1])
try:
    step = int(zipfile.ZipFile(PATH).read("step"))
except FileNotFoundError:
    step = 0
print("in", os.getcwd(), flush=True)
print("from", step, flush=True)


def save(path):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("step", str(step))
        archive.writestr("weights", "w" * 100_000)
    with open(path, "wb") as file:
        file.write(packed.getvalue())


while step < last:
    step += 1
    if rank == 0:
        os.makedirs("checkpoints", exist_ok=True)
        save(PATH + ".tmp")
        os.replace(PATH + ".tmp", PATH)
    time.sleep(0.02)
if count < int(sys.argv[2]):  # the ranks wait for each other, as in a barrier; one is killed
    if rank == 1:
        time.sleep(4)  # on a busy machine, rank 0 starts seconds later
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
print("at", step, flush=True)
"""


def starts(out: str) -> set[tuple[str, ...]]:
    """For each rank the steps it started from."""
    return {tuple(line.split()[1] for line in lines if line.startswith("from")) for lines in by_rank(out).values()}


def test_all_ranks_continue_from_the_checkpoint_of_rank_0(cluster: Cluster) -> None:
    cluster.write("train.py", TRAIN)
    options = ("--ppn", "1", "--checkpoint", "checkpoints/last.pt")
    killed = cluster.run(*options, "--max-restarts", "1", "train.py", "5", "1")
    assert starts(killed.out) == {("0", "5")}
    assert missing(killed.err, "checkpoints/last.pt node1 node2 node3 kB") == []
    assert "--checkpoint" not in killed.err
    again = cluster.run(*options, "train.py", "8", "0")
    assert starts(again.out) == {("5",)}
    assert {lines[-1] for lines in by_rank(again.out).values()} == {"at 8"}


ON_EACH_HOST = """\
import os, time, zipfile

rank, step = int(os.environ["RANK"]), 0
if os.path.exists("kept/last.pt"):
    step = int(zipfile.ZipFile("kept/last.pt").read("step"))
print("from", step, os.environ["WORLD_SIZE"], "of", os.environ["IPEXCTL_FIRST_WORLD_SIZE"], flush=True)
last = 20 if step < 20 else step + 1
os.makedirs("kept", exist_ok=True)
while step < last:
    step += 1
    with zipfile.ZipFile("kept/new", "w") as archive:
        archive.writestr("step", str(step))
    os.replace("kept/new", "kept/last.pt")
print("at", step, flush=True)
if last == 20:
    time.sleep(600)
"""


def test_run_that_lost_node0_is_resumed_on_the_hosts_that_are_left(cluster: Cluster) -> None:
    cluster.write("each.py", ON_EACH_HOST)
    options = ("-n", "3", "--min-hosts", "2", "--max-restarts", "3", "--checkpoint", "kept", "--reconnect", "5")
    began = cluster.begin(*options, "--connect-timeout", "3", "each.py", cluster.marker)
    began.wait_for("at 20", times=3)
    run = began.id
    alive = cluster.call("run", "--resume", "last")
    assert missing(alive.err, f"{run} is alive on node[1-3] ipexctl stop {run}") == []
    break_host(cluster.lab.hosts[0], "link-down")
    cut = cluster.call("run", "--resume", "last")
    assert missing(cut.err, f"{run} still has processes node[2-3] within a minute ipexctl run --resume {run}") == []
    assert began.end(timeout=90) == 3
    assert f"on the hosts that are left: ipexctl run --resume {run}" in began.said()
    cluster.wait_until_gone(75, cluster.marker)
    assert f"ipexctl run --resume {run}" in cluster.call("why", "last").out
    refused = cluster.call("run", "--resume", "last", "--min-hosts", "3")
    assert (refused.rc, missing(refused.err, "2 hosts of 3 answer --min-hosts 3; node1 --min-hosts 2")) == (3, [])
    cluster.write("each.py", f"{ON_EACH_HOST}# corrected\n")  # the project goes into the tree of the lost run
    resumed = cluster.call("run", "--resume", "last")
    assert resumed.rc == 0, resumed.err
    assert by_rank(resumed.out) == {rank: ["from 20 2 of 3", "at 21"] for rank in range(2)}
    assert missing(resumed.err, f"node1 is left out run {run} is resumed on node[2-3]") == []
    again = cluster.call("run", "--resume", "last", "-l", "node3", "--min-hosts", "1", "-n", "1")
    assert (again.rc, missing(again.err, "has finished nothing to resume")) == (2, [])
    mend_host(cluster.lab.hosts[0], "link-down")
    mended = cluster.run("--ppn", "1", "--checkpoint", "kept", "each.py", cluster.marker)
    assert by_rank(mended.out) == {rank: ["from 21 3 of 3", "at 22"] for rank in range(3)}, mended.err
