"""Runs on hosts without an MPI and without logins between them: `--launcher`, and what happens to starters."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_helpers import wait_until
from cli_helpers import processes_with
from ipexctl.addons.lab.lab_plan import LabSpec
from ipexctl.addons.lab.lab_record import Lab
from lab_helpers import ask, let_node0_in, refuse_logins
from lab_run_helpers import WAIT_SCRIPT, Cluster, by_rank, new_cluster, session_dir, small_stack

LAB = LabSpec(hosts=3)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]
PYTHON = ("--python", "/usr/bin/python3", "--omp", 1, "--ppn", 2)
STARTER = "run.host_starter"

RING = """\
import os, socket, sys, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    server = socket.create_server(address)
    peers = [server.accept()[0] for _ in range(size - 1)]
    total = sum(int(peer.makefile().readline()) for peer in peers)
    for peer in peers:
        peer.sendall(b"%d\\n" % total)
else:
    until = time.monotonic() + 20
    while True:
        try:
            peer = socket.create_connection(address)
            break
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.05)
    peer.sendall(b"%d\\n" % rank)
    total = int(peer.makefile().readline())
print("sum", total, os.environ["RESTART_COUNT"], socket.gethostname(), flush=True)
if rank == 3 and os.environ["RESTART_COUNT"] == "0" and "fail" in sys.argv:
    time.sleep(0.5)
    sys.exit(3)
"""
"""The ranks meet at MASTER_ADDR and add their numbers up, as gloo would."""


def starters(cluster: Cluster) -> list[tuple[str, int]]:
    """The starters that live: host and pid there."""
    found = []
    for host in cluster.lab.hosts:
        said = ask(host, f"pgrep -f 'agent.zip {STARTER}( |$)'", as_root=True).out
        found += [(host.name, int(pid)) for pid in said.split()]
    return found


@pytest.fixture
def begin(cluster: Cluster) -> Callable[..., tuple[Any, str]]:
    """Start a run of WAIT_SCRIPT; its call and its id."""

    def start(*options: object) -> tuple[Any, str]:
        cluster.write("wait.py", WAIT_SCRIPT)
        call = cluster.begin(*PYTHON, *options, "wait.py", cluster.marker)
        call.wait_for("here", times=6)
        return call, next(row["id"] for row in cluster.runs() if row["state"] == "running")

    return start


@pytest.mark.core
def test_hosts_without_an_mpi_and_without_logins_run_ranks_and_restart_them(cluster: Cluster) -> None:
    assert "Permission denied" in cluster.on(
        0, "ssh -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null node2 true 2>&1 || :"
    )
    cluster.write("ring.py", RING)
    ran = cluster.run(*PYTHON, "--max-restarts", 2, "ring.py", "fail")
    lines = by_rank(ran.out)
    assert {rank: [line.split()[:3] for line in said] for rank, said in lines.items()} == {
        rank: [["sum", "15", "0"], ["sum", "15", "1"]] for rank in range(6)
    }
    assert [lines[rank][0].split()[3] for rank in range(6)] == ["node1", "node1", "node2", "node2", "node3", "node3"]
    wait_until(lambda: not processes_with(cluster.lab, "agent.zip"), 10)


def test_run_outlives_its_call_and_is_dumped_attached_and_stopped(
    cluster: Cluster, begin: Callable[..., tuple[Any, str]]
) -> None:
    call, run = begin("--max-restarts", 1)
    assert sorted(host for host, _ in starters(cluster)) == ["node2", "node3"]
    call.process.send_signal(signal.SIGKILL)
    call.process.wait(10)
    stacks = json.loads(cluster.good("why", run, "--stacks", "--json"))
    assert len(stacks["ranks"]) == 6
    assert cluster.status(run)["state"] == "running"
    attached = cluster.begin_call("attach", run)
    attached.wait_for("here")
    cluster.good("stop", run)
    assert attached.process.wait(30) == 143
    assert cluster.status(run)["state"] == "stopped"
    assert cluster.wait_until_gone(20, "agent.zip")


def reboot(cluster: Cluster, index: int) -> None:
    """All of the account's processes and the host's memory are gone; its disk stays."""
    cluster.as_root(index, "pkill -KILL -u ipex; rm -rf /dev/shm/* /tmp/*; :")
    assert not [host for host, _ in starters(cluster) if host == f"node{index + 1}"]


@pytest.fixture
def with_mpirun(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """The hosts have an environment with Intel MPI, and refuse each other's connections to port 22."""
    cluster.good("install", "-H", cluster.lab.hostfile, *small_stack(session_dir(tmp_path_factory)), timeout=240)
    refuse_logins(cluster.lab)
    return cluster


