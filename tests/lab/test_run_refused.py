"""Calls of run that are refused on real hosts: one message with the host and the next command."""

from __future__ import annotations

import re
import shutil
import time

import pytest

from ipexctl.extras.lab.labs import LabSpec, break_host, mend_host
from lab_run_helpers import REPORT_SCRIPT, Cluster, by_rank, rank_reports
from message_data import missing

MPI_LAB = LabSpec(hosts=3)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]


@pytest.fixture
def cluster(cluster: Cluster) -> Cluster:
    cluster.write("who.py", REPORT_SCRIPT)
    return cluster


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
def test_impossible_options_are_refused_before_upload(cluster: Cluster, words: list[str], said: str, rc: int) -> None:
    assert missing(cluster.refused(*words, rc=rc), said) == []
    assert cluster.project.name not in cluster.on(0, "ls .ipexctl/code 2>/dev/null; true").split()


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


def test_different_environments_are_reported_with_their_hosts(cluster: Cluster) -> None:
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
def test_missing_logins_from_node0_are_reported_with_trust_as_fix(cluster: Cluster) -> None:
    cluster.on(0, "mv .ipexctl/ssh .ipexctl/ssh.away")
    try:
        said = cluster.refused("--ppn", "1", "--launcher", "mpirun", "who.py")
    finally:
        cluster.on(0, "mv .ipexctl/ssh.away .ipexctl/ssh")
    assert missing(said, "node1 node[2-3]") == []
    assert "ipexctl trust" in said


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
def test_files_python_cannot_run_are_refused_before_upload(
    cluster: Cluster, name: str, text: str | bytes, said: str
) -> None:
    cluster.write(name, text)
    assert said in cluster.refused("--ppn", "1", name, rc=2)
    assert cluster.project.name not in cluster.on(0, "ls .ipexctl/code 2>/dev/null; true").split()


@pytest.mark.core
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
    printed = re.search(r": ipexctl (install -H \S+ --stack torch)$", said, re.MULTILINE)
    assert printed, said
    cluster.good(*printed[1].split())
    assert by_rank(cluster.run("--ppn", "1", "train.py").out) == {rank: ["numpy"] for rank in range(3)}


def test_module_of_a_directory_above_is_named_with_the_line_to_type(cluster: Cluster) -> None:
    cluster.write("pkg/train.py", "print('trained')\n")
    cluster.write("ipexctl.toml", "")
    below = cluster.write("sub/README", "").parent
    said = Cluster(cluster.lab, below, cluster.state).refused("--ppn", "1", "-m", "pkg.train")
    printed = re.search(r"cd (\S+) && ipexctl (run .* -m pkg\.train)$", said, re.MULTILINE)
    assert printed, said
    assert printed[1] == str(cluster.project)
    assert sorted(by_rank(cluster.call(*printed[2].split()).out)) == [0, 1, 2]


def test_possibly_missing_module_is_a_warning(cluster: Cluster) -> None:
    cluster.write("lib/only_here.py", "NAME = 'found'\n")
    cluster.write("train.py", "import only_here\nprint(only_here.NAME)\n")
    assert missing(cluster.refused("--ppn", "1", "train.py"), "node[1-3] only_here") == []
    ran = cluster.run("--ppn", "1", "-x", "PYTHONPATH=lib", "train.py")
    assert by_rank(ran.out) == {rank: ["found"] for rank in range(3)}
    assert missing(ran.err, "only_here PYTHONPATH") == []
    cluster.write("train.py", "import sys\nsys.path.append('lib')\nimport only_here\nprint(only_here.NAME)\n")
    assert missing(cluster.run("--ppn", "1", "train.py").err, "only_here 2") == []


@pytest.mark.parametrize(("words", "code"), [(["nosuchcommand"], 127), (["/etc/passwd"], 126)])
def test_command_that_cannot_start_has_the_exit_code_of_a_shell(cluster: Cluster, words: list[str], code: int) -> None:
    ran = cluster.run("--ppn", "1", "--", *words, rc=code)
    assert re.search(rf"^rank \d, stderr: node\d: {words[0]}: ", ran.err, re.MULTILINE), ran.err
    assert by_rank(ran.err) == {}, "it is we who say it, and not a rank"


def test_argument_that_the_control_machine_alone_has_is_named_before_the_start(cluster: Cluster) -> None:
    data = cluster.write("../set of data/train.bin", "1\n").parent.resolve()
    note = f"ipexctl push -H {cluster.lab.hostfile} '{data}' '{data}'"
    ran = cluster.run("--ppn", "1", "who.py", "--data", data, "--more", "../set of data")
    assert note in ran.err
    assert re.search(rf"push -H \S+ '{data}' '/\S+/set of data'; then: '/\S+/set of data' in its place", ran.err)
    assert len(rank_reports(ran)) == 3
    assert note in cluster.run("--ppn", "1", "--dry-run", "who.py", f"--data={data}").err
    assert note not in cluster.run("--ppn", "1", "--dry-run", "who.py", "--output_dir", data).err
    cluster.on(1, f"mkdir -p '{data}'")
    assert note not in cluster.run("--ppn", "1", "--dry-run", "who.py", "--data", data).err


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


def test_full_and_read_only_disks_are_reported(cluster: Cluster) -> None:
    break_host(cluster.lab.hosts[1], "full-disk")
    said = cluster.refused("--ppn", "1", "who.py")
    assert "node2: " in said
    assert "the disk is full" in said
    mend_host(cluster.lab.hosts[1])
    break_host(cluster.lab.hosts[0], "read-only-home")
    assert "node1: " in (said := cluster.refused("--ppn", "1", "who.py"))
    assert "read-only" in said


def test_host_without_job_file_prevents_the_run(cluster: Cluster) -> None:
    cluster.on(1, "mkdir -p .ipexctl/runs && mv .ipexctl/runs .ipexctl/runs.away && touch .ipexctl/runs")
    before = cluster.on(0, "ls .ipexctl/runs")
    try:
        said = cluster.refused("--ppn", "1", "who.py")
    finally:
        cluster.on(1, "rm .ipexctl/runs && mv .ipexctl/runs.away .ipexctl/runs")
    assert "node2: " in said
    assert cluster.on(0, "ls .ipexctl/runs") == before


def test_output_of_login_shells_is_ignored(cluster: Cluster) -> None:
    for host in cluster.lab.hosts:
        break_host(host, "noisy-rc")
    ran = cluster.run("--ppn", "1", "who.py")
    assert sorted(rank_reports(ran)) == [0, 1, 2]
