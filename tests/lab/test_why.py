"""`ipexctl why` on real SSH hosts with a real Intel MPI: the real cause, and the stacks of hanging ranks."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from ipexctl.addons.lab.faults import break_host, mend_host
from ipexctl.addons.lab.lab_plan import LabSpec
from lab_run_helpers import Cluster
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
    assert {"rank": 1, "host": "node2", "exit_code": 1, "signal": None}.items() <= said["run"]["first_failure"].items()
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


@pytest.mark.core
def test_unreachable_node0_is_named(cluster: Cluster) -> None:
    cluster.write("sleeps.py", "import time\ntime.sleep(600)\n")
    run = cluster.run("--ppn", "1", "--detach", "sleeps.py").out.strip()
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
