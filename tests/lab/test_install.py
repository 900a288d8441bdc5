"""`ipexctl install` on real SSH hosts, with wheels that are small and stand in for the real ones."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from install_helpers import PYTHON, Cluster, statuses
from ipexctl.lab import LabSpec, break_host, mend_host
from lab_helpers import ask
from simple_index import SimpleIndex
from tiny_wheels import write_stack

LAB = LabSpec(hosts=3, name=f"install-{os.getpid()}")
pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]


@pytest.mark.core
def test_one_call_gives_every_host_the_same_verified_environment(cluster: Cluster, wheelhouse: Path) -> None:
    report = cluster.report("--wheelhouse", wheelhouse, "--offline")
    assert statuses(report) == {"node1": "changed", "node2": "changed", "node3": "changed"}
    assert report["stack"]["name"] == "ipex-2.8"
    assert report["stack"]["backend"] == "gloo"
    assert {host["env"] for host in report["hosts"]} == {report["hosts"][0]["env"]}
    for host in report["hosts"]:
        assert host["verify"]["ok"]
        assert host["packages"]["torch"] == "2.8.0"
        assert host["verify"]["allreduce_ms"]
    for index in range(3):
        said = cluster.on(index, "$HOME_OF_OURS/envs/default/bin/python -c 'import torch; print(torch.__version__)'")
        assert said.strip() == "2.8.0"
    record = json.loads(cluster.on(1, "cat $HOME_OF_OURS/envs/default/env.json"))
    assert record["variables"]["PATH"].endswith(f"{report['hosts'][1]['env']}/bin")
    assert record["variables"]["I_MPI_ROOT"].startswith(cluster.home)
    wheels, uv = sum(wheel["size"] for wheel in report["wheels"]), 70_000_000
    assert wheels <= report["bytes"]["uplink"] < wheels + uv, "each wheel crosses the uplink once"
    count = "find $HOME_OF_OURS/wheels -type f 2>/dev/null | wc -l"
    kept = [int(cluster.on(index, count)) for index in range(3)]
    assert kept[0] > 3
    assert kept[1:] == [0, 0], "wheels stay on the first host alone"
    assert cluster.on(1, "ls -A $HOME_OF_OURS/tmp").strip() == ""


@pytest.mark.core
def test_a_second_call_changes_nothing_and_asks_nobody(cluster: Cluster, wheelhouse: Path) -> None:
    with SimpleIndex(wheelhouse) as index:
        first = cluster.report("--index-url", index.url)
        assert index.asked("torch") > 0
        index.forget()
        again = cluster.install("--index-url", index.url)
        assert again.rc == 0
        assert "nothing to do" in again.err
        assert index.asked("torch") == 0
    second = cluster.report("--index-url", index.url)
    assert statuses(second) == {"node1": "ok", "node2": "ok", "node3": "ok"}
    assert second["hosts"][0]["env"] == first["hosts"][0]["env"]
    assert second["hosts"][2]["verify"]["ok"]


@pytest.mark.core
def test_the_bindings_bring_ccl_their_own_mpi_and_their_variables(cluster: Cluster, tmp_path: Path) -> None:
    write_stack(tmp_path, torch="2.7.0", ipex="2.7.0", oneccl="2.7.0", python=PYTHON)
    report = cluster.report("--wheelhouse", tmp_path, "--offline")
    assert (report["stack"]["name"], report["stack"]["backend"]) == ("ipex-2.7", "ccl")
    assert report["hosts"][0]["verify"]["backend"] == "ccl"
    record = json.loads(cluster.on(2, "cat $HOME_OF_OURS/envs/default/env.json"))
    assert record["module"] == "oneccl_bindings_for_pytorch"
    assert record["variables"]["CCL_ROOT"].startswith(f"{cluster.home}/envs/ipex-2.7-")


def test_a_host_that_is_away_is_told_and_gets_the_same_environment_later(cluster: Cluster, wheelhouse: Path) -> None:
    break_host(cluster.hosts[1], "sshd-dead")
    first = cluster.report("--wheelhouse", wheelhouse, "--offline", rc=3)
    assert statuses(first) == {"node1": "changed", "node2": "unreachable", "node3": "changed"}
    mend_host(cluster.hosts[1])
    for wheel in wheelhouse.glob("*.whl"):
        wheel.unlink()
    second = cluster.report()
    assert statuses(second) == {"node1": "ok", "node2": "changed", "node3": "ok"}
    assert second["hosts"][1]["env"] == first["hosts"][0]["env"]


def test_a_tmp_that_runs_no_programs_and_a_python_without_ensurepip_are_enough(
    cluster: Cluster, wheelhouse: Path
) -> None:
    cluster.on(1, "mount -t tmpfs -o noexec,size=64k none /tmp", as_root=True)
    cluster.on(0, "mv /usr/lib/python3.11/ensurepip /usr/lib/python3.11/ensurepip.away", as_root=True)
    try:
        assert set(statuses(cluster.report("--wheelhouse", wheelhouse, "--offline")).values()) == {"changed"}
    finally:
        cluster.on(1, "umount /tmp", as_root=True)
        cluster.on(0, "mv /usr/lib/python3.11/ensurepip.away /usr/lib/python3.11/ensurepip", as_root=True)


def test_no_python_is_refused_with_what_to_install_where(cluster: Cluster, wheelhouse: Path) -> None:
    break_host(cluster.hosts[2], "no-python")
    ran = cluster.install("--wheelhouse", wheelhouse, "--offline")
    assert ran.rc == 1
    assert "node3" in ran.err
    assert "Python" in ran.err
    assert cluster.nothing_usable(0)


def test_a_name_is_switched_to_another_stack_and_both_stay(cluster: Cluster, wheelhouse: Path) -> None:
    write_stack(wheelhouse, torch="2.13.0", ipex=None, python=PYTHON)
    args = ("--wheelhouse", wheelhouse, "--offline", "--env", "train")
    old = cluster.report(*args, "--stack", "ipex-2.8")["hosts"][0]["env"]
    new = cluster.report(*args, "--stack", "torch-2.13")["hosts"][0]["env"]
    link = "basename $(readlink -f $HOME_OF_OURS/envs/train)"
    assert cluster.on(2, link).strip() == new != old
    back = cluster.report(*args, "--stack", "ipex-2.8")
    assert back["hosts"][0]["env"] == old
    assert cluster.on(2, link).strip() == old


def test_an_environment_that_answers_another_request_is_known_by_it_from_then_on(
    cluster: Cluster, wheelhouse: Path
) -> None:
    cluster.report("--wheelhouse", wheelhouse, "--offline")
    with SimpleIndex(wheelhouse) as index:
        first = cluster.report("--stack", "ipex-2.8", "--index-url", index.url)
        assert set(statuses(first).values()) <= {"ok", "changed"}
        index.forget()
        again = cluster.report("--stack", "ipex-2.8", "--index-url", index.url)
        assert set(statuses(again).values()) == {"ok"}
        assert index.asked("torch") == 0


@pytest.mark.core
def test_dry_run_says_what_would_come_and_leaves_nothing(cluster: Cluster, wheelhouse: Path) -> None:
    ran = cluster.install("--wheelhouse", wheelhouse, "--offline", "--dry-run")
    assert ran.rc == 0
    assert "torch-2.8.0-cp311" in ran.out
    assert "would change" in ran.out
    for index in range(3):
        assert ask(cluster.hosts[index], f"ls {cluster.home}").rc != 0
