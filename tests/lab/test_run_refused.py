"""Calls of run that are refused on real hosts: one message with the host and the next command; and runs of others."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from agent_helpers import wait_until
from ipexctl.addons.lab.faults import break_host
from ipexctl.addons.lab.lab_plan import LabSpec
from lab_run_helpers import REPORT_SCRIPT, WAIT_SCRIPT, Cluster, by_rank, rank_reports
from message_data import missing

MPI_LAB = LabSpec(hosts=3)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]


@pytest.fixture
def cluster(cluster: Cluster) -> Cluster:
    cluster.write("who.py", REPORT_SCRIPT)
    return cluster


def test_unreachable_host_prevents_the_run(cluster: Cluster) -> None:
    break_host(cluster.lab.hosts[2], "sshd-dead")
    said = cluster.refused("who.py", rc=3)
    assert missing(said, "node3 22") == []
    assert "-l '!node3'" in said
    assert len(rank_reports(cluster.run("--ppn", "1", "-l", "!node3", "who.py"))) == 2


def test_missing_environment_is_reported_with_its_host(cluster: Cluster) -> None:
    cluster.on(1, "mv .ipexctl/envs .ipexctl/envs.away")
    try:
        said = cluster.refused("who.py", rc=2)
    finally:
        cluster.on(1, "mv .ipexctl/envs.away .ipexctl/envs")
    assert missing(said, "default node2") == []
    assert "ipexctl run --install" in said


@pytest.mark.parametrize(
    ("at", "words"),
    [(0, "node[2-3] node1 {}"), (1, "node1 node2 {}")],
)
def test_firewall_between_nodes_is_reported_without_a_hang(cluster: Cluster, at: int, words: str) -> None:
    break_host(cluster.lab.hosts[at], "firewall")
    began = time.monotonic()
    said = cluster.refused("--ppn", "1", "who.py")
    assert time.monotonic() - began < 60
    assert missing(said, words.format(cluster.lab.hosts[at].address)) == []


def test_interface_names_can_differ_between_hosts(cluster: Cluster) -> None:
    def rename(old: str, new: str) -> None:
        down = f"ip link set {old} down; ip link set {old} name {new}; ip link set {new} up"
        assert cluster.as_root(1, down) == ""

    rename("eth0", "ens7")
    try:
        said = rank_reports(cluster.run("--ppn", "1", "who.py"))
    finally:
        rename("ens7", "eth0")
    assert [said[rank]["env"]["GLOO_SOCKET_IFNAME"] for rank in range(3)] == ["eth0", "ens7", "eth0"]


AS_ROOT = ("--user", "root", "--python", "/usr/bin/python3", "-n", "1")


def started(cluster: Cluster) -> str:
    run = cluster.run("--detach", "--ppn", "1", "waits.py").out.strip()
    cluster.wait_until(run, "running", 60)
    return run


def test_a_run_of_another_account_is_named_refused_and_waited_for(cluster: Cluster) -> None:
    cluster.write("waits.py", WAIT_SCRIPT)
    cluster.write("short.py", "print('done')\n")
    run = started(cluster)
    planned = json.loads(cluster.run(*AS_ROOT, "--dry-run", "--json", "waits.py").out)
    (other,) = planned["other_runs"]
    assert (other["id"], other["account"], other["state"], other["hosts"]) == (run, "ipex", "running", ["node1"])
    assert other["cores"] == other["shared_cores"] != {}

    summary = cluster.project.parent / "summary.json"
    refused = cluster.run(*AS_ROOT, "--exclusive", "--summary", summary, "waits.py", rc=3)
    assert run in refused.err
    assert "ipex" in refused.err
    assert [each["id"] for each in json.loads(summary.read_text())["call"]["other_runs"]] == [run]

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


def test_calls_of_two_accounts_wait_in_their_order_and_everybody_sees_it(cluster: Cluster) -> None:
    """An account that keeps the lock of a queue only delays the others, and a killed call has no place."""
    cluster.write("waits.py", WAIT_SCRIPT)
    cluster.write("short.py", "print('done')\n")
    run = cluster.run("--detach", "--ppn", "1", "--time-limit", "900", "waits.py", "--token", "s3cret").out.strip()
    cluster.wait_until(run, "running", 60)
    keeper = cluster.as_root(0, "setsid flock /proc/sys sleep 60 >/dev/null 2>&1 </dev/null & echo kept")
    assert keeper == "kept\n"

    def now(*options: object, rc: int = 0) -> tuple[dict[str, Any], str]:
        seen = cluster.call("ps", "-H", cluster.lab.hostfile, "--json", *options)
        assert seen.rc == rc, seen.err
        return json.loads(seen.out), seen.err + seen.out

    calls, ids = [], list[str]()
    for options in (
        (*AS_ROOT, "--wait", "100", "-l", "node1"),
        ("--ppn", "1", "--wait", "90", "-l", "node1,node2"),
        (*AS_ROOT, "--wait", "80", "-l", "node2"),
        ("--ppn", "1", "--wait", "70", "-l", "node2"),
    ):
        calls.append(cluster.begin(*options, "short.py"))
        calls[-1].wait_for(f"run {run} of ipex")
        wait_until(lambda: len(now()[0]["waiting"]) == len(calls), 30)
        ids.append(now()[0]["waiting"][-1]["id"])
    document, text = now("--user", "root")
    (alive,) = document["runs"]
    assert (alive["id"], alive["account"], alive["script"], alive["rank_count"]) == (run, "ipex", "waits.py", 3)
    assert alive["hosts"] == list(alive["cores"]) == ["node1", "node2", "node3"]
    assert 890 < alive["until"] - alive["started"] < 930
    assert [(call["id"], call["account"]) for call in document["waiting"]] == [
        (name, account) for name, account in zip(ids, ("root", "ipex") * 2, strict=True)
    ]
    assert "s3cret" not in text
    assert f"run {ids[0]} of root waits for node1" in calls[1].said()
    calls[2].process.kill()
    wait_until(lambda: [call["id"] for call in now()[0]["waiting"]] == [ids[0], ids[1], ids[3]], 10)

    cluster.good("stop", run)
    for call in (calls[0], calls[1], calls[3]):
        assert call.end(100) == 0, call.said()
    started = {row["id"]: row["started"] for row in cluster.runs()}
    assert started[ids[0]] < started[ids[1]] < started[ids[3]]


def test_ps_of_hosts_has_other_programs_and_says_what_it_does_not_see(cluster: Cluster) -> None:
    burn = "setsid timeout 60 sh -c 'while :; do :; done' s3cret >/dev/null 2>&1 </dev/null & echo on"
    assert cluster.as_root(0, burn) == "on\n"
    break_host(cluster.lab.hosts[2], "sshd-dead")
    cluster.as_root(1, "mount -o remount,hidepid=2 /proc")
    try:
        wait_until(lambda: "sh" in cluster.call("ps", "-H", cluster.lab.hostfile).out, 30)
        seen = cluster.call("ps", "-H", cluster.lab.hostfile, "--json")
    finally:
        cluster.as_root(1, "mount -o remount,hidepid=0 /proc")
    assert seen.rc == 3
    document = json.loads(seen.out)
    assert [host["status"] for host in document["hosts"]] == ["ok", "ok", "unreachable"]
    assert [(each["name"], each["account"], each["hosts"]) for each in document["programs"]] == [
        ("sh", "root", ["node1"])
    ]
    assert (document["hiding"], document["free"]) == (["node2"], [])
    assert "s3cret" not in seen.out + seen.err
    assert missing(seen.err, "node2 hidepid node3") == []
