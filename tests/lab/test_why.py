"""`ipexctl why` on real SSH hosts with a real Intel MPI: the real cause, and the stacks of hanging ranks."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from agent_helpers import wait_until
from ipexctl.extras.lab.faults import break_host, mend_host
from ipexctl.extras.lab.lab_plan import LabSpec
from lab_run_helpers import Cluster, by_rank
from message_data import missing

MPI_LAB = LabSpec(hosts=3)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

START_LINES = """\
import os, socket, sys, time
print("rank", os.environ["RANK"], "begins", flush=True)
"""
WAIT_LINES = "time.sleep(300)\n"
BARRIER_LINES = """\
if os.environ["RANK"] == "0":
    s = socket.create_server(("0.0.0.0", 29519))
    held = [s.accept()[0] for _ in range(2)]
    for each in held: each.sendall(b"go")
else:
    for _ in range(100):
        try: s = socket.create_connection((os.environ["MASTER_ADDR"], 29519))
        except OSError: time.sleep(0.1)
        else: break
    s.recv(2)
"""
"""Goes on when all three ranks have begun."""


def fail(cluster: Cluster, body: str, *options: str, rc: int) -> dict[str, Any]:
    """Run this code on every rank until it fails; returns the JSON of why."""
    cluster.write("train.py", START_LINES + body + WAIT_LINES)
    ran = cluster.run("--plain", *options, "train.py", rc=rc)
    assert "ipexctl why train-" in ran.err
    said = asked(cluster)
    if said["cause"]:
        assert f"{said['cause']['confidence']} cause: {said['cause']['sentence']}" in ran.err
    return said


def asked(cluster: Cluster) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(cluster.good("why", "last", "--json"))
    assert said["schema"] == "ipexctl.why/1"
    return said


@pytest.mark.core
def test_rank_with_exception_is_named_with_its_last_lines(cluster: Cluster) -> None:
    raises = "if os.environ['RANK'] == '1': raise ValueError('the \\x1b[31mloss\\x1b[0m is gone \\udcff')\n"
    said = fail(cluster, BARRIER_LINES + raises, rc=1)
    assert {"rank": 1, "host": "node2", "exit_code": 1, "signal": None}.items() <= said["first_failure"].items()
    assert said["cause"]["id"] == "script.raised"
    line = (START_LINES + BARRIER_LINES).count("\n") + 1
    assert missing(said["cause"]["sentence"], f"train.py {line}") == []
    assert {"stream": "stdout", "text": "rank 1 begins"} in said["lines"]
    assert said["lines"][-1]["text"].startswith("ValueError: the loss is gone")
    assert [each["ranks"] for each in said["others"]] == [[0, 2]]
    text = cluster.call("why", "last")
    assert missing(text.out.splitlines()[0], f"{said['run']['id']} 1 node2") == []
    assert "\x1b" not in text.out
    assert text.err == ""


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
