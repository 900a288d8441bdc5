"""`ipexctl install` when it is killed, cut off, doubled, or meets homes and networks of every kind."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cli_helpers import IPEXCTL, ipexctl, processes_with
from install_helpers import PYTHON, Cluster, statuses
from ipexctl.lab import Lab, LabSpec, break_host, mend_host
from lab_helpers import ask
from simple_index import SimpleIndex
from tiny_wheels import write_stack

LAB = LabSpec(hosts=2, name=f"install-faults-{os.getpid()}")
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]


@pytest.fixture
def wheelhouse(tmp_path: Path) -> Path:
    write_stack(tmp_path, python=PYTHON, pad=8 << 20)
    return tmp_path


def start(cluster: Cluster, *args: object, stdout: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    argv = [*IPEXCTL, "install", "-H", str(cluster.lab.hostfile), "--home", cluster.home, *map(str, args)]
    return subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.DEVNULL, start_new_session=True
    )


def half_made(cluster: Cluster, index: int) -> list[str]:
    """Environments that can be seen and don't work."""
    names = cluster.on(index, "ls $HOME_OF_OURS/envs 2>/dev/null || true").split()
    run = "$HOME_OF_OURS/envs/{}/bin/python -c 'import torch, intel_extension_for_pytorch' && test -s {}/env.json"
    whole = [
        name
        for name in names
        if ask(
            cluster.hosts[index],
            run.replace("$HOME_OF_OURS", cluster.home).format(name, f"{cluster.home}/envs/{name}"),
        ).rc
        == 0
    ]
    return sorted(set(names) - set(whole))


def test_killed_at_ten_random_moments_it_is_whole_in_the_end(cluster: Cluster, wheelhouse: Path) -> None:
    seed = int(os.environ.get("IPEXCTL_SEED", "20261120"))
    moments = random.Random(seed)
    for _ in range(10):
        running = start(cluster, "--wheelhouse", wheelhouse, "--offline")
        time.sleep(moments.uniform(0.2, 3.5))
        running.kill()
        running.wait()
        for index in range(2):
            assert half_made(cluster, index) == [], f"seed {seed}"
    report = cluster.report("--wheelhouse", wheelhouse, "--offline")
    assert set(statuses(report).values()) <= {"changed", "ok"}
    assert all(host["verify"]["ok"] for host in report["hosts"])
    for index in range(2):
        assert half_made(cluster, index) == []
        assert cluster.on(index, "ls -A $HOME_OF_OURS/envs | grep -c '^[.]' || true").strip() == "0"


def test_interrupted_it_leaves_no_process_and_no_half_environment(cluster: Cluster, wheelhouse: Path) -> None:
    running = start(cluster, "--wheelhouse", wheelhouse, "--offline")
    time.sleep(2.0)
    running.send_signal(signal.SIGINT)
    assert running.wait(timeout=30) in (130, 0)
    time.sleep(0.5)
    assert processes_with(cluster.lab, cluster.home) == []
    assert half_made(cluster, 0) == []


def test_two_installs_at_once_end_with_one_environment(cluster: Cluster, wheelhouse: Path) -> None:
    both = [start(cluster, "--wheelhouse", wheelhouse, "--offline") for _ in range(2)]
    assert [each.wait(timeout=200) for each in both] == [0, 0]
    for index in range(2):
        assert half_made(cluster, index) == []
        assert len(cluster.on(index, "ls $HOME_OF_OURS/envs").split()) == 2


def test_a_host_lost_on_the_way_is_unreachable_and_the_others_are_ready(cluster: Cluster, tmp_path: Path) -> None:
    write_stack(tmp_path, python=PYTHON, pad=64 << 20)
    break_host(cluster.hosts[1], "slow-link", ("20mbit",))
    running = start(cluster, "--wheelhouse", tmp_path, "--offline", "--json", stdout=subprocess.PIPE)
    time.sleep(6)
    break_host(cluster.hosts[1], "link-down")
    out, _ = running.communicate(timeout=200)
    assert running.returncode == 3
    assert statuses(json.loads(out)) == {"node1": "changed", "node2": "unreachable"}
    mend_host(cluster.hosts[1])
    assert statuses(cluster.report("--wheelhouse", tmp_path, "--offline")) == {"node1": "ok", "node2": "changed"}


