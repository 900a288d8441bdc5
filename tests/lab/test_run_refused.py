"""Calls of run that are refused on real hosts: one message with the host and the next command."""

from __future__ import annotations

import re
import shutil
import time

import pytest

from ipexctl.extras.lab.fault_injection import break_host
from ipexctl.extras.lab.plan import LabSpec
from lab_run_helpers import REPORT_SCRIPT, Cluster, by_rank, rank_reports
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
        said = cluster.refused("who.py")
    finally:
        cluster.on(1, "mv .ipexctl/envs.away .ipexctl/envs")
    assert missing(said, "default node2") == []
    assert "ipexctl install" in said


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


def test_missing_module_is_reported_with_node_and_line(cluster: Cluster) -> None:
    place = ".ipexctl/envs/default/lib/python3.11/site-packages"
    for index in (0, 2):
        cluster.on(index, f"echo 'NAME = 1' >{place}/only_there.py")
    cluster.write("train.py", "import os\n\nimport only_there\nprint('it began')\n")
    said = cluster.refused("--ppn", "1", "train.py")
    assert missing(said, "node2 only_there train.py 3") == []
    assert re.search(r" ipexctl install -H \S+ --with only_there$", said, re.MULTILINE)
    assert missing(cluster.refused("--ppn", "1", "-l", "node2", "train.py"), "node2 only_there") == []
    cluster.write("pkg/__main__.py", "import only_there\nprint('it began')\n")
    assert missing(cluster.refused("--ppn", "1", "-m", "pkg"), "pkg/__main__.py 1") == []
    assert missing(cluster.refused("--ppn", "1", "-m", "nowhere.at_all"), "node[1-3] nowhere -m") == []
    for words in (["train.py"], ["-m", "pkg"]):
        assert sorted(by_rank(cluster.run("--ppn", "1", "-l", "!node2", *words).out)) == [0, 1]


def test_damaged_environment_is_repaired_by_the_printed_line(cluster: Cluster) -> None:
    cluster.on(1, "rm .ipexctl/envs/default/lib/python3.11/site-packages/numpy.py")
    cluster.write("train.py", "import numpy\nprint(numpy.__name__)\n")
    said = cluster.refused("--ppn", "1", "train.py")
    assert missing(said, "node2 numpy train.py 1") == []
    printed = re.search(r": ipexctl (install -H \S+)$", said, re.MULTILINE)
    assert printed, said
    cluster.good(*printed[1].split())
    assert by_rank(cluster.run("--ppn", "1", "train.py").out) == {rank: ["numpy"] for rank in range(3)}


@pytest.mark.parametrize(("words", "code"), [(["nosuchcommand"], 127), (["/etc/passwd"], 126)])
def test_command_that_cannot_start_has_the_exit_code_of_a_shell(cluster: Cluster, words: list[str], code: int) -> None:
    ran = cluster.run("--ppn", "1", "--", *words, rc=code)
    assert re.search(rf"^rank \d, stderr: node\d: {words[0]}: ", ran.err, re.MULTILINE), ran.err
    assert by_rank(ran.err) == {}, "it is we who say it, and not a rank"


def test_data_directories_are_not_uploaded_and_must_exist(cluster: Cluster) -> None:
    cluster.write("data/train.bin", "1\n")
    cluster.write("sent/train.bin", "3\n")
    cluster.write("reads.py", "print(open('data/train.bin').read())\n")
    said = cluster.refused("--ppn", "1", "--data", "data", "reads.py")
    found = re.search(r"--data (\S+/data) .*node\[1-3\]", said)
    assert found, said
    for index in range(3):
        cluster.on(index, f"mkdir {found[1]} && echo 2 >{found[1]}/train.bin")
    assert by_rank(cluster.run("--ppn", "1", "--data", "data", "reads.py").out) == {
        rank: ["2", ""] for rank in range(3)
    }
    cluster.write("reads.py", "print(open('sent/train.bin').read())\n")
    shutil.rmtree(cluster.project / "sent")
    assert by_rank(cluster.run("--ppn", "1", "--data", "sent", "reads.py").out) == {
        rank: ["3", ""] for rank in range(3)
    }, "what a sync sent is not deleted"


def test_host_without_job_file_prevents_the_run(cluster: Cluster) -> None:
    cluster.on(1, "mkdir -p .ipexctl/runs && mv .ipexctl/runs .ipexctl/runs.away && touch .ipexctl/runs")
    before = cluster.on(0, "ls .ipexctl/runs")
    try:
        said = cluster.refused("--ppn", "1", "who.py")
    finally:
        cluster.on(1, "rm .ipexctl/runs && mv .ipexctl/runs.away .ipexctl/runs")
    assert "node2: " in said
    assert cluster.on(0, "ls .ipexctl/runs") == before
