"""`ipexctl doctor` on hosts with live and crashed runs: findings about their processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_helpers import wait_until
from cli_helpers import processes_with
from ipexctl.addons.lab.faults import break_host, mend_host
from ipexctl.addons.lab.lab_plan import LabSpec
from ipexctl.addons.lab.lab_record import Lab
from lab_run_helpers import Cluster

MPI_LAB = LabSpec(hosts=3)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

WITH_A_CHILD = """\
import subprocess, sys, time
subprocess.Popen(["sleep", "7331"])
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(7331)"])
print("here", flush=True)
time.sleep(7331)
"""


@pytest.fixture
def cluster(cluster: Cluster, lab: Lab) -> Iterator[Cluster]:
    cluster.write("train.py", WITH_A_CHILD)
    try:
        yield cluster
    finally:
        for host in lab.hosts:
            mend_host(host)
        for run in cluster.runs():
            cluster.call("stop", run["id"])
            of_run = f"grep -qsz '^IPEXCTL_RUN={run['id']}$' $p/environ && kill -9 ${{p#/proc/}}"
            for index in range(len(lab.hosts)):
                cluster.as_root(index, f"for p in /proc/[0-9]*; do {of_run}; done")
        cluster.wait_until_gone(70, "7331")


def started(cluster: Cluster) -> str:
    """A detached run whose ranks are all running."""
    run = cluster.run("--detach", "--ppn", "1", "train.py").out.strip()
    cluster.wait_until(run, "running", 60)
    return run


def activity(cluster: Cluster, *options: str, env: dict[str, str] | None = None) -> dict[str, dict[str, Any]]:
    """Findings about runs, by host and id."""
    ran = cluster.call("doctor", "-H", cluster.lab.hostfile, *options, "--no-network", "--json", env=env)
    assert ran.rc in (0, 3), ran.err
    return {
        host["name"]: {
            finding["id"]: finding
            for finding in host["findings"]
            if finding["id"] in ("activity.runs", "activity.leftovers")
        }
        for host in json.loads(ran.out)["hosts"]
        if host["facts"] is not None
    }


def check_unknown(finding: dict[str, Any], run: str, why: str) -> None:
    assert run in finding["message"]
    assert why in finding["message"]
    assert "ipexctl ps" in finding["fix"]
    assert "kill" not in finding["fix"]


def orphan(cluster: Cluster, run: str, index: int) -> None:
    """End the run as a crash would, and leave what the script has started on that host: its rank wrapper and the guard
    are killed while the supervisor can't see it, and then the supervisor is."""
    record = f"$HOME/.ipexctl/runs/{run}/status.json"
    name = cluster.lab.hosts[index].name
    status = json.loads(cluster.on(0, f"cat {record}"))
    supervisor = status["supervisor"]["pid"]
    cluster.on(0, f"kill -STOP {supervisor}")
    for rank in status["ranks"]:
        if rank["host"] == name:
            wrapper = rank["wrapper"]
            guards = f"$(ps -o pid=,args= --ppid {wrapper} | awk '/run.rank/ {{print $1}}')"
            cluster.on(index, f"kill -9 {guards} && kill -9 {wrapper}")
    cluster.on(0, f"kill -9 {supervisor}")
    cluster.wait_until_gone(70, f"runs/{run}/agent.zip run.rank")


def test_unreachable_node0_is_named_in_leftovers_finding(cluster: Cluster, tmp_path: Path) -> None:
    run = started(cluster)
    break_host(cluster.lab.hosts[0], "sshd-dead")
    mine = activity(cluster, "--connect-timeout", "4")
    others = activity(cluster, "--connect-timeout", "4", env={"XDG_STATE_HOME": str(tmp_path / "other")})
    assert list(mine) == list(others) == ["node2", "node3"]
    for name in ("node2", "node3"):
        check_unknown(mine[name]["activity.leftovers"], run, "its node0, node1, did not answer")
        check_unknown(others[name]["activity.leftovers"], run, "node1 did not answer")


def test_processes_of_a_crashed_run_are_found_and_ended_by_the_fix(cluster: Cluster) -> None:
    crashed = started(cluster)
    orphan(cluster, crashed, 1)
    alive = started(cluster)
    found = activity(cluster)
    assert list(found["node2"]) == ["activity.leftovers", "activity.runs"]
    assert list(found["node1"]) == list(found["node3"]) == ["activity.runs"]
    leftovers = found["node2"]["activity.leftovers"]
    assert crashed in leftovers["message"]
    assert alive not in leftovers["message"] + leftovers["fix"]
    before = processes_with(cluster.lab, "7331")
    command = leftovers["fix"][leftovers["fix"].index("for p in ") :]
    # Pids that other processes have now: the host's first process, and the shell that runs this command.
    cluster.on(1, command.replace("for p in ", "for p in 1 $$ "))
    wait_until(lambda: len(processes_with(cluster.lab, "7331")) == len(before) - 2, 10)
    found = activity(cluster)
    assert {name: list(of_host) for name, of_host in found.items()} == {
        "node1": ["activity.runs"], "node2": ["activity.runs"], "node3": ["activity.runs"],
    }  # fmt: skip
    assert cluster.status(alive)["state"] == "running"
    assert cluster.status(crashed)["state"] == "lost"
