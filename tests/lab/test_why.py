"""`ipexctl why` on real SSH hosts with a real Intel MPI: the reported cause is the real one."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ipexctl.extras.lab.plan import LabSpec
from ipexctl.extras.lab.state import LabHost
from ipexctl.extras.lab.system import in_namespaces
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


@contextlib.contextmanager
def limited_memory(host: LabHost, size: int) -> Iterator[None]:
    """All processes of the host are in one cgroup of version 1, which the host itself does not show."""
    top = Path("/sys/fs/cgroup/memory")
    group = top / f"ipexctl-{host.netns}"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("no memory cgroup of version 1 here that we may write to")

    def move(place: Path) -> None:
        for pid in in_namespaces([host.netns])[host.netns]:
            with contextlib.suppress(OSError):
                (place / "cgroup.procs").write_text(str(pid))

    try:
        move(group)
        (group / "memory.limit_in_bytes").write_text(str(size))
        yield
    finally:
        (group / "memory.limit_in_bytes").write_text("-1")
        move(top)
        group.rmdir()


def test_kill_for_lack_of_memory_is_known_on_a_host_that_shows_neither_cgroups_nor_its_log(cluster: Cluster) -> None:
    assert cluster.on(1, "dmesg >/dev/null 2>&1 && echo shown || true") == ""
    assert " - cgroup " not in cluster.on(1, "cat /proc/self/mountinfo")
    grows = "if os.environ['RANK'] == '1': held = [b'x' * (1 << 20) for _ in range(3000)]\n"
    with limited_memory(cluster.lab.hosts[1], 900 << 20):
        said = fail(cluster, BARRIER_LINES + grows, rc=137)
    first = said["first_failure"]
    assert (first["kind"], first["rank"], first["host"], first["oom"]) == ("oom", 1, "node2", True)
    assert 600 << 20 < first["memory"] < 920 << 20
    assert (said["cause"]["id"], said["cause"]["confidence"]) == ("memory.oom", "likely")
    assert missing(said["cause"]["sentence"], "rank 1 node2 memory MB") == []
    assert "dmesg" not in json.dumps(said)