@pytest.mark.parametrize("pool", [(), ("--min-hosts", 2, "--checkpoint", "checkpoints")], ids=["all", "min-hosts"])
@pytest.mark.parametrize("launcher", ["direct", "mpirun"])
def test_rebooted_host_gets_its_starter_again_from_the_call_that_follows(
    with_mpirun: Cluster, launcher: str, pool: tuple[object, ...]
) -> None:
    cluster = with_mpirun
    cluster.write("wait.py", WAIT_SCRIPT)
    options = ("--omp", 1, "--ppn", 2, "--launcher", launcher, "--max-restarts", 2, *pool)
    call = cluster.begin(*options, "wait.py", cluster.marker)
    call.wait_for("here", times=6)
    for index, times in ((2, 12), (1, 18)):  # six ranks in each attempt
        reboot(cluster, index)
        call.wait_for("here", times=times)
        # node0's own ssh, which this lab refuses, may still wait.
        wait_until(lambda: sorted(host for host, _ in starters(cluster)) == ["node2", "node3"], 10)
    cluster.good("stop", call.id)
    assert call.end() == 143
    assert cluster.wait_until_gone(30, "agent.zip")


def test_rebooted_host_gets_its_starter_again_from_node0_by_keys_of_the_account(
    make_lab: Callable[[LabSpec], Lab], tmp_path: Path
) -> None:
    """Nobody follows the run. On most clusters an account's own key works from node to node."""
    cluster = new_cluster(make_lab(LabSpec(hosts=2)), tmp_path)
    let_node0_in(cluster.lab)
    cluster.write("wait.py", WAIT_SCRIPT)
    call = cluster.begin(*PYTHON, "--detach", "--max-restarts", 1, "wait.py", cluster.marker)
    assert call.process.wait(60) == 0
    run = next(row["id"] for row in cluster.runs() if row["state"] in ("starting", "running"))
    wait_until(lambda: cluster.status(run)["state"] == "running", 20)
    reboot(cluster, 1)
    wait_until(lambda: cluster.status(run)["attempt"] == 1 and cluster.status(run)["state"] == "running", 40)
    cluster.good("stop", run)
    assert cluster.wait_until_gone(30, "agent.zip")


@pytest.mark.parametrize(
    "spec", [LabSpec(hosts=2, shared_home=True), LabSpec(hosts=2, bastion=True)], ids=["shared-home", "bastion"]
)
def test_hosts_with_one_home_or_behind_a_bastion_get_their_starters(
    make_lab: Callable[[LabSpec], Lab], tmp_path: Path, spec: LabSpec
) -> None:
    cluster = new_cluster(make_lab(spec), tmp_path)
    cluster.write("ring.py", RING)
    lines = by_rank(cluster.run(*PYTHON, "--max-restarts", 1, "ring.py", "fail").out)
    assert [lines[rank][1].split()[:4] for rank in range(4)] == [
        ["sum", "6", "1", host] for host in ("node1", "node1", "node2", "node2")
    ]
    assert cluster.wait_until_gone(10, "agent.zip")


@pytest.mark.parametrize("has_mpi", [True, False])
def test_fresh_account_trains_with_the_one_command(
    cluster: Cluster, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, has_mpi: bool
) -> None:
    """No environment, no logins between the nodes; once with an MPI among the wheels, once without."""
    _, house, *_ = small_stack(session_dir(tmp_path_factory))
    for wheel in Path(str(house)).glob("*.whl"):
        if has_mpi or not wheel.name.startswith("impi"):
            (tmp_path / wheel.name).hardlink_to(wheel)
    env = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    cluster.write("ring.py", "import torch\n" + RING)
    assert cluster.on(0, "ls ~/.ssh") == "authorized_keys\n"
    home = ("--home", f"/home/ipex/fresh-{has_mpi}", "--omp", 1, "--ppn", 1)
    ran = cluster.run(*home, "--install", "--stack", "torch", "ring.py", env=env, timeout=200)
    assert [line for lines in by_rank(ran.out).values() for line in lines if line.startswith("sum 3 0")] != []
    assert by_rank(ran.out).keys() == {0, 1, 2}
    assert cluster.on(0, "ls ~/.ssh") == "authorized_keys\n"
    again = cluster.run(*home, "--install", "--stack", "torch", "ring.py", env=env)
    assert by_rank(again.out).keys() == {0, 1, 2}
