"""`ipexctl install` on real SSH hosts, with wheels that are small and stand in for the real ones."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from install_helpers import PYTHON, Target, statuses
from ipexctl.addons.lab.faults import break_host, mend_host
from ipexctl.addons.lab.lab_plan import LabSpec
from lab_helpers import ask
from message_data import missing
from simple_index import SimpleIndex
from tiny_wheels import write_stack

LAB = LabSpec(hosts=2)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]


@pytest.mark.core
def test_install_creates_the_same_verified_environment_on_all_hosts(target: Target, wheelhouse: Path) -> None:
    """Each wheel crosses the uplink once, and goes on from host to host."""
    planned = target.install("--wheelhouse", wheelhouse, "--offline", "--dry-run")
    assert planned.rc == 0
    assert "torch-2.8.0-cp311" in planned.out
    assert "would change" in planned.out
    assert [ask(host, f"ls {target.home}").rc != 0 for host in target.hosts] == [True, True]
    report = target.report("--wheelhouse", wheelhouse, "--offline")
    assert statuses(report) == {"node1": "changed", "node2": "changed"}
    assert report["stack"]["name"] == "torch-2.8"
    assert report["stack"]["backend"] == "gloo"
    assert {host["env"] for host in report["hosts"]} == {report["hosts"][0]["env"]}
    for host in report["hosts"]:
        assert host["verify"]["ok"]
        assert host["packages"]["torch"] == "2.8.0"
        assert host["verify"]["allreduce_ms"]
    for index in range(2):
        said = target.on(index, "$HOME_OF_OURS/envs/default/bin/python -c 'import torch; print(torch.__version__)'")
        assert said.strip() == "2.8.0"
    record = json.loads(target.on(1, "cat $HOME_OF_OURS/envs/default/env.json"))
    assert record["variables"]["PATH"].endswith(f"{report['hosts'][1]['env']}/bin")
    assert record["variables"]["I_MPI_ROOT"].startswith(target.home)
    wheels, uv = sum(wheel["size"] for wheel in report["wheels"]), 70_000_000
    assert wheels <= report["bytes"]["uplink"] < wheels + uv, "each wheel crosses the uplink once"
    count = "find $HOME_OF_OURS/wheels -type f 2>/dev/null | wc -l"
    kept = [int(target.on(index, count)) for index in range(2)]
    assert kept[0] > 3
    assert kept[1] == 0, "wheels stay on the first host alone"
    assert target.on(1, "ls -A $HOME_OF_OURS/tmp").strip() == ""


def test_second_install_changes_nothing_and_queries_no_index(target: Target, wheelhouse: Path) -> None:
    """The records on the hosts answer."""
    with SimpleIndex(wheelhouse) as index:
        first = target.report("--index-url", index.url)
        assert index.asked("torch") > 0
        index.forget()
        again = target.install("--index-url", index.url)
        assert again.rc == 0
        assert "nothing to do" in again.err
        assert index.asked("torch") == 0
    second = target.report("--index-url", index.url)
    assert statuses(second) == {"node1": "ok", "node2": "ok"}
    assert second["hosts"][0]["env"] == first["hosts"][0]["env"]
    assert second["hosts"][1]["verify"]["ok"]


def test_unreachable_host_gets_the_same_environment_later(target: Target, wheelhouse: Path) -> None:
    """The wheels come from the other host, as no index has them any more."""
    break_host(target.hosts[1], "sshd-dead")
    first = target.report("--wheelhouse", wheelhouse, "--offline", rc=3)
    assert statuses(first) == {"node1": "changed", "node2": "unreachable"}
    mend_host(target.hosts[1])
    for wheel in wheelhouse.glob("*.whl"):
        wheel.unlink()
    second = target.report()
    assert statuses(second) == {"node1": "ok", "node2": "changed"}
    assert second["hosts"][1]["env"] == first["hosts"][0]["env"]


def test_install_works_with_noexec_tmp_and_without_ensurepip(target: Target, wheelhouse: Path) -> None:
    """Mounts and the Python of a distribution."""
    target.on(1, "mount -t tmpfs -o noexec,size=64k none /tmp", as_root=True)
    target.on(0, "mv /usr/lib/python3.11/ensurepip /usr/lib/python3.11/ensurepip.away", as_root=True)
    try:
        assert set(statuses(target.report("--wheelhouse", wheelhouse, "--offline")).values()) == {"changed"}
    finally:
        target.on(1, "umount /tmp", as_root=True)
        target.on(0, "mv /usr/lib/python3.11/ensurepip.away /usr/lib/python3.11/ensurepip", as_root=True)


def test_host_without_python_is_refused_before_any_change(target: Target, installed: Target, wheelhouse: Path) -> None:
    """The probe needs no Python, and the fix is for the distribution of that host."""
    break_host(target.hosts[1], "no-python")
    ran = target.install("--wheelhouse", wheelhouse, "--offline")
    assert ran.rc == 1
    assert missing(ran.err, "node2 Python apt-get install -y python3") == [], "as doctor says"
    assert target.nothing_usable(0)
    (wheelhouse / "train.py").write_text("print('here')\n")
    refused = installed.install(wheelhouse / "train.py", verb="run")
    assert missing(refused.err, "node2 apt-get install -y python3 then: ipexctl install") == [], refused.err


def test_pruned_wheels_are_taken_from_the_wheelhouse_again(installed: Target, wheelhouse: Path) -> None:
    """Of two hosts one has the environment and neither the wheels: they cross the uplink again."""
    target = installed
    target.report("--prune", verb="envs")
    target.on(1, "rm -r $HOME_OF_OURS/envs")
    lost = target.report("--offline", rc=1)
    assert "--wheelhouse" in lost["hosts"][1]["fix"]
    assert statuses(target.report("--wheelhouse", wheelhouse, "--offline")) == {"node1": "ok", "node2": "changed"}


def test_an_upload_that_took_too_long_is_continued_from_the_cache(target: Target, tmp_path: Path) -> None:
    """A link that carries less than the time limit allows, and the cache of the control machine."""
    write_stack(tmp_path / "wheels", python=PYTHON, pad=4 << 20)
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    with SimpleIndex(tmp_path / "wheels") as index:
        break_host(target.hosts[0], "slow-link", ["4mbit"])
        ran = target.install("--index-url", index.url, "--timeout", 6, "--limit", "node1", env=env)
        assert ran.rc == 1
        assert "timed out after 6 s" in ran.err
        assert ran.seconds < 30
        assert any((tmp_path / "cache").rglob("torch-*.whl"))
        mend_host(target.hosts[0])
        parts = "ls $HOME_OF_OURS/wheels | grep -c part || true"
        assert target.on(0, parts).strip() == "1"
        index.forget()
        assert set(statuses(target.report("--index-url", index.url, env=env)).values()) == {"changed"}
        assert sum(index.bytes.values()) < 4 << 20
        assert target.on(0, parts).strip() == "0", "it was sent again from the first byte"
    assert not any((tmp_path / "cache").rglob("*.whl"))


def test_parallel_installs_share_the_download_cache(target: Target, wheelhouse: Path) -> None:
    """One call waits for its link while the other has ended and cleans up."""
    with SimpleIndex(wheelhouse) as index:
        break_host(target.hosts[0], "slow-link", ["60mbit"])
        slow = target.begin("--index-url", index.url, "--limit", "node1")
        time.sleep(2)
        quick = target.install("--index-url", index.url, "--limit", "node2")
        _, said = slow.communicate(timeout=120)
    assert (quick.rc, slow.returncode) == (0, 0), quick.err + said


def test_read_only_home_on_first_host_fails_only_that_host(
    target: Target, wheelhouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wheels for the second host have no way over the first."""
    monkeypatch.setenv("PIP_TRUSTED_HOST", f"10.77.{target.lab.block}.1")
    break_host(target.hosts[0], "read-only-home")
    with SimpleIndex(wheelhouse, bind=f"10.77.{target.lab.block}.1") as index:
        report = target.report("--index-url", index.url, rc=1)
    assert statuses(report) == {"node1": "failed", "node2": "changed"}
    again = target.report("--wheelhouse", wheelhouse, "--offline", rc=1)
    assert statuses(again) == {"node1": "failed", "node2": "ok"}
    assert "read-only" in again["hosts"][0]["reason"]
    assert "node1" not in again["hosts"][1]["reason"]
