"""Runs on hosts that others use: two accounts, calls at the same moment, calls that are killed."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator

import pytest

from agent_helpers import wait_until
from cli_helpers import processes_with
from ipexctl.extras.lab.plan import LabSpec
from lab_run_helpers import WAIT_SCRIPT, Cluster, Running, by_rank

MPI_LAB = LabSpec(hosts=3)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]
LOCK = "ipexctl-host-lock waits-"
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


def locks(cluster: Cluster) -> list[str]:
    return processes_with(cluster.lab, LOCK)


def stopped_while_it_holds_the_hosts(cluster: Cluster) -> Running:
    running = cluster.begin("--ppn", "1", "--exclusive", "waits.py")
    wait_until(lambda: len({each.partition(":")[0] for each in locks(cluster)}) == 3, 40, running.said)
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


def test_of_exclusive_calls_at_the_same_moment_one_starts_and_another_call_names_its_cores(cluster: Cluster) -> None:
    """Two of one account, and one of another, which wants node1 only."""
    calls = [cluster.begin(*words, "--exclusive", "waits.py") for words in (("--ppn", "1"), ("--ppn", "1"), AS_ROOT)]
    wait_until(lambda: sum(each.process.poll() is None for each in calls) == 1, 60, lambda: [c.said() for c in calls])
    *losers, winner = sorted(calls, key=lambda each: each.process.poll() is None)
    of_root = winner is calls[2]
    winner.wait_for("here", times=1 if of_root else 3)
    for loser in losers:
        assert loser.end() == 1, loser.said()
        # It may be the third call, which was starting when this one looked, and has lost, too.
        assert re.search(r"run waits-\d+-\d+-\w+ of (ipex|root) is (starting|running) on node", loser.said())
    beside = cluster.run("--ppn", "1", "short.py")
    account, hosts = ("root", "node1") if of_root else ("ipex", "node[1-3]")
    assert f"run {winner.id} of {account} is running on {hosts}" in beside.err
    assert "shares core" in beside.err
    wait_until(lambda: not locks(cluster), 30, lambda: locks(cluster))
    winner.process.send_signal(signal.SIGTERM)
    winner.end(60)


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
    wait_until(lambda: not locks(cluster), 30, lambda: locks(cluster))
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
    assert locks(cluster) == []
