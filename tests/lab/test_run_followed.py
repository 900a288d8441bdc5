"""Following a run on real hosts: lost connections, two followers, and the local copy."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from functools import partial

import pytest

from agent_helpers import wait_until
from ipexctl.extras.lab.fault_injection import break_host, mend_host
from ipexctl.extras.lab.plan import LabSpec
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


FOLLOWER, STARTER = "run.follow follow", "run.supervisor"
"""In the command line of the program that `attach` and `logs` start on node0; of the one that has started a run."""


def kill_followers(cluster: Cluster, words: str, run: str) -> list[str]:
    """Kill the processes that send the output, and never the supervisor of the run."""
    shown = cluster.on(0, f"cat .ipexctl/runs/{run}/status.json; echo; ps -u $(id -u) -wwo pid=,comm=,args=")
    status, *lines = shown.splitlines()
    supervisor = str(json.loads(status)["supervisor"]["pid"])
    rows = [line.split(None, 2) for line in lines if words in line]
    victims = [pid for pid, name, _ in rows if name.startswith("python") and pid != supervisor]
    cluster.on(0, f"kill -9 {' '.join(victims)}")
    return victims


def test_followers_that_are_killed_on_node0_are_started_again_and_no_line_is_lost(cluster: Cluster) -> None:
    running = cluster.begin("--ppn", "2", "counts.py", "800")
    running.wait_for("[3] number 10\n", times=2)
    others = [cluster.begin_call(*call) for call in (("attach", running.id), ("logs", running.id, "-f"))]
    waiting = cluster.begin_call("wait", running.id)
    for each in others:
        each.wait_for("[3] number 20\n", times=2)
    assert len(kill_followers(cluster, STARTER, running.id)) == 1
    assert len(kill_followers(cluster, FOLLOWER, running.id)) >= 3
    running.wait_for("starting it again")
    running.wait_for("[3] number 150\n", times=2)
    kill_followers(cluster, FOLLOWER, running.id)
    for each in (running, *others):
        assert each.end(90) == 0, each.err.read_text()
        for stream in (each.out, each.err):
            assert by_rank(stream.read_text()) == {rank: [f"number {n}" for n in range(800)] for rank in range(4)}
        assert each.err.read_text().count("starting it again") == 2
    assert waiting.end(60) == 0, waiting.err.read_text()
    assert cluster.status(running.id)["state"] == "ok"


def test_events_of_a_run_on_hosts_survive_a_reconnect_and_name_the_failed_host(cluster: Cluster) -> None:
    cluster.write(
        "ends.py",
        "import os, sys, time\n"
        "for number in range(60):\n    print('number', number, flush=True)\n    time.sleep(0.05)\n"
        "if os.environ['RANK'] == '1':\n    time.sleep(2)  # the other rank has printed all by then\n    sys.exit(7)\n",
    )
    running = cluster.begin_call("run", "-H", cluster.lab.hostfile, "--ppn", "1", "--events", "ends.py")
    running.wait_for('"text": "number 10"', times=2)
    subprocess.run(["ss", "-K", "dst", cluster.lab.hosts[0].address, "dport", "=", "22"], capture_output=True)
    assert running.end(90) == 7, running.err.read_text()
    events = [json.loads(line) for line in running.out.read_text().splitlines()]
    names = [host.name for host in cluster.lab.hosts[:2]]
    assert (events[0]["kind"], events[0]["ranks"], events[1]["kind"]) == ("plan", names, "start")
    for rank, name in enumerate(names):
        lines = [event for event in events if event["kind"] == "line" and event["rank"] == rank]
        assert [line["text"] for line in lines if line["stream"] == "stdout"] == [f"number {n}" for n in range(60)]
        assert {line["host"] for line in lines} == {name}
    (failure,) = [event for event in events if event["kind"] == "failure"]
    assert (failure["failure"], failure["rank"], failure["host"], failure["exit_code"]) == ("exit", 1, names[1], 7)
    assert (events[-1]["kind"], events[-1]["state"], events[-1]["exit_code"]) == ("end", "failed", 7)

    refused = cluster.begin_call("run", "-H", cluster.lab.hostfile, "--events", "--no-sync", "nowhere.py")
    code = refused.end(60)
    *_, failure, end = [json.loads(line) for line in refused.out.read_text().splitlines()]
    assert code == end["exit_code"] != 0
    assert (failure["failure"], end["kind"], end["id"]) == ("not-started", "end", None)


def test_killed_call_leaves_its_notification_to_node0_and_a_call_that_stays_sends_it_itself(cluster: Cluster) -> None:
    killed = cluster.begin("--ppn", "1", "--notify", "cat >> $HOME/killed", "counts.py", "100")
    killed.wait_for("[1] number 20\n", times=2)
    killed.process.kill()
    detached = cluster.run("--ppn", "1", "--detach", "--notify", "cat >> $HOME/detached", "counts.py", "1").out.strip()
    stayed = cluster.run("--ppn", "1", "--notify", "cat >> here; cat $HOME/.ssh/none", "counts.py", "1")
    assert "the command of --notify ended with exit code 1" in stayed.err
    document = json.loads((cluster.project / "here").read_text())
    assert (document["state"], document["hosts"]) == ("ok", [host.name for host in cluster.lab.hosts[:2]])

    def is_sent(name: str) -> bool:
        return cluster.on(0, f"cat {name} 2>/dev/null || true").endswith("}\n")

    ids = {}
    for name in ("detached", "killed"):  # node0 waits 20 s for the call that was killed
        wait_until(partial(is_sent, name), 60)
        ids[name] = json.loads(cluster.on(0, f"cat {name}"))["id"]
    assert ids["detached"] == detached
    assert len({*ids.values(), document["id"]}) == 3
    sent = cluster.on(0, "grep -l node0 .ipexctl/runs/*/notify.json; rm killed detached").split()
    assert sorted(path.split("/")[2] for path in sent) == sorted(ids.values())


def test_playbook_follows_its_run_after_reconnects(cluster: Cluster) -> None:
    cluster.write("site.yml", "- hosts: all\n  tasks:\n    - run: {script: counts.py 200, ppn: 1}\n    - ping:\n")
    playing = cluster.begin_call("play", "site.yml", "-H", cluster.lab.hostfile)
    for number in (10, 80):
        playing.wait_for(f"[1] number {number}\n", times=2)
        subprocess.run(["ss", "-K", "dst", cluster.lab.hosts[0].address, "dport", "=", "22"], capture_output=True)
    assert playing.end(60) == 0, playing.err.read_text()
    assert "is reached again" in playing.err.read_text()
    lines = playing.out.read_text().splitlines()
    assert [line for line in lines if line.startswith("[0] ")] == [f"[0] number {number}" for number in range(200)]
    assert "failed=0 unreachable=0" in lines[-1]


def test_any_python_of_node0_is_used_after_its_environment_is_removed(cluster: Cluster) -> None:
    run = cluster.run("--ppn", "1", "--detach", "counts.py", "100000").out.strip()
    cluster.wait_until(run, "running")
    path = cluster.state / "ipexctl" / "runs" / f"{run}.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "python": f"{record['home']}/envs/removed/bin/python"}))
    other = f"{record['home']}/envs/other"
    cluster.on(0, f"mkdir -p {other}/bin && cp -L $(command -v python3) {other}/bin/python")
    break_host(cluster.lab.hosts[0], "no-python")
    try:
        assert cluster.status(run)["state"] == "running"
        logs = cluster.call("logs", run, "--tail", "3")
        assert len((logs.out + logs.err).splitlines()) == 3
        assert json.loads(cluster.call("why", run, "--json").out)["state"] == "running"
        assert cluster.call("stop", run).rc == 0
        assert cluster.status(run)["state"] == "stopped"
    finally:
        mend_host(cluster.lab.hosts[0])
        cluster.on(0, f"rm -r {other}")


def test_node0_that_stays_away_ends_the_call_and_not_the_run(cluster: Cluster) -> None:
    run = cluster.run("--ppn", "1", "--detach", "-l", "node1", "counts.py", "100000").out.strip()
    watching = cluster.begin_call("attach", run, "--reconnect", "5")
    logs = cluster.begin_call("logs", run, "-f", "--reconnect", "5")
    for each in (watching, logs):
        each.wait_for("number 5\n")
    break_host(cluster.lab.hosts[0], "link-down")
    started = time.monotonic()
    try:
        codes = [each.end(90) for each in (watching, logs)]
        took = time.monotonic() - started
    finally:
        mend_host(cluster.lab.hosts[0])
    assert codes == [3, 3]
    assert took < 60, took
    for each in (watching, logs):
        errors = each.err.read_text()
        assert f"ipexctl attach {run}" in errors
        assert f"ipexctl why {run}" in errors
        assert "continues" not in errors
        numbers = by_rank(each.out.read_text())[0]
        assert numbers == [f"number {number}" for number in range(len(numbers))]
    assert cluster.call("stop", run).rc == 0


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
        assert "cannot be seen" in new.err
    finally:
        mend_host(cluster.lab.hosts[0])
    assert waiting.end(90) == 5, waiting.err.read_text()
    errors = waiting.err.read_text()
    assert errors.index("cannot be seen") < errors.index("is reached again") < errors.index("failed")


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
