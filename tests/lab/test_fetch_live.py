"""`fetch --follow` of a run that goes on: its results arrive meanwhile, and TensorBoard reads them."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent_helpers import wait_until
from clean_environment import package_environ
from ipexctl.extras.lab.plan import LabSpec
from lab_run_helpers import Cluster, Running

MPI_LAB = LabSpec(hosts=2)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]
TENSORBOARD = "tensorboard>=2.18,<3"

WRITING = """\
import os, pathlib, sys, time
top = pathlib.Path(os.environ["IPEXCTL_RUN_DIR"])
for number in range(int(sys.argv[1])):
    with (top / "log").open("a") as file:
        print("step", number, file=file)
    (top / "last.part").write_text(f"weights {number}")
    (top / "last.part").rename(top / "last.pt")
    time.sleep(0.1)
"""

REPLAYING = """\
import os, pathlib, struct, sys, time
# The records of an event file: the length, its sum, the bytes, their sum.
data, at = pathlib.Path("recorded").read_bytes(), 0
top = pathlib.Path(os.environ["IPEXCTL_RUN_DIR"]) / "tb"
top.mkdir()
with (top / sys.argv[1]).open("wb") as file:
    while at < len(data):
        size = 12 + struct.unpack_from("<Q", data, at)[0] + 4
        file.write(data[at : at + size])
        file.flush()
        at += size
        time.sleep(float(sys.argv[2]))
"""
"""What a SummaryWriter does in a rank: it needs TensorFlow or torch, which the hosts do not have."""

RECORD = """\
import sys
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
writer = EventFileWriter(sys.argv[1])
for step in range(int(sys.argv[2])):
    value = Summary(value=[Summary.Value(tag="loss", simple_value=1 / (1 + step))])
    writer.add_event(Event(step=step, wall_time=1e9 + step, summary=value))
writer.close()
"""


@pytest.fixture(scope="module")
def tensorboard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment with tensorboard from PyPI; skipped if PyPI cannot be reached."""
    directory = tmp_path_factory.mktemp("tensorboard")
    venv.create(directory)
    argv = [sys.executable, "-m", "pip", "--python", str(directory / "bin/python"), "install", "-q", TENSORBOARD]
    ended = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=250, check=False, env=package_environ()
    )
    if ended.returncode:
        reason = f"{TENSORBOARD} can't be had from PyPI: {ended.stderr.strip().splitlines()[-1:]}"
        (pytest.fail if os.environ.get("IPEXCTL_TESTS_STACK") == "required" else pytest.skip)(reason)
    return directory / "bin"


def follow(cluster: Cluster, *args: object) -> tuple[Running, Path]:
    out = cluster.state / "mirror"
    return cluster.begin_call("fetch", "last", out, "--results", "--follow", *args), out


def test_results_of_all_hosts_arrive_while_the_run_goes_on(cluster: Cluster) -> None:
    cluster.write("writes.py", WRITING)
    run = cluster.run("--ppn", "1", "--detach", "writes.py", "60").out.strip()
    cluster.wait_until(run, "running")
    following, out = follow(cluster, "--json")
    wait_until(lambda: all((out / name / "log").exists() for name in ("node1", "node2")), 20, following.said)
    early = (out / "node1/log").read_text()
    assert early.count("step") < 60
    assert following.end(30) == 0, following.said()
    document = json.loads(following.out.read_text())
    assert {host["host"]: sorted(host["brought"]) for host in document["hosts"]}["node2"] == ["last.pt", "log"]
    for index, name in enumerate(("node1", "node2")):
        results = f".ipexctl/results/{run}"
        assert (out / name / "log").read_text() == cluster.on(index, f"cat {results}/log") != early
        assert (out / name / "last.pt").read_text() == "weights 59"


