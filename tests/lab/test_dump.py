"""`ipexctl why --stacks` of hanging runs on real hosts with Intel MPI."""

from __future__ import annotations

import json
import time
import zipfile

import pytest

from agent_helpers import wait_until
from ipexctl.extras.lab.fault_injection import break_host, mend_host
from ipexctl.extras.lab.plan import LabSpec
from lab_run_helpers import Cluster, by_rank, wheels_from_pypi
from message_data import missing

MPI_LAB = LabSpec(hosts=3)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

HANG_SCRIPT = """\
import os, sys, threading, time
def load(path):
    return open(path).read()
def all_reduce():
    while True:
        time.sleep(0.01)
def step():
    if os.environ["RANK"] == "3":
        os.mkfifo("fifo")
        load("fifo")
    all_reduce()
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
print("here", os.environ["RANK"], flush=True)
step()
"""
MPI_SCRIPT = """\
import ctypes, os, sys, time
mpi = ctypes.CDLL(sys.prefix + "/lib/libmpi.so.12", mode=ctypes.RTLD_GLOBAL)
assert mpi.MPI_Init(None, None) == 0
def barrier():
    mpi.MPI_Barrier(0x44000000)
def train():
    barrier()
    if os.environ["RANK"] == "1":
        time.sleep(600)
    barrier()
print("here", flush=True)
train()
"""


def hanging(cluster: Cluster) -> str:
    """A run of six ranks, once all of them hang."""
    cluster.write("hangs.py", HANG_SCRIPT)
    run = cluster.run("--ppn", "2", "--detach", "hangs.py").out.strip()
    wait_until(lambda: len(by_rank(cluster.call("logs", run).out)) == 6, 60, lambda: cluster.status(run))
    time.sleep(0.5)
    return run


def test_dump_groups_ranks_of_a_hanging_run_by_function(cluster: Cluster) -> None:
    run = hanging(cluster)
    dump = cluster.call("why", "last", "--stacks")
    assert dump.rc == 0, dump.err
    heads = [line for line in dump.out.splitlines() if line.startswith("rank")]
    assert heads == ["rank 3 on node2 (1 of 6): load", "ranks 0-2,4-5 on node[1-3] (5 of 6): all_reduce"]
    assert "  load      hangs.py:3" in dump.out.splitlines()
    assert missing(dump.err, "rank 3 5") == []
    told = json.loads(cluster.call("why", run[:-2], "--stacks", "-r", "2,3", "--json").out)
    assert [group["ranks"] for group in told["groups"]] == [[2], [3]]
    assert [(row["rank"], row["host"], row["reason"]) for row in told["ranks"]] == [(2, "node2", ""), (3, "node2", "")]
    assert len(told["ranks"][0]["processes"][0]["threads"]) == 2
    assert cluster.status(run)["state"] == "running"
    cluster.good("stop", "last")
    over = cluster.call("why", "last", "--stacks")
    assert (over.rc, over.out) == (1, "")
    assert f"ipexctl why {run}" in over.err


WAITS_SCRIPT = """\
import datetime, os, time
import torch.distributed as dist
def load_batch():
    time.sleep(600)
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=500))
print("here", os.environ["RANK"], flush=True)
if os.environ["RANK"] == "1":
    load_batch()
dist.barrier()
"""


def test_stacks_of_a_silent_run_still_explain_it_after_a_stop(cluster: Cluster) -> None:
    cluster.write("waits.py", WAITS_SCRIPT)
    running = cluster.begin("--ppn", "1", "--hang-after", "5", "waits.py")
    running.wait_for("load_batch at waits.py:4", timeout=90)  # the default, report, says who does not arrive
    cluster.good("stop", running.id)
    running.end()
    told = json.loads(cluster.good("why", running.id, "--json"))
    assert (told["state"], told["cause"]["id"], told["cause"]["confidence"]) == ("stopped", "hang.elsewhere", "likely")
    assert [(place["ranks"], place["hosts"], place["line"]) for place in told["hang"]["causes"]] == [
        ([1], ["node2"], 4)
    ]
    assert [(place["ranks"], place["function"]) for place in told["hang"]["waiting"]] == [([0, 2], "barrier")]


def test_py_spy_and_faulthandler_stacks_agree(cluster: Cluster) -> None:
    wheels = wheels_from_pypi(cluster.state.parent, "py-spy==0.4.3")
    with zipfile.ZipFile(next(wheels.glob("py_spy-*.whl"))) as wheel:
        spy = cluster.write("py-spy", wheel.read("py_spy-0.4.3.data/scripts/py-spy"))
    place = ".ipexctl/envs/default/bin/py-spy"
    put = ("exec", "-H", cluster.lab.hostfile, "--limit", "node1", "--stdin", spy, "--shell")
    assert cluster.call(*put, f"cat >{place} && chmod +x {place}").rc == 0
    spy.unlink()
    try:
        hanging(cluster)
        told = json.loads(cluster.call("why", "last", "--stacks", "--json").out)
        cluster.call("stop", "last")
    finally:
        cluster.on(0, f"rm {place}")
    assert [group["ranks"] for group in told["groups"]] == [[3], [0, 1, 2, 4, 5]]
    by = {row["rank"]: row["processes"][0]["by"] for row in told["ranks"]}
    assert by == {0: "py-spy", 1: "py-spy", 2: "faulthandler", 3: "faulthandler", 4: "faulthandler", 5: "faulthandler"}


@pytest.mark.core
def test_unreachable_node0_is_named(cluster: Cluster) -> None:
    run = hanging(cluster)
    break_host(cluster.lab.hosts[0], "sshd-dead")
    try:
        dump = cluster.call("why", run, "--stacks", "--json")
        assert (dump.rc, json.loads(dump.out)["ranks"]) == (3, [])
        assert dump.err.startswith("node1: ")
    finally:
        mend_host(cluster.lab.hosts[0])
    cluster.good("stop", run)


def test_stacks_of_ranks_spinning_in_mpi_show_the_python_caller(cluster: Cluster) -> None:
    cluster.write("spins.py", MPI_SCRIPT)
    running = cluster.begin("--ppn", "1", "spins.py")
    running.wait_for("] here", times=3)
    time.sleep(1)
    told = json.loads(cluster.call("why", running.id, "--stacks", "--json").out)
    assert [(group["ranks"], group["frames"][0]["function"]) for group in told["groups"]] == [
        ([1], "train"),
        ([0, 2], "barrier"),
    ]
    cluster.good("stop", running.id)
    running.end()
