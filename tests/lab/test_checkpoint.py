"""`run --checkpoint` on real hosts without a shared home: all hosts have the checkpoint of rank 0 at each start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent_helpers import wait_until
from ipexctl.extras.lab.fault_injection import break_host, mend_host
from ipexctl.extras.lab.plan import LabSpec
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
    if rank == 0 and "--half" in sys.argv:
        os.truncate(PATH, 500)
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
    # Rank 0 leaves a half-written file: all continue from the last complete one, which the other hosts have.
    half = cluster.run(*options, "--max-restarts", "1", "train.py", "9", "1", "--half")
    assert starts(half.out) == {("8", "8")}
    assert missing(half.err, "half-written set aside node1") == []


TRAINER = Path(__file__).parents[1] / "stand_ins" / "trainer.py"


def test_three_runs_of_a_trainer_with_rotation_resume_from_the_newest_whole_checkpoint(cluster: Cluster) -> None:
    cluster.write("train.py", TRAINER.read_text())
    options = ("--ppn", "1", "--checkpoint", "checkpoints", "train.py", "checkpoints")
    cluster.run(*options, "60")
    cluster.run(*options, "30")
    resumed = cluster.run(*options, "100", "--resume")
    assert by_rank(resumed.out) == {rank: ["from checkpoint-30", "at 100"] for rank in range(3)}
    assert missing(resumed.err, "14 files set aside node2 node1 checkpoint-40 deleted .ipexctl/checkpoints/") == []
    tree = synced_tree(cluster)
    assert cluster.on(0, f"ls {tree}/checkpoints").split() == ["checkpoint-100", "checkpoint-80"]
    # What the third run left on the other hosts is no checkpoint; the next exchange removes what was set aside.
    cluster.run(*options, "100", "--resume")
    for index in range(3):
        assert cluster.on(index, f"ls {tree}/checkpoints").split() == ["checkpoint-100", "checkpoint-80"]
        assert cluster.on(index, f"ls {tree}/checkpoints/checkpoint-100 | wc -l").strip() == "9"


def test_hosts_with_different_checkpoints_are_named_before_the_start_and_by_why(cluster: Cluster) -> None:
    cluster.write("apart.py", TRAINER.read_text())
    cluster.run("--ppn", "1", "apart.py", "apart", "60")  # rank 0 rotates on its own host
    cluster.run("--ppn", "1", "apart.py", "apart", "30")
    failed = cluster.run("--ppn", "1", "apart.py", "apart", "100", "--resume", "--save-steps", "90", rc=None)
    assert failed.rc == 1
    assert by_rank(failed.out).get(0) == ["from checkpoint-30"], failed.out + failed.err
    note = "--resume: the newest checkpoint in apart is checkpoint-30 on node1, checkpoint-60 on node[2-3]"
    assert missing(failed.err, note) == []
    assert "--checkpoint apart" in failed.err
    why = cluster.call("why", "last")
    sentence = "rank 0 resumed from checkpoint-30, ranks 1-2 from checkpoint-60"
    assert sentence in why.out, why.out
    assert "--checkpoint apart" in why.out
    mended = cluster.run("--ppn", "1", "--checkpoint", "apart", "apart.py", "apart", "100", "--resume")
    assert by_rank(mended.out) == {rank: ["from checkpoint-30", "at 100"] for rank in range(3)}
    assert "the newest checkpoint in" not in mended.err


PLACED = """\
import os, sys
path = sys.argv[1]
print("has", open(path).read() if os.path.exists(path) else "nothing", flush=True)
if "--write" in sys.argv and os.environ["RANK"] == "0":
    os.makedirs(os.path.dirname(path), exist_ok=True)
    open(path, "w").write("weights")