def test_ctrl_c_leaves_the_run_and_the_same_command_goes_on(cluster: Cluster) -> None:
    cluster.write("writes.py", WRITING)
    run = cluster.run("--ppn", "1", "--detach", "-l", "node1", "writes.py", "250").out.strip()
    cluster.wait_until(run, "running")
    following, out = follow(cluster)
    following.wait_for("Ctrl-C")
    following.process.send_signal(signal.SIGINT)
    assert following.end(20) == 130, following.said()
    assert f"{out}/node1/: 2 files" in following.out.read_text()
    inode = (out / "node1/log").stat().st_ino
    assert cluster.status(run)["state"] == "running"
    again, _ = follow(cluster)
    again.wait_for("Ctrl-C")
    # A connection that breaks, as of a node0 that is away for a moment.
    subprocess.run(
        ["ss", "-K", "dst", cluster.lab.hosts[0].address, "dport", "=", "22"], capture_output=True, check=True
    )
    assert again.end(60) == 0, again.said()
    assert "is reached again" in again.err.read_text()
    assert (out / "node1/log").read_text().splitlines()[-1] == "step 249"
    assert (out / "node1/log").stat().st_ino == inode


def test_full_disk_here_ends_the_call_and_it_goes_on_once_there_is_room(cluster: Cluster) -> None:
    cluster.write("writes.py", WRITING.replace('"step", number', '"step", number, "x" * 50_000'))
    run = cluster.run("--ppn", "1", "--detach", "-l", "node1", "writes.py", "150").out.strip()
    out = cluster.state / "mirror"
    out.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", out], check=True)
    try:
        following, _ = follow(cluster)
        assert following.end(40) == 1, following.said()
        assert "No space left" in following.err.read_text()
        assert cluster.status(run)["state"] in ("running", "ok")
        subprocess.run(["mount", "-o", "remount,size=20m", out], check=True)
        again, _ = follow(cluster)
        assert again.end(60) == 0, again.said()
        content = cluster.on(0, f"sha256sum < .ipexctl/results/{run}/log").split()[0]
        assert hashlib.sha256((out / "node1/log").read_bytes()).hexdigest() == content
    finally:
        subprocess.run(["umount", out], check=True)


@contextmanager
def serving(program: Path, logs: Path, log: Path) -> Iterator[Callable[[], int]]:
    """A TensorBoard; how many points of the curve it shows."""
    with log.open("wb") as output:
        server = subprocess.Popen(
            [program / "tensorboard", "--logdir", logs, "--port", "0", "--reload_interval", "1"],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        wait_until(lambda: "http://" in log.read_text(), 60, log.read_text)
        address = next(word for word in log.read_text().split() if word.startswith("http://")).rstrip("/")

        def points() -> int:
            try:
                curve = f"{address}/data/plugin/scalars/scalars?run=node1%2Ftb&tag=loss"
                with urllib.request.urlopen(curve, timeout=10) as reply:
                    return len(json.load(reply))
            except urllib.error.HTTPError:  # no such curve yet
                return 0

        yield points
    finally:
        server.terminate()
        server.wait(20)


def test_tensorboard_reads_the_curve_while_the_run_goes_on(cluster: Cluster, tensorboard: Path) -> None:
    recorded = cluster.state.parent / "recorded"
    subprocess.run([tensorboard / "python", "-c", RECORD, recorded, "100"], check=True, timeout=60)
    (events,) = recorded.iterdir()
    cluster.write("recorded", events.read_bytes())
    cluster.write("replays.py", REPLAYING)
    run = cluster.run("--ppn", "1", "--detach", "-l", "node1", "replays.py", events.name, "0.35").out.strip()
    following, out = follow(cluster)
    out.mkdir()
    with serving(tensorboard, out, cluster.state / "tensorboard.log") as points:
        seen: set[int] = set()
        until = time.monotonic() + 120
        while following.process.poll() is None and time.monotonic() < until:
            seen.add(points())
            time.sleep(0.5)
        assert following.end(5) == 0, following.said()
        assert len(seen - {0, 100}) >= 2, (run, seen)
        wait_until(lambda: points() == 100, 20, lambda: str(points()))
