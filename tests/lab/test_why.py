"""`ipexctl why` on real SSH hosts with a real Intel MPI: what is said of a run is what was done to it."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from ipexctl.lab import LabSpec
from lab_run_helpers import new_cluster
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


def asked(cluster: Cluster) -> dict[str, Any]:
    ran = cluster.call("why", "last", "--json")
    assert ran.rc == 0, ran.err + ran.out
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
