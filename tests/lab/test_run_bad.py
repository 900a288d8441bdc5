"""Calls of run that are refused on real hosts: one message with the host and the next command."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ipexctl.lab import Lab, LabSpec, break_host, mend_host
from lab_run_helpers import WHO, Cluster, by_rank, new_cluster, said_by
from message_data import missing

MPI_LAB = LabSpec(hosts=3, name=f"runlab-{os.getpid()}")
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]


@pytest.fixture
def cluster(lab: Lab, tmp_path: Path) -> Iterator[Cluster]:
    cluster = new_cluster(lab, tmp_path)
    cluster.write("who.py", WHO)
    yield cluster
    for host in lab.hosts:
        mend_host(host)


@pytest.mark.parametrize(
    ("words", "said", "rc"),
    [
        (["--env", "other", "who.py"], "other node[1-3]", 1),
        (["--mpi", "/nonexistent", "who.py"], "--mpi /nonexistent node[1-3]", 1),
        (["--mpi", "/bin/true", "who.py"], "--mpi /bin/true MPICH", 1),
        (["--python", "/no/python", "who.py"], "--python /no/python node[1-3]", 1),
        (["--python", "/etc/passwd", "who.py"], "--python /etc/passwd node[1-3]", 1),
        (["--setup", "/no/setup", "who.py"], "--setup /no/setup node[1-3]", 1),
        (["--data", "/no/data", "who.py"], "--data /no/data node[1-3]", 1),
        (["--iface", "eth7", "who.py"], "node[1-3] --iface eth7", 1),
        (["--backend", "ccl", "who.py"], "oneCCL", 1),
        (["--ppn", "1", "--ranks", "7", "who.py"], "--ranks 7", 2),
        (["-n", "9", "--ppn", "2", "who.py"], "-n 9 --ppn 2 5 3", 2),
        (["--no-sync", "who.py"], "who.py node[1-3]", 1),
    ],
)
def test_what_the_hosts_cannot_do_is_refused_with_nothing_copied(
    cluster: Cluster, words: list[str], said: str, rc: int
) -> None:
    assert missing(cluster.refused(*words, rc=rc), said) == []
    assert cluster.project.name not in cluster.on(0, "ls .ipexctl/code 2>/dev/null; true").split()


def test_a_host_that_cannot_be_reached_keeps_all_from_beginning(cluster: Cluster) -> None:
    break_host(cluster.lab.hosts[2], "sshd-dead")
    said = cluster.refused("who.py", rc=3)
    assert missing(said, "node3 22") == []
    assert "-l '!node3'" in said
    assert len(said_by(cluster.run("--ppn", "1", "-l", "!node3", "who.py"))) == 2


def test_an_environment_that_one_host_lacks_names_it(cluster: Cluster) -> None:
    cluster.on(1, "mv .ipexctl/envs .ipexctl/envs.away")
    try:
        said = cluster.refused("who.py")
    finally:
        cluster.on(1, "mv .ipexctl/envs.away .ipexctl/envs")
    assert missing(said, "default node2") == []
    assert "ipexctl install" in said


def test_environments_that_differ_name_both(cluster: Cluster) -> None:
    other = "name=$(readlink .ipexctl/envs/default); cd .ipexctl/envs; mv $name torch-2.13-0000; "
    other += "sed -i s/$name/torch-2.13-0000/ torch-2.13-0000/env.json; ln -sfn torch-2.13-0000 default; echo $name"
    name = cluster.on(2, other).strip()
    back = f"cd .ipexctl/envs; mv torch-2.13-0000 {name}; sed -i s/torch-2.13-0000/{name}/ {name}/env.json"
    try:
        said = cluster.refused("who.py")
    finally:
        cluster.on(2, f"{back}; ln -sfn {name} default")
    assert missing(said, f"default {name} node1 torch-2.13-0000 node3") == []
    assert "ipexctl install" in said


@pytest.mark.core
def test_without_a_way_from_node0_it_says_trust(cluster: Cluster) -> None:
    cluster.on(0, "mv .ipexctl/ssh .ipexctl/ssh.away")
    try:
        said = cluster.refused("--ppn", "1", "who.py")
    finally:
        cluster.on(0, "mv .ipexctl/ssh.away .ipexctl/ssh")
    assert missing(said, "node1 node[2-3]") == []
    assert "ipexctl trust" in said


@pytest.mark.parametrize(
    ("at", "words"),
    [(0, "node[2-3] node1 {}"), (1, "node1 node2 {}")],
)
def test_a_firewall_between_nodes_is_named_before_anything_hangs(cluster: Cluster, at: int, words: str) -> None:
    break_host(cluster.lab.hosts[at], "firewall")
    began = time.monotonic()
    said = cluster.refused("--ppn", "1", "who.py")
    assert time.monotonic() - began < 60
    assert missing(said, words.format(cluster.lab.hosts[at].address)) == []


def test_interfaces_may_be_called_otherwise_on_each_host(cluster: Cluster) -> None:
    def rename(old: str, new: str) -> None:
        down = f"ip link set {old} down; ip link set {old} name {new}; ip link set {new} up"
        assert cluster.as_root(1, down) == ""

    rename("eth0", "ens7")
    try:
        said = said_by(cluster.run("--ppn", "1", "who.py"))
    finally:
        rename("ens7", "eth0")
    assert [said[rank]["env"]["GLOO_SOCKET_IFNAME"] for rank in range(3)] == ["eth0", "ens7", "eth0"]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("bad.py", "x = 1\ndef f(:\n", "bad.py:2: invalid syntax\n  def f(:\n        ^\n"),
        ("old.py", "print 'so'\n", "old.py:1: SyntaxError: "),
        ("prog", b"\x7fELF\x02\x01\0", "-- ./prog"),
        ("go.sh", "#!/bin/sh\nls\n", "-- sh ./go.sh"),
        ("notes.ipynb", "{}", "notes.ipynb"),
    ],
)
def test_a_script_python_cannot_run_is_refused_and_nothing_copied(
    cluster: Cluster, name: str, text: str | bytes, said: str
) -> None:
    cluster.write(name, text)
    assert said in cluster.refused("--ppn", "1", name, rc=2)
    assert cluster.project.name not in cluster.on(0, "ls .ipexctl/code 2>/dev/null; true").split()


@pytest.mark.core
def test_a_module_that_one_node_lacks_is_named_with_that_node_and_the_line(cluster: Cluster) -> None:
    place = ".ipexctl/envs/default/lib/python3.11/site-packages"
    for index in (0, 2):
        cluster.on(index, f"echo 'NAME = 1' >{place}/only_there.py")
    cluster.write("train.py", "import os\n\nimport only_there\nprint('it began')\n")
    said = cluster.refused("--ppn", "1", "train.py")
    assert missing(said, "node2 only_there train.py 3") == []
    assert re.search(r" ipexctl install -H \S+ --stack torch --with only_there$", said, re.MULTILINE)
    assert missing(cluster.refused("--ppn", "1", "-l", "node2", "train.py"), "node2 only_there") == []
    cluster.write("pkg/__main__.py", "import only_there\nprint('it began')\n")
    assert missing(cluster.refused("--ppn", "1", "-m", "pkg"), "pkg/__main__.py 1") == []
    assert missing(cluster.refused("--ppn", "1", "-m", "nowhere.at_all"), "node[1-3] nowhere -m") == []
    for words in (["train.py"], ["-m", "pkg"]):
        assert sorted(by_rank(cluster.run("--ppn", "1", "-l", "!node2", *words).out)) == [0, 1]


def test_a_module_that_may_be_found_all_the_same_is_said_and_the_run_begins(cluster: Cluster) -> None:
    cluster.write("lib/only_here.py", "NAME = 'found'\n")
    cluster.write("train.py", "import only_here\nprint(only_here.NAME)\n")
    assert missing(cluster.refused("--ppn", "1", "train.py"), "node[1-3] only_here") == []
    ran = cluster.run("--ppn", "1", "-x", "PYTHONPATH=lib", "train.py")
    assert by_rank(ran.out) == {rank: ["found"] for rank in range(3)}
    assert missing(ran.err, "only_here PYTHONPATH") == []
    cluster.write("train.py", "import sys\nsys.path.append('lib')\nimport only_here\nprint(only_here.NAME)\n")
    assert missing(cluster.run("--ppn", "1", "train.py").err, "only_here 2") == []


@pytest.mark.parametrize(("words", "code"), [(["nosuchcommand"], 127), (["/etc/passwd"], 126)])
def test_a_command_that_cannot_run_ends_as_in_a_shell(cluster: Cluster, words: list[str], code: int) -> None:
    ran = cluster.run("--ppn", "1", "--", *words, rc=code)
    assert re.search(rf"^rank \d, stderr: node\d: {words[0]}: ", ran.err, re.MULTILINE), ran.err
    assert by_rank(ran.err) == {}, "it is we who say it, and not a rank"


def test_data_of_the_project_is_not_brought_and_has_to_be_there(cluster: Cluster) -> None:
    cluster.write("data/train.bin", "1\n")
    cluster.write("reads.py", "print(open('data/train.bin').read())\n")
    said = cluster.refused("--ppn", "1", "--data", "data", "reads.py")
    found = re.search(r"--data (\S+/data) .*node\[1-3\]", said)
    assert found, said
    for index in range(3):
        cluster.on(index, f"mkdir {found[1]} && echo 2 >{found[1]}/train.bin")
    assert by_rank(cluster.run("--ppn", "1", "--data", "data", "reads.py").out) == {
        rank: ["2", ""] for rank in range(3)
    }


def test_a_full_disk_and_one_that_cannot_be_written_are_named(cluster: Cluster) -> None:
    break_host(cluster.lab.hosts[1], "full-disk")
    said = cluster.refused("--ppn", "1", "who.py")
    assert "node2: " in said
    assert "the disk is full" in said
    mend_host(cluster.lab.hosts[1])
    break_host(cluster.lab.hosts[0], "read-only-home")
    assert "node1: " in (said := cluster.refused("--ppn", "1", "who.py"))
    assert "read-only" in said


def test_a_host_that_cannot_take_its_job_file_keeps_the_run_from_starting_anywhere(cluster: Cluster) -> None:
    cluster.on(1, "mkdir -p .ipexctl/runs && mv .ipexctl/runs .ipexctl/runs.away && touch .ipexctl/runs")
    before = cluster.on(0, "ls .ipexctl/runs")
    try:
        said = cluster.refused("--ppn", "1", "who.py")
    finally:
        cluster.on(1, "rm .ipexctl/runs && mv .ipexctl/runs.away .ipexctl/runs")
    assert "node2: " in said
    assert cluster.on(0, "ls .ipexctl/runs") == before


def test_logins_that_talk_spoil_nothing(cluster: Cluster) -> None:
    for host in cluster.lab.hosts:
        break_host(host, "noisy-rc")
    ran = cluster.run("--ppn", "1", "who.py")
    assert sorted(said_by(ran)) == [0, 1, 2]
