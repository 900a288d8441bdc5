"""`ipexctl why` on real SSH hosts with a real Intel MPI: what is said of a run is what was done to it."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from ipexctl.lab import LabSpec, break_host, mend_host
from lab_run_helpers import WAITS, new_cluster
from message_data import missing

if TYPE_CHECKING:
    from pathlib import Path

    from ipexctl.lab import Lab
    from lab_run_helpers import Cluster

MPI_LAB = LabSpec(hosts=3, name=f"runlab-{os.getpid()}")
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

BEGINS = """\
import os, socket, sys, time
print("rank", os.environ["RANK"], "begins", flush=True)
"""
ENDS = "time.sleep(300)\n"
MEET = """\
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
TOGETHER = MEET + "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
"""Goes on when all three ranks have begun, and for a moment also when it is told to end."""
BIN = ".ipexctl/envs/default/bin"


@pytest.fixture
def cluster(lab: Lab, tmp_path: Path) -> Cluster:
    return new_cluster(lab, tmp_path)


def fail(cluster: Cluster, body: str, *options: str, rc: int) -> dict[str, Any]:
    """Run that on every rank until it fails; returns what why says of it, as JSON."""
    cluster.write("train.py", BEGINS + body + ENDS)
    ran = cluster.run("--plain", *options, "train.py", rc=rc)
    assert "ipexctl why train-" in ran.err
    said = asked(cluster)
    if said["cause"]:
        assert f"{said['cause']['confidence']} cause: {said['cause']['sentence']}" in ran.err
    return said


def asked(cluster: Cluster, run: str = "last", rc: int = 0) -> dict[str, Any]:
    ran = cluster.call("why", run, "--json")
    assert ran.rc == rc, ran.err + ran.out
    said: dict[str, Any] = json.loads(ran.out)
    assert said["schema"] == "ipexctl.why/1"
    return said


@pytest.mark.core
def test_a_rank_that_raises_is_named_with_its_last_words(cluster: Cluster) -> None:
    raises = "if os.environ['RANK'] == '1': raise ValueError('the \\x1b[31mloss\\x1b[0m is gone \\udcff')\n"
    said = fail(cluster, MEET + raises, rc=1)
    assert {"rank": 1, "host": "node2", "exit_code": 1, "signal": None}.items() <= said["first_failure"].items()
    assert said["cause"]["id"] == "script.raised"
    line = (BEGINS + MEET).count("\n") + 1
    assert missing(said["cause"]["sentence"], f"train.py {line}") == []
    assert {"stream": "stdout", "text": "rank 1 begins"} in said["lines"]
    assert said["lines"][-1]["text"].startswith("ValueError: the loss is gone")
    assert [each["ranks"] for each in said["others"]] == [[0, 2]]
    text = cluster.call("why", "last")
    assert missing(text.out.splitlines()[0], f"{said['run']['id']} 1 node2") == []
    assert "\x1b" not in text.out
    assert text.err == ""


def test_a_module_that_one_node_lacks_is_told_from_one_that_all_lack(cluster: Cluster) -> None:
    node3 = "if socket.gethostname() == 'node3': "
    late = node3 + "__import__('frobnicate')  # where nobody sees it before it runs\n"
    said = fail(cluster, late, rc=1)
    assert said["cause"]["id"] == "script.no_module"
    assert missing(said["cause"]["sentence"], "node3 frobnicate") == []
    assert "import frobnicate" in said["cause"]["fix"]
    said = fail(cluster, TOGETHER + late.removeprefix(node3), rc=1)
    assert missing(said["cause"]["sentence"], "frobnicate node3") == ["node3"]


def test_who_lost_a_peer_is_not_blamed_for_it(cluster: Cluster) -> None:
    """The others find their connection gone, and say so, while who left it says why."""
    body = """\
if os.environ["RANK"] == "0":
    s = socket.create_server(("0.0.0.0", 29517))
    held = [s.accept()[0] for _ in range(2)]
    time.sleep(0.3)
    raise KeyError("labels")
time.sleep(1)
s = socket.create_connection((os.environ["MASTER_ADDR"], 29517))
if s.recv(1) == b"": raise RuntimeError("[pair.cc:534] Connection closed by peer [10.0.0.1]:29517")
"""
    said = fail(cluster, body, rc=1)
    assert said["cause"]["rank"] == 0
    assert "KeyError: 'labels'" in said["cause"]["sentence"]


def test_an_mpirun_that_could_not_start_a_node_names_it(cluster: Cluster) -> None:
    cluster.write("train.py", BEGINS)
    names = "hydra_bstrap_proxy hydra_pmi_proxy"
    cluster.on(2, f"cd {BIN} && for it in {names}; do mv $it $it.away; done")
    try:
        ran = cluster.run("--plain", "train.py", rc=1)
    finally:
        cluster.on(2, f"cd {BIN} && for it in {names}; do mv $it.away $it; done")
    assert missing(ran.err, "MPI node3") == []
    said = asked(cluster)
    assert said["cause"]["id"] == "mpi.not_there"
    assert {line["stream"] for line in said["lines"]} == {"mpirun"}
    assert any("bstrap_proxy on node3" in line["text"] for line in said["lines"])


def test_a_node0_out_of_reach_leaves_the_copy_of_a_run_that_was_followed(cluster: Cluster) -> None:
    before = fail(cluster, "if os.environ['RANK'] == '1': raise ValueError('gone')\n", rc=1)
    cluster.write("wait.py", WAITS)
    unseen = cluster.run("--detach", "wait.py").out.strip()
    break_host(cluster.lab.hosts[0], "sshd-dead")
    try:
        followed = asked(cluster, before["run"]["id"])
        detached = asked(cluster, unseen, rc=3)
        words = cluster.call("why", unseen)
    finally:
        mend_host(cluster.lab.hosts[0])
    assert followed["cause"]["id"] == "script.raised"
    assert any("copy" in note for note in followed["notes"])
    assert detached["state"] == "unknown"
    assert missing(words.out, f"{unseen} node1") == []
    assert cluster.call("stop", unseen).rc == 0
