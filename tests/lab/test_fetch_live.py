"""`fetch --follow` of a run that goes on: its results arrive meanwhile and grow in place."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from agent_helpers import wait_until
from ipexctl.extras.lab.lab_plan import LabSpec
from lab_run_helpers import Cluster, Running

MPI_LAB = LabSpec(hosts=2)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

WRITING = """\
import os, pathlib, sys, time
top = pathlib.Path(os.environ["IPEXCTL_RUN_DIR"])
for number in range(int(sys.argv[1])):
    with (top / "log").open("a") as file:
        print("step", number, file=file)
    (top / "last.part").write_text(f"weights {number}")
    (top / "last.part").rename(top / "last.pt")
    time.sleep(0.1)
"""


def follow(cluster: Cluster, *args: object) -> tuple[Running, Path]:
    out = cluster.state / "mirror"
    return cluster.begin_call("fetch", "last", out, "--results", "--follow", *args), out


def test_results_of_all_hosts_arrive_while_the_run_goes_on(cluster: Cluster) -> None:
    cluster.write("writes.py", WRITING)
    run = cluster.run("--ppn", "1", "--detach", "writes.py", "60").out.strip()
    cluster.wait_until(run, "running")
    following, out = follow(cluster, "--json")
    wait_until(lambda: all((out / name / "log").exists() for name in ("node1", "node2")), 20, following.said)
    early = (out / "node1/log").read_text()
    assert early.count("step") < 60
    assert following.end(30) == 0, following.said()
    document = json.loads(following.out.read_text())
    assert {host["host"]: sorted(host["brought"]) for host in document["hosts"]}["node2"] == ["last.pt", "log"]
    for index, name in enumerate(("node1", "node2")):
        results = f".ipexctl/results/{run}"
        assert (out / name / "log").read_text() == cluster.on(index, f"cat {results}/log") != early
        assert (out / name / "last.pt").read_text() == "weights 59"


def test_ctrl_c_leaves_the_run_and_the_same_command_goes_on(cluster: Cluster) -> None:
    cluster.write("writes.py", WRITING)
    run = cluster.run("--ppn", "1", "--detach", "-l", "node1", "writes.py", "250").out.strip()
    cluster.wait_until(run, "running")
    following, out = follow(cluster)
    following.wait_for("Ctrl-C")
    following.process.send_signal(signal.SIGINT)
    assert following.end(20) == 130, following.said()
    assert f"{out}/node1/: 2 files" in following.out.read_text()
    inode = (out / "node1/log").stat().st_ino
    assert cluster.status(run)["state"] == "running"
    again, _ = follow(cluster)
    again.wait_for("Ctrl-C")
    # A connection that breaks, as of a node0 that is away for a moment.
    subprocess.run(
        ["ss", "-K", "dst", cluster.lab.hosts[0].address, "dport", "=", "22"], capture_output=True, check=True
    )
    assert again.end(60) == 0, again.said()
    assert "is reached again" in again.err.read_text()
    assert (out / "node1/log").read_text().splitlines()[-1] == "step 249"
    assert (out / "node1/log").stat().st_ino == inode
