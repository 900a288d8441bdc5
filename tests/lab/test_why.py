"""`ipexctl why` on real SSH hosts with a real Intel MPI: the reported cause is the real one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ipexctl.lab import LabSpec
from lab_run_helpers import Cluster
from message_data import missing

MPI_LAB = LabSpec(hosts=3)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

START_LINES = """\
import os, socket, sys, time
print("rank", os.environ["RANK"], "begins", flush=True)
"""
WAIT_LINES = "time.sleep(300)\n"
BARRIER_LINES = """\
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


def fail(cluster: Cluster, body: str, *options: str, rc: int) -> dict[str, Any]:
    """Run this code on every rank until it fails; returns the JSON of why."""
    cluster.write("train.py", START_LINES + body + WAIT_LINES)
    ran = cluster.run("--plain", *options, "train.py", rc=rc)
    assert "ipexctl why train-" in ran.err
    said = asked(cluster)
    if said["cause"]:
        assert f"{said['cause']['confidence']} cause: {said['cause']['sentence']}" in ran.err
    return said


def asked(cluster: Cluster) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(cluster.good("why", "last", "--json"))
    assert said["schema"] == "ipexctl.why/1"
    return said


@pytest.mark.core
def test_rank_with_exception_is_named_with_its_last_lines(cluster: Cluster) -> None:
    raises = "if os.environ['RANK'] == '1': raise ValueError('the \\x1b[31mloss\\x1b[0m is gone \\udcff')\n"
    said = fail(cluster, BARRIER_LINES + raises, rc=1)
    assert {"rank": 1, "host": "node2", "exit_code": 1, "signal": None}.items() <= said["first_failure"].items()
    assert said["cause"]["id"] == "script.raised"
    line = (START_LINES + BARRIER_LINES).count("\n") + 1
    assert missing(said["cause"]["sentence"], f"train.py {line}") == []
    assert {"stream": "stdout", "text": "rank 1 begins"} in said["lines"]
    assert said["lines"][-1]["text"].startswith("ValueError: the loss is gone")
    assert [each["ranks"] for each in said["others"]] == [[0, 2]]
    text = cluster.call("why", "last")
    assert missing(text.out.splitlines()[0], f"{said['run']['id']} 1 node2") == []
    assert "\x1b" not in text.out
    assert text.err == ""
