"""Following a run on real hosts: lost connections, two followers, and the local copy."""

from __future__ import annotations

import signal
import subprocess
import time

import pytest

from ipexctl.addons.lab.faults import break_host, mend_host
from ipexctl.addons.lab.lab_plan import LabSpec
from lab_run_helpers import Cluster, by_rank

MPI_LAB = LabSpec(hosts=2)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

COUNT_SCRIPT = """\
import sys, time
for number in range(int(sys.argv[1])):
    print("number", number, flush=True)
    print("number", number, file=sys.stderr, flush=True)
    time.sleep(0.03)
"""


@pytest.fixture
def cluster(cluster: Cluster) -> Cluster:
    cluster.write("counts.py", COUNT_SCRIPT)
    return cluster


def test_two_followers_get_every_line_once_after_reconnects(cluster: Cluster) -> None:
    run = cluster.run("--ppn", "2", "--detach", "counts.py", "300").out.strip()
    cluster.wait_until(run, "running")
    watching = [cluster.begin_call("attach", "last") for _ in range(2)]
    for number in (10, 80, 150):
        for each in watching:
            each.wait_for(f"[3] number {number}\n", times=2)
        subprocess.run(["ss", "-K", "dst", cluster.lab.hosts[0].address, "dport", "=", "22"], capture_output=True)
    for each in watching:
        assert each.end(90) == 0, each.err.read_text()
        for stream in (each.out, each.err):
            assert by_rank(stream.read_text()) == {rank: [f"number {n}" for n in range(300)] for rank in range(4)}
        assert "is reached again" in each.err.read_text()
    theirs = cluster.on(0, f"cd .ipexctl/runs/{run}/ranks && sha256sum *")
    place = cluster.state / "ipexctl" / "runs" / run / "ranks"
    ours = subprocess.run("sha256sum *", shell=True, cwd=place, capture_output=True, text=True)
    assert ours.stdout == theirs
    names = [line.split()[1] for line in theirs.splitlines()]
    windows = [name for name in names if name.endswith((".meter", ".host"))]
    assert windows == ["0000.host", "0000.meter", "0001.meter", "0002.host", "0002.meter", "0003.meter"]
    assert len(names) == 8 + len(windows)


def test_wait_survives_a_node0_that_is_away_and_says_what_it_saw(cluster: Cluster) -> None:
    cluster.write("ends.py", "import sys, time\nprint('here', flush=True)\ntime.sleep(25)\nsys.exit(5)\n")
    run = cluster.run("--ppn", "1", "--detach", "-l", "node1", "ends.py").out.strip()
    cluster.wait_until(run, "running")
    waiting, short = cluster.begin_call("wait", run), cluster.begin_call("wait", run, "--timeout", "8")
    time.sleep(3)
    break_host(cluster.lab.hosts[0], "sshd-dead")
    subprocess.run(["ss", "-K", "dst", cluster.lab.hosts[0].address, "dport", "=", "22"], capture_output=True)
    try:
        assert short.end(60) == 3, short.err.read_text()
        new = cluster.call("wait", run, "--timeout", "3")
        assert new.rc == 3, new.err
        assert "may still be running" in new.err
    finally:
        mend_host(cluster.lab.hosts[0])
    assert waiting.end(90) == 5, waiting.err.read_text()
    errors = waiting.err.read_text()
    assert errors.index("may still be running") < errors.index("is reached again") < errors.index("failed")


def test_ctrl_c_with_unreachable_node0_prints_the_stop_command(cluster: Cluster) -> None:
    run = cluster.run("--ppn", "1", "--detach", "counts.py", "100000").out.strip()
    cluster.wait_until(run, "running")
    watching = cluster.begin_call("attach", "last")
    watching.wait_for("number 5\n")
    break_host(cluster.lab.hosts[0], "sshd-dead")
    try:
        assert cluster.status(run)["state"] == "unknown"
        assert cluster.call("attach", run).rc == 3
        watching.process.send_signal(signal.SIGINT)
        code = watching.end()
    finally:
        mend_host(cluster.lab.hosts[0])
    assert code == 130
    assert f"ipexctl stop {run}" in watching.err.read_text()
    assert cluster.call("stop", run).rc == 0