"""


def synced_tree(cluster: Cluster) -> str:
    path: str = json.loads(cluster.good("sync", "-H", cluster.lab.hostfile, "--json"))["path"]
    return path


def test_link_of_the_project_exchanges_no_files_of_the_hosts(cluster: Cluster) -> None:
    cluster.write("placed.py", PLACED)
    cluster.write("ipexctl.toml", '[run]\ncheckpoint = "ckpt2"\n')
    (cluster.project / "ckpt2").symlink_to("../../../.aws")
    for index in range(3):
        cluster.on(index, f"mkdir -p .aws && echo of-host-{index} >.aws/credentials && rm -rf .ipexctl/runs")
    for options in ((), ("--checkpoint", "ckpt2/credentials"), ("--dry-run",)):
        refused = cluster.run("--ppn", "1", *options, "placed.py", "x", rc=2)
        assert missing(refused.err, "ckpt2 link ../../../.aws --checkpoint /PATH") == []
    assert cluster.on(0, "ls .ipexctl").split().count("runs") == 0
    assert cluster.call("run", "--hosts", "unknown.invalid", "placed.py").rc == 2  # no host has to answer for it
    # A host refuses it, too, where the control machine can't know of the link.
    tree = synced_tree(cluster)
    failed = cluster.run("--ppn", "1", "--checkpoint", f"{tree}/ckpt2", "placed.py", "x", rc=None)
    assert failed.rc not in (0, 2)
    assert missing(failed.err, f"node1 {tree}/ckpt2 sync --checkpoint /PATH") == []
    assert [cluster.on(index, "cat .aws/credentials").strip() for index in range(3)] == [
        f"of-host-{index}" for index in range(3)
    ]


def test_links_of_the_user_and_absolute_paths_in_the_call_are_followed(cluster: Cluster) -> None:
    cluster.write("placed.py", PLACED)
    cluster.write("ipexctl.toml", '[run]\ncheckpoint = "checkpoints"\n')
    tree = synced_tree(cluster)
    for index in range(3):
        cluster.on(index, f"mkdir -p /tmp/big && ln -s /tmp/big/mine {tree}/checkpoints")
    cluster.on(0, "mkdir /tmp/big/mine")
    cluster.run("--ppn", "1", "-n", "1", "placed.py", "checkpoints/last.pt", "--write")
    again = cluster.run("--ppn", "1", "placed.py", "checkpoints/last.pt")
    assert {lines[-1] for lines in by_rank(again.out).values()} == {"has weights"}
    assert cluster.on(2, f"readlink {tree}/checkpoints; cat /tmp/big/mine/last.pt") == "/tmp/big/mine\nweights"
    path = "/tmp/absolute/last.pt"
    cluster.run("--ppn", "1", "--checkpoint", path, "placed.py", path, "--write")
    named = cluster.run("--ppn", "1", "--checkpoint", path, "placed.py", path)
    assert {lines[-1] for lines in by_rank(named.out).values()} == {"has weights"}
    cluster.write("ipexctl.toml", f'[run]\ncheckpoint = "{path}"\n')
    assert missing(cluster.run("--ppn", "1", "placed.py", path, rc=2).err, "ipexctl.toml:2 checkpoint") == []


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
    assert missing(resumed.err, f"node1 is left out run {run} begins anew on node[2-3]") == []
    again = cluster.call("run", "--resume", "last", "-l", "node3", "--min-hosts", "1", "-n", "1")
    assert by_rank(again.out) == {0: ["from 21 1 of 3", "at 22"]}, again.err
    mend_host(cluster.lab.hosts[0], "link-down")
    mended = cluster.run("--ppn", "1", "--checkpoint", "kept", "each.py", cluster.marker)
    assert by_rank(mended.out) == {rank: ["from 22 3 of 3", "at 23"] for rank in range(3)}, mended.err


def test_run_is_not_begun_anew_without_the_checkpoint_that_node0_alone_had(cluster: Cluster) -> None:
    cluster.write("each.py", ON_EACH_HOST.replace("while step", "while not rank and step"))
    options = ("-n", "3", "--min-hosts", "2", "--max-restarts", "3", "--checkpoint", "kept", "--reconnect", "5")
    began = cluster.begin(*options, "--connect-timeout", "3", "each.py", cluster.marker)
    began.wait_for("at 20")
    record = cluster.state / f"ipexctl/runs/{began.id}/status.json"
    wait_until(lambda: json.loads(record.read_text())["has_checkpoint"], 40)
    break_host(cluster.lab.hosts[0], "link-down")
    assert began.end(timeout=90) == 3
    cluster.wait_until_gone(75, cluster.marker)
    leases = "ls .ipexctl/code/*/.ipexctl/leases"
    before = cluster.on(1, leases)
    refused = cluster.call("run", "--resume", "last")
    words = f"{began.id} had a checkpoint in kept whole node[2-3] node1 answers again --resume start over: ipexctl run"
    assert (refused.rc, missing(refused.err, words)) == (2, [])
    assert cluster.on(1, leases) == before