def test_the_first_host_fetches_by_itself_where_it_can(
    cluster: Cluster, wheelhouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = cluster.on(0, "ip -4 route show default || true").split()
    ours = gateway[2] if gateway else ".".join([*cluster.hosts[0].address.split(".")[:3], "1"])
    monkeypatch.setenv("PIP_TRUSTED_HOST", ours)
    cluster.on(0, f"mkdir -p ~/.config/pip && printf '[global]\\ntrusted-host = {ours}\\n' >~/.config/pip/pip.conf")
    with SimpleIndex(wheelhouse, bind=ours) as index:
        report = cluster.report("--index-url", index.url)
        assert set(statuses(report).values()) == {"changed"}
        wheels = sum(wheel["size"] for wheel in report["wheels"])
        assert report["bytes"]["uplink"] < wheels
        assert report["bytes"]["downloaded"] >= wheels


def test_a_shared_home_is_filled_once_and_proved_on_every_host(
    make_lab: Callable[[LabSpec], Lab], wheelhouse: Path
) -> None:
    shared = Cluster(make_lab(LabSpec(hosts=3, shared_home=True, name=f"install-nfs-{os.getpid()}")), "~/ours")
    first = shared.report("--wheelhouse", wheelhouse, "--offline")
    assert set(statuses(first).values()) == {"changed"}
    assert all(host["verify"]["ok"] for host in first["hosts"])
    home = first["path"].rpartition("/envs/")[0]
    assert len(ask(shared.hosts[2], f"ls {home}/envs/default/verified").out.split()) == 3
    assert set(statuses(shared.report("--wheelhouse", wheelhouse, "--offline")).values()) == {"ok"}


def test_an_environment_that_another_host_of_the_home_uses_stays(
    make_lab: Callable[[LabSpec], Lab], wheelhouse: Path
) -> None:
    shared = Cluster(make_lab(LabSpec(hosts=3, shared_home=True, name=f"install-nfs-{os.getpid()}")), "~/ours")
    home = shared.report("--wheelhouse", wheelhouse, "--offline")["path"].rpartition("/envs/")[0]
    program = f"(sleep 300 | {home}/envs/default/bin/python -c 'input()') >/dev/null 2>&1 & echo $!"
    shell = ask(shared.hosts[2], program).out.strip()
    refused = shared.report("--remove", "default", verb="envs", rc=1)["hosts"]
    assert {host["status"] for host in refused} == {"failed"}
    assert "node3" in refused[0]["reason"]
    assert ask(shared.hosts[2], f"pkill -P {shell}").rc == 0
    assert set(statuses(shared.report("--remove", "default", verb="envs")).values()) == {"changed"}


def test_homes_at_different_paths_are_refused_with_one_that_would_do(
    make_lab: Callable[[LabSpec], Lab], wheelhouse: Path
) -> None:
    apart = make_lab(LabSpec(hosts=2, homes=("/home", "/scratch"), name=f"install-apart-{os.getpid()}"))
    ran = ipexctl("install", "-H", apart.hostfile, "--wheelhouse", wheelhouse, "--offline")
    assert ran.rc == 1
    assert "/home/ipex/.ipexctl on node1" in ran.err
    assert "/scratch/ipex/.ipexctl on node2" in ran.err
    proposed = ran.err.partition("--home ")[2].split(",")[0].split()[0]
    again = ipexctl(
        "install", "-H", apart.hostfile, "--wheelhouse", wheelhouse, "--offline", "--home", proposed, timeout=120
    )
    assert again.rc == 0, again.err
