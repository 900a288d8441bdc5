"""Runs on hosts that others use: two accounts, calls at the same moment, calls that are killed."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import pytest

from agent_helpers import wait_until
from cli_helpers import processes_with
from ipexctl.lab import LabSpec
from lab_run_helpers import WAIT_SCRIPT, Cluster, Running, by_rank

MPI_LAB = LabSpec(hosts=3)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]
CLAIM = "ipexctl-claim"
AS_ROOT = ("--user", "root", "--python", "/usr/bin/python3", "-n", "1")


@pytest.fixture
def cluster(cluster: Cluster) -> Iterator[Cluster]:
    cluster.write("waits.py", WAIT_SCRIPT)
    cluster.write("short.py", "import time\ntime.sleep(2)\nprint('done')\n")
    yield cluster
    for run in cluster.runs():
        cluster.call("stop", run["id"])


def started(cluster: Cluster) -> str:
    run = cluster.run("--detach", "--ppn", "1", "waits.py").out.strip()
    cluster.wait_until(run, "running", 60)
    return run


def claims(cluster: Cluster) -> list[str]:
    return processes_with(cluster.lab, CLAIM)


def stopped_while_it_holds_the_hosts(cluster: Cluster) -> Running:
    running = cluster.begin("--ppn", "1", "--exclusive", "waits.py")
    wait_until(lambda: len({each.partition(":")[0] for each in claims(cluster)}) == 3, 40, running.said)
    running.process.send_signal(signal.SIGSTOP)
    return running


def test_a_run_of_another_account_is_named_refused_and_waited_for(cluster: Cluster) -> None:
    run = started(cluster)
    planned = json.loads(cluster.run(*AS_ROOT, "--dry-run", "--json", "waits.py").out)
    (other,) = planned["other_runs"]
    assert (other["id"], other["account"], other["state"], other["hosts"]) == (run, "ipex", "running", ["node1"])
    assert other["cores"] == other["shared_cores"] != {}

    summary = cluster.project.parent / "summary.json"
    refused = cluster.run(*AS_ROOT, "--exclusive", "--summary", summary, "waits.py", rc=1)
    assert run in refused.err
    assert "ipex" in refused.err
    assert [each["id"] for each in json.loads(summary.read_text())["other_runs"]] == [run]

    found = cluster.call("doctor", "-H", cluster.lab.hostfile, "--user", "root", "--no-network", "--json")
    for host in json.loads(found.out)["hosts"]:
        (finding,) = [each for each in host["findings"] if each["id"] == "activity.other_accounts"]
        assert run in finding["message"]
    own = cluster.call("doctor", "-H", cluster.lab.hostfile, "--no-network", "--json")
    assert "activity.other_accounts" not in own.out

    waiting = cluster.begin(*AS_ROOT, "--wait", "100", "short.py")
    waiting.wait_for(f"run {run} of ipex")
    cluster.good("stop", run)
    assert waiting.end(100) == 0, waiting.said()
    assert by_rank(waiting.out.read_text()) == {0: ["done"]}
    assert waiting.said().count("waiting up to") == 1


def test_of_two_exclusive_calls_at_the_same_moment_one_starts_and_a_third_names_its_cores(cluster: Cluster) -> None:
    calls = [cluster.begin("--ppn", "1", "--exclusive", "waits.py") for _ in range(2)]
    wait_until(lambda: any(each.process.poll() is not None for each in calls), 60, lambda: [c.said() for c in calls])
    loser, winner = sorted(calls, key=lambda each: each.process.poll() is None)
    assert loser.end() == 1, loser.said()
    winner.wait_for("here", times=3)
    assert winner.id in loser.said()
    beside = cluster.run("--ppn", "1", "short.py")
    assert f"run {winner.id} of ipex is running on node[1-3]" in beside.err
    assert "shares core" in beside.err
    wait_until(lambda: not claims(cluster), 30, lambda: claims(cluster))
    cluster.good("stop", winner.id)


def test_a_call_that_is_killed_holds_no_host_and_leaves_nothing(cluster: Cluster) -> None:
    held = stopped_while_it_holds_the_hosts(cluster)
    refused = cluster.run("--ppn", "1", "--exclusive", "short.py", rc=1)
    assert "is starting on node[1-3]" in refused.err
    waiting = cluster.begin("--ppn", "1", "--wait", "100", "short.py")
    killed = cluster.begin("--ppn", "1", "--wait", "100", "short.py")
    for each in (waiting, killed):
        each.wait_for("waiting up to")
    for each in (killed, held):
        each.process.kill()
        each.end()
    assert waiting.end(100) == 0, waiting.said()
    assert waiting.said().count("done") == 3
    wait_until(lambda: not claims(cluster), 30, lambda: claims(cluster))
    assert [run["state"] for run in cluster.runs() if run["state"] != "unknown"] == ["ok"]


@pytest.mark.signals
def test_ctrl_c_ends_a_wait_and_touches_no_run(cluster: Cluster) -> None:
    run = started(cluster)
    waiting = cluster.begin("--ppn", "1", "--wait", "100", "short.py")
    waiting.wait_for("waiting up to")
    waiting.process.send_signal(signal.SIGINT)
    assert waiting.end(20) == 130, waiting.said()
    assert "nothing runs" in waiting.said()
    assert cluster.status(run)["state"] == "running"
    assert claims(cluster) == []
