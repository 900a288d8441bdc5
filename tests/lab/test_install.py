"""`ipexctl install` on real SSH hosts, with wheels that are small and stand in for the real ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from install_helpers import Target, statuses
from ipexctl.extras.lab.fault_injection import break_host, mend_host
from ipexctl.extras.lab.plan import LabSpec
from lab_helpers import ask
from message_data import missing
from simple_index import SimpleIndex
from tiny_wheels import write_wheel

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
    assert report["stack"]["name"] == "ipex-2.8"
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


def test_new_environment_takes_what_another_has_unpacked(installed: Target, wheelhouse: Path) -> None:
    """Stores are empty, and no host needs torch again; a damaged package alone is sent again."""
    target, torch = installed, "lib/python3*/site-packages/torch/__init__.py"
    write_wheel(wheelhouse, "tqdm", "4.67.1")
    target.report("--prune", verb="envs")
    words = ("--wheelhouse", wheelhouse, "--offline", "--with", "tqdm", "--env", "more", "--stack", "ipex")
    assert set(statuses(target.report(*words)).values()) == {"changed"}
    for index in range(len(target.hosts)):
        of_both = target.on(index, f"stat -c %i $HOME_OF_OURS/envs/default/{torch} $HOME_OF_OURS/envs/more/{torch}")
        assert len({*of_both.split()}) == 1
        assert target.on(index, "ls $HOME_OF_OURS/wheels/*/torch-* 2>/dev/null | wc -l").strip() == "0"
    tqdm = "$HOME_OF_OURS/envs/more/lib/python3*/site-packages/tqdm.py"
    target.on(1, f"for f in {tqdm}; do echo x >> $f; done")
    assert statuses(target.report(*words)) == {"node1": "ok", "node2": "changed"}
    assert target.on(1, f"ls $HOME_OF_OURS/envs/*/{torch} | wc -l").strip() in ("2", "4")
